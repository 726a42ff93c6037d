"""Settings of a cluster: the arguments of the Serve application, and the options of ``dragoman cluster serve``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.core.errors import DragomanError
from dragoman.server.keys import reaches_others
from dragoman.server.settings import DialectName

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
OWN_OPTIONS = (
    "--host",
    "--port",
    "--uds",
    "--cluster-secret-file",
    "--metrics-port",
    "--tls-cert",
    "--tls-key",
    "--tls-key-password-file",
    "--public",
)
"""Options of ``dragoman serve`` that a replica gets from its cluster."""


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Attributes:
    model: folder in Hugging Face layout, or hub id; None: the embedded model.
    options: further options of ``dragoman serve``, for each replica.
    replicas: how many; with ``max_replicas`` the number to begin with.
    min_replicas, max_replicas: the number follows the load between these; None: it stays as it is.
    waiting_per_replica: waiting requests of one replica that have one more started.
    blocks_used: share of the cache's blocks in use that has one more started.
    downscale_delay_s: seconds of less load before a replica is ended.
    ingress_on_head: the ingress runs on the head node of the Ray cluster; else on any.
    cpus, gpus: that Ray reserves for one replica.
    spill: requests by which the replica with the longest prefix may be busier than the least busy one.
    by_prefix: False chooses replicas at random.
    host, port: of the ingress's own listener; port None: only Serve's proxy leads to it.
    replica_host: address that replicas listen on; None: that of their node in the Ray cluster.
    replica_ports: the first and the last port that replicas may have; None: any free one.
    secret: of the cluster; None: one is made, and all of the application has it.
    start_s: seconds that a replica may take until it can generate. drain_s: that running answers get at its end.
    wait_s: seconds that a new request waits for a replica. continue_s: that a begun one waits for another.
    max_body_bytes: of one request.
    insecure: callers on other machines need no API key.
    dialect: as of ``dragoman serve``: whose words the ingress uses where nothing says which dialect a client speaks.
    tls_cert, tls_key: files of the certificate of the ingress's own listener.
    command: starts a replica, in place of ``dragoman serve``; for measurements.
    """

    model: str | None = None
    options: tuple[str, ...] = ()
    replicas: Count = 1
    min_replicas: Count | None = None
    max_replicas: Count | None = None
    waiting_per_replica: Annotated[float, Meta(gt=0)] = 4.0
    blocks_used: Annotated[float, Meta(gt=0, le=1)] = 0.8
    downscale_delay_s: Seconds = 300.0
    ingress_on_head: bool = True
    cpus: Annotated[float, Meta(ge=0)] = 1.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    spill: Annotated[int, Meta(ge=0)] = 8
    by_prefix: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] | None = None
    replica_host: str | None = None
    replica_ports: tuple[int, int] | None = None
    secret: Annotated[str, Meta(min_length=16)] | None = None
    start_s: Seconds = 600.0
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    wait_s: Annotated[float, Meta(ge=0)] = 5.0
    continue_s: Annotated[float, Meta(ge=0)] = 60.0
    max_body_bytes: Count = 4 * 1024 * 1024
    insecure: bool = False
    dialect: DialectName = "openai"
    tls_cert: str | None = None
    tls_key: str | None = None
    command: tuple[str, ...] | None = None

    @property
    def has_keys(self) -> bool:
        """Whether callers need API keys."""
        return any(option.startswith("--api-key") for option in self.options)

    def check(self) -> None:
        """Raise DragomanError for settings that contradict each other."""
        for option in self.options:
            name = option.partition("=")[0]
            if name in OWN_OPTIONS or name == "-p":
                raise DragomanError(f"{name} is not for replicas: the cluster chooses it")
        if (self.min_replicas is None) != (self.max_replicas is None):
            raise DragomanError("min_replicas and max_replicas belong together")
        if self.min_replicas is not None and self.max_replicas is not None and self.min_replicas > self.max_replicas:
            raise DragomanError(f"min_replicas ({self.min_replicas}) is more than max_replicas ({self.max_replicas})")
        public = [host for host in (self.port and self.host, self.replica_host) if host and reaches_others(host)]
        if public and not self.has_keys and not self.insecure:
            raise DragomanError(
                f"{public[0]} lets other machines in: options need --api-key-file, or insecure has to be true"
            )
        if self.replica_ports is not None and not 0 < self.replica_ports[0] <= self.replica_ports[1] <= 65535:
            raise DragomanError(f"replica_ports {self.replica_ports}: the first and the last port, from 1 to 65535")


OF_BOTH = frozenset({"drain_s", "max_body_bytes", "dialect", "insecure"})
OF_REPLICAS = OF_BOTH | {"model", "options", "replica_host", "replica_ports", "start_s", "command"}
OF_THE_INGRESS = OF_BOTH | {"host", "port", "wait_s", "continue_s", "tls_cert", "tls_key"}


def part_of(settings: ClusterSettings, names: frozenset[str]) -> dict[str, object]:
    """Return some of the settings as arguments of a deployment: Serve starts it again only where these change."""
    fields: dict[str, object] = msgspec.to_builtins(settings)
    return {name: value for name, value in fields.items() if name in names}


def cluster_settings(arguments: object) -> ClusterSettings:
    """Return the settings in an application's arguments. Raises DragomanError that names the wrong one."""
    try:
        settings = msgspec.convert(arguments, ClusterSettings)
    except msgspec.ValidationError as error:
        raise DragomanError(f"the arguments of dragoman.cluster:app: {error}") from None
    settings.check()
    return settings
