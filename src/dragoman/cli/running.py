"""The second half of ``dragoman serve``, once the engine's process is started: serve until a signal.

Apart from ``serve``, which checks the options before any of this is imported.
"""

from __future__ import annotations

import logging
import time
from urllib.parse import urlsplit

from dragoman.cli import console
from dragoman.cli.first_request import OPENAI_DIALECTS, example, reachable
from dragoman.cli.loading_bar import LoadingBar
from dragoman.cli.logs import Logs
from dragoman.cli.remote_engine import ORDER, remote_engine, served_alone
from dragoman.cli.serve_settings import ServeSettings
from dragoman.cli.tunnel import Tunnel
from dragoman.core.serving import ModelCard
from dragoman.dialects import made_dialects
from dragoman.engine.messages import WorkerSettings
from dragoman.engine_client.prespawn import PrespawnedWorker
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.engine_client.vllm.model import RemoteModel
from dragoman.models import ModelDescription, ModelInfo
from dragoman.models.topology import Placement
from dragoman.server.accounts import Accounts
from dragoman.server.keys import Keyring
from dragoman.server.ledger import LEDGER_FILE, Ledger
from dragoman.server.lifecycle import Server, run_until_signal, serve
from dragoman.server.tracing import Tracing
from dragoman.serving.recorder import recorder_of
from dragoman.serving.runtime import Runtime

log = logging.getLogger("dragoman.server")

ORIGIN_OPTIONS = ("cors_allow_origin", "locallab_cors_origins")
"""Options of single dialects."""


def run(
    settings: ServeSettings,
    worker: WorkerSettings,
    described: ModelDescription | RemoteModel,
    placement: Placement | None = None,
    *,
    logs: Logs,
    keyring: Keyring,
    tunnel: Tunnel | None,
    tracing: Tracing | None,
    prespawned: PrespawnedWorker | None = None,
    remote: VllmClient | None = None,
    started: float,
) -> int:
    """Serve, and return the server's exit code. Raises ModelError or DragomanError before the port opens.

    ``worker``: the settings for the engine's process, ``prespawned``; ``described``: its model;
    ``placement``: of its threads, where they are ours. ``remote``: the engine,
    where it runs elsewhere. ``started``: when the command began, on the clock of ``time.monotonic``.
    """
    bar = LoadingBar()

    def opened(server: Server, address: str) -> None:
        bar.close()
        runtime = server.runtime
        server.metrics.watch(dict, lambda: {"log_lines_dropped": logs.writer.dropped})
        dialect = settings.server.dialect
        if remote is None:
            rows = started_plan(runtime, address, str(placement), dialect)
        else:
            rows = remote_plan(runtime, address, remote, dialect)
        if keyring:
            rows["API keys"] = str(len(keyring))
        if tunnel is not None:
            rows["public"] = tunnel.open(urlsplit(address).port or 80)
        for note in openings(settings, has_keys=bool(keyring)):
            log.warning("%s", note)
        if logs.is_json:
            log.info("ready", extra={"fields": rows | {"seconds": round(time.monotonic() - started, 3)}})
            return
        console.say(*(f"{console.bold(f'{name:>10}')}  {text}" for name, text in rows.items()))
        console.say(f"\nReady after {time.monotonic() - started:.1f} s; Ctrl-C stops it. Try it:\n")
        console.say(example(runtime.serving.models()[0], address, dialect, with_key=bool(keyring)) + "\n")

    try:
        with recorder_of(settings.recording) as recorder:
            exit_code = run_until_signal(
                serve(
                    settings.server,
                    worker,
                    described.tokenizer_folder,
                    dialects=made_dialects(settings.dialects),
                    keys=keyring,
                    browsers=settings.browsers,
                    catalog=settings.catalog,
                    adapters=settings.adapters,
                    continuing=settings.continuing,
                    responses=settings.responses,
                    batches=settings.batches,
                    work=settings.work,
                    sampling=settings.sampling,
                    network=settings.network,
                    accounts=accounts_of(settings, has_keys=bool(keyring)),
                    observers=() if tracing is None else (tracing,),
                    progress=bar,
                    opened=opened,
                    prespawned=prespawned,
                    recorder=recorder,
                    remote=remote,
                    kv_events=settings.kv_events,
                    idempotency=settings.idempotency,
                )
            )
    finally:
        bar.close()
        if tunnel is not None:
            tunnel.close()
        if tracing is not None:
            tracing.close()
    return exit_code


