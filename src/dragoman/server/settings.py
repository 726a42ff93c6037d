"""Settings of the server. The command line is generated from these structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from dragoman.core.caller import MAX_PRIORITY, CallerLimits
from dragoman.core.regular_file import FileName
from dragoman.dialects import REGISTRY
from dragoman.serving.settings import Count, Seconds, ServingSettings

Port = Annotated[int, Meta(ge=0, le=65535)]
Size = Annotated[int, Meta(ge=1024)]
"""Bytes of what a client sends: with less, no real client would be answered, not even one that asks for the health."""
Patience = Annotated[float, Meta(ge=1)]
"""Seconds that a client gets: with less, a busy machine or a slow network would have every request fail."""
if TYPE_CHECKING:
    DialectName = str
else:  # the registered names, as choices that the command line lists and msgspec checks
    DialectName = Literal["auto", *(each.name for each in REGISTRY)]


class ServerSettings(ServingSettings, frozen=True, kw_only=True):
    """The address to listen on, and the limits of everything that a client can make grow, added to those of serving.

    Attributes:
        host: address to listen on; 0.0.0.0 is every IPv4 interface.
        port: port to listen on; 0 takes any free one.
        metrics_port: one more port, for GET /metrics alone; without it the one that the clients of --dialect expect, if
            any. A port that cannot be had is no error.
        metrics_host: address of that port. Figures say what a server does and for whom it does it: by default only this
            machine reads them there.
        metric_names: names under which GET /metrics shows its figures, beside the server's own (dragoman_...): those of
            tgi, friendli or llamacpp, or of vllm, which routers of clusters read; may be given several times. none: no
            other names. By default those of --dialect.
        dialect: which dialect has the bare paths that several claim, such as /v1/completions; each always has those
            under its own prefix. auto: told by what a request looks like where its dialect leaves marks.
        max_connections: open connections; more are answered with status 503.
        max_body_bytes: largest body of a request; larger ones are answered with status 413.
        max_image_body_bytes: the same where a model in memory sees images, but no more than --image-bytes; without
            effect where --max-body-bytes is more.
        max_message_bytes: largest message on a WebSocket; a larger one closes it.
        max_header_bytes: largest request line and headers together; larger ones are answered with status 431.
        header_timeout_s: seconds for a request's headers to arrive.
        body_timeout_s: seconds for a request's body to arrive; then status 408.
        write_timeout_s: seconds that a client may leave its answer unread before it is dropped.
        linger_s: seconds that the rest of a refused request is read, so that its sender gets to read why.
        keep_alive_s: seconds that an idle connection stays open; longer than a proxy in front keeps its own, whose next
            request could meet the end of the connection.
        websocket_idle_s: seconds that a WebSocket stays open over which no message goes, in either direction, while
            nothing is generated for it; long, because some clients only listen for news of models.
        keep_alive_comment_s: seconds of silence after which a stream of events gets a comment, for proxies that give up
            silent ones, in dialects whose clients can read it; 0: never.
        shutdown_delay_s: seconds after the first SIGTERM in which requests are still served, while readiness is 503
            already; by default 5 in a Kubernetes pod and 0 elsewhere. SIGINT (Ctrl-C) skips them.
        drain_s: seconds that running requests get to finish when the port is closed.
        strict: refuse requests with fields that nobody knows, instead of naming these in a header of the answer.
        access_log: write a line for every request.
    """

    host: str = "127.0.0.1"
    port: Annotated[Port, Meta(extra={"short": "-p"})] = 8000
    metrics_port: Port | None = None
    metrics_host: str = "127.0.0.1"
    metric_names: tuple[str, ...] = ()
    dialect: DialectName = "openai"
    max_connections: Count = 1024
    max_body_bytes: Size = 4 * 1024 * 1024
    max_image_body_bytes: Size = 32 * 1024 * 1024
    max_message_bytes: Size = 4 * 1024 * 1024
    max_header_bytes: Size = 64 * 1024
    header_timeout_s: Patience = 20.0
    body_timeout_s: Patience = 60.0
    write_timeout_s: Patience = 60.0
    linger_s: Seconds = 5.0
    keep_alive_s: Seconds = 150.0
    websocket_idle_s: Patience = 3600.0
    keep_alive_comment_s: Annotated[float, Meta(ge=0)] = 15.0
    shutdown_delay_s: Annotated[float, Meta(ge=0)] | None = None
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    strict: bool = False
    access_log: bool = True


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of connections, and the limits of all clients together.

    Attributes:
        uds: listen on a Unix socket at this path, instead of host and port; it is removed at the end.
        uds_mode: who may connect to it, as permissions in octal digits.
        tls_cert: file with the certificate and those that it is signed by, in PEM; with it the port speaks TLS, 1.2 or
            newer.
        tls_key: file with the certificate's private key; by default it is in the same file.
        tls_key_password_file: file with the password of an encrypted key.
        trusted_proxy: address or network of a proxy that says whom its requests come from, or unix for whoever connects
            to the Unix socket; may be given several times.
        proxy_header: the header that these proxies write; the other one is not read.
        max_connections_per_client: open connections from one address (IPv6: one network of 64 bits), and requests at
            once of one client behind trusted proxies; more are answered with status 429. By default there is no limit:
            a proxy that is not among the trusted ones looks like one client.
        reserved_connections: connections beyond --max-connections, for health checks and refusals.
        backlog: connections that the system lets wait to be accepted; net.core.somaxconn is a limit too.
        max_pipelined: requests of one connection that are read before the first is answered.
        max_buffered_bytes: bytes of the bodies of all requests that are not decoded yet, beyond the first 65536 of
            each; requests that find no room are answered with status 503.
        cluster_secret_file: file with the secret of a cluster whose ingress passes requests on; with it the server
            answers that ingress, health checks and GET /metrics, and nobody else.
    """

    PANEL: ClassVar[str] = "Network"

    uds: FileName | None = None
    uds_mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "600"
    tls_cert: FileName | None = None
    tls_key: FileName | None = None
    tls_key_password_file: FileName | None = None
    trusted_proxy: tuple[str, ...] = ()
    proxy_header: Literal["x-forwarded-for", "forwarded"] = "x-forwarded-for"
    max_connections_per_client: Count | None = None
    reserved_connections: Count = 64
    backlog: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 4096
    max_pipelined: Count = 8
    max_buffered_bytes: Count = 64 * 1024 * 1024
    cluster_secret_file: FileName | None = None


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one caller where the file of keys sets none: of the holder of a key, or of an address where the
    server has no keys.

    Attributes:
        requests_per_minute: requests of one caller within any minute; more are answered with status 429.
        requests_per_day: requests of one caller on a day of UTC.
        tokens_per_minute: tokens of prompts and answers of one caller within any minute.
        tokens_per_day: tokens of prompts and answers of one caller on a day of UTC.
        max_waiting_per_client: sequences of one caller that wait for their first token; without it as many as there is
            room for.
        max_running_per_client: sequences of one caller that are computed at one time; without it as many as there is
            room for.
        allow_priority: let all callers give requests a priority above 0, which is lowered to 0 otherwise.
        ledger: disk: keep an account of what each holder uses, by day and model, in a file of --state-dir. off: keep
            none. auto: on disk where the server has keys.
        ledger_days: days of the ledger that are kept; older ones are deleted when the server starts.
        holder_metrics: name the holders of keys in /metrics.
    """

    PANEL: ClassVar[str] = "Limits"

    requests_per_minute: Count | None = None
    requests_per_day: Count | None = None
    tokens_per_minute: Count | None = None
    tokens_per_day: Count | None = None
    max_waiting_per_client: Count | None = None
    max_running_per_client: Count | None = None
    allow_priority: bool = False
    ledger: Literal["auto", "disk", "off"] = "auto"
    ledger_days: Count = 400
    holder_metrics: bool = True

    def applied_to(self, limits: CallerLimits) -> CallerLimits:
        """Return the limits with these settings applied."""
        return msgspec.structs.replace(
            limits,
            requests_per_minute=self.requests_per_minute,
            requests_per_day=self.requests_per_day,
            tokens_per_minute=self.tokens_per_minute,
            tokens_per_day=self.tokens_per_day,
            max_waiting=self.max_waiting_per_client,
            max_running=self.max_running_per_client,
            max_priority=MAX_PRIORITY if self.allow_priority else limits.max_priority,
        )


class IdempotencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of answers under an Idempotency-Key, which a request that is sent again with its key is attached to.

    Attributes:
        idempotency_ttl_s: seconds that an answer is kept after its end; 0: requests are attached to running ones only.
        idempotency_grace_s: seconds that a generation goes on when all its clients have left, so that one that has lost
            its connection comes back to it; 0: it ends with the last of them.
        idempotency_max_entries: answers that are kept, running ones included; beyond that the oldest ended ones are
            forgotten, and where all of them run, a new key is refused with status 429.
        idempotency_max_bytes: bytes that all of them may take; beyond that the oldest ended ones are forgotten, and
            then the longest running one is not kept any more.
    """

    PANEL: ClassVar[str] = "Idempotency keys"

    idempotency_ttl_s: Annotated[float, Meta(ge=0)] = 600.0
    idempotency_grace_s: Annotated[float, Meta(ge=0)] = 30.0
    idempotency_max_entries: Count = 1024
    idempotency_max_bytes: Annotated[int, Meta(ge=65536)] = 64 * 1024 * 1024


class BrowserSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for requests of web pages.

    Attributes:
        allow_host: name under which clients may address a server without API keys, beside localhost, IP addresses and
            the name in --host: llm.example.org, *.example.org for all names below it, * for any; may be given several
            times. With API keys names are checked only where this is given.
        cors_origin: origin whose pages may call, whatever dialect they speak: https://example.org,
            https://*.example.org, http://localhost:* for any port, app://*, null for pages without an origin, * for
            any page, which may then generate but not administer; may be given several times.
    """

    PANEL: ClassVar[str] = "Web pages"

    allow_host: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    cors_origin: tuple[Annotated[str, Meta(min_length=1)], ...] = ()


class KvEventSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the events of the prefix cache, for routers that send requests where their prefix is.

    Attributes:
        kv_events: publish which blocks of prompts are in the prefix cache, as vLLM does. Whoever reads the events
            reads the tokens of prompts, but for those of requests with an API key or a cache salt.
        kv_events_endpoint: ZeroMQ address to publish at; tcp://*:5557 is every interface.
        kv_events_connect: connect to that address, where one reader listens for all servers, instead of listening.
        kv_events_replay: ZeroMQ address at which readers ask for batches that they missed; without it they cannot.
        kv_events_topic: topic of the messages; some routers want kv@POD@MODEL.
        kv_events_kept: batches that are kept for replay, as long as they are at most 64 MiB together.
        kv_events_form: map: events as vLLM sends them since 0.32; array: as it sent them before.
        kv_events_hashes: int: the last 64 bits of a block's name; bytes: all 128.
    """

    PANEL: ClassVar[str] = "Events of the prefix cache"

    kv_events: bool = False
    kv_events_endpoint: str = "tcp://127.0.0.1:5557"
    kv_events_connect: bool = False
    kv_events_replay: str | None = None
    kv_events_topic: str = ""
    kv_events_kept: Count = 10_000
    kv_events_form: Literal["map", "array"] = "map"
    kv_events_hashes: Literal["int", "bytes"] = "int"