def run_remote(
    settings: ServeSettings,
    *,
    logs: Logs,
    keyring: Keyring,
    tunnel: Tunnel | None,
    tracing: Tracing | None,
    started: float,
) -> int:
    """Serve a model that vLLM servers compute, as ``run`` does."""
    engine = remote_engine(settings)
    if keyring:
        console.remarks([ORDER])
    return run(
        served_alone(settings),
        engine.worker,
        engine.described,
        logs=logs,
        keyring=keyring,
        tunnel=tunnel,
        tracing=tracing,
        remote=engine.client,
        started=started,
    )


def accounts_of(settings: ServeSettings, *, has_keys: bool) -> Accounts:
    """Return the accounts of callers: with a ledger on disk, where the settings say so."""
    limits = settings.limits
    kept = limits.ledger == "disk" or (limits.ledger == "auto" and has_keys)
    ledger = Ledger(settings.continuing.folder / LEDGER_FILE if kept else None, keep_days=limits.ledger_days)
    return Accounts(ledger, by_holder=limits.holder_metrics)


def openings(settings: ServeSettings, *, has_keys: bool) -> tuple[str, ...]:
    """Return a sentence for each option that may give more access than the operator intends."""
    found = []
    tgi = settings.dialects.get("tgi")
    own = [getattr(each, name, ()) for each in settings.dialects.values() for name in ORIGIN_OPTIONS]
    if any("*" in origins for origins in (settings.browsers.cors_origin, *own)):
        whose = "with an API key " if has_keys else ""
        found.append(f"--cors-origin *: every web page that somebody here opens may generate {whose}on this server")
    if "*" in settings.browsers.allow_host and not has_keys:
        found.append(
            "--allow-host *: a web page may have its own name point here, and then do all that programs may do"
        )
    route, insecure = getattr(tgi, "aip_predict_route", None), getattr(tgi, "insecure_predict", False)
    if route and has_keys:
        if insecure:
            found.append(f"--insecure-predict: POST {route} generates for everybody, without an API key")
        else:
            found.append(
                f"POST {route} asks for an API key, which Vertex AI does not send: --insecure-predict opens it"
            )
    return tuple(found)


def started_plan(runtime: Runtime, address: str, threads: str, dialect: str) -> dict[str, str]:
    """Return a short description of the running server. ``dialect``: the operator's choice."""
    info, model = runtime.info, runtime.info.model
    kv_tokens = info.num_blocks * info.block_size
    weights, kv = console.size(model.weight_bytes), console.size(info.kv_bytes)
    names = ", ".join(card.name for card in runtime.serving.models())
    rows = {
        "model": f"{names} ({model.architecture}, {console.count(model.parameter_count)} parameters)",
        "precision": f"{model.precision}, keys and values in {model.kv_precision}",
        "memory": f"{weights} of weights, {kv} for keys and values of {kv_tokens:,} tokens",
        **({} if info.draft is None else {"draft model": _draft_words(info.draft)}),
        "context": f"{info.max_context:,} tokens, {info.max_running} sequences at once",
        "threads": threads,
    }
    return rows | _where(runtime, address, dialect)


def _draft_words(draft: ModelInfo) -> str:
    parameters = console.count(draft.parameter_count)
    return f"{draft.name} ({parameters} parameters), {draft.precision}, {console.size(draft.weight_bytes)} of weights"


def remote_plan(runtime: Runtime, address: str, remote: VllmClient, dialect: str) -> dict[str, str]:
    """Return the same of a server whose model is computed by vLLM."""
    info = runtime.info
    names = ", ".join(card.name for card in runtime.serving.models())
    rows = {
        "model": f"{names} ({info.model.architecture})",
        "engine": ", ".join(remote.servers()),
        "context": f"{info.max_context:,} tokens",
    }
    return rows | _where(runtime, address, dialect)


def answering(card: ModelCard) -> dict[str, str]:
    """Return how a model's answers are sampled, and whether it chats."""
    rows = {"sampling": card.sampling.words() or "from the model's own distribution"}
    if card.generates and not card.has_chat_template:
        rows["chat"] = "none: the model has no chat template (--chat-template gives it one)"
    return rows


def _where(runtime: Runtime, address: str, dialect: str) -> dict[str, str]:
    """Return how it samples, and its addresses."""
    rows = answering(runtime.serving.model(None)) | {"address": address}
    if not address.startswith("unix:"):
        near = reachable(address)
        if dialect in OPENAI_DIALECTS:
            rows["OpenAI API"] = f"{near}/v1"
        rows["web page"] = f"{near}/  (documents at /docs)"
    return rows
