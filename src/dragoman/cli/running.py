"""What ``dragoman serve`` does once the engine's process is on its way: serve until told to stop.

Apart from ``serve``, which is to know what was asked for before any of this is imported.
"""

from __future__ import annotations

import json
import logging
import time
from urllib.parse import urlsplit

from dragoman.cli import console
from dragoman.cli.engine import thread_count
from dragoman.cli.loading_bar import LoadingBar
from dragoman.cli.serve_settings import ServeSettings
from dragoman.cli.tunnel import Tunnel
from dragoman.core.serving import ModelCard
from dragoman.dialects import made_dialects
from dragoman.engine.launch import Launched
from dragoman.engine.messages import WorkerSettings
from dragoman.models import ModelDescription
from dragoman.models import plan as plan_memory
from dragoman.server.keys import Keyring
from dragoman.server.lifecycle import serve, until_told
from dragoman.server.opening import House
from dragoman.server.tracing import Tracing

log = logging.getLogger("dragoman.server")


def run(
    settings: ServeSettings,
    worker: WorkerSettings,
    described: ModelDescription,
    *,
    keyring: Keyring,
    tunnel: Tunnel | None,
    tracing: Tracing | None,
    launched: Launched,
    started: float,
) -> int:
    """Returns the server's exit code; raises ModelError or DragomanError before the port opens.

    ``worker``: what the engine's process, ``launched``, has been told to load; ``described``: that model. ``started``:
    when the command was, on the clock of ``time.monotonic``.
    """
    per_token = plan_memory(described, settings.model).kv_bytes_per_token

    bar = LoadingBar()

    def opened(house: House, address: str) -> None:
        bar.close()
        rows = started_plan(house, address, thread_count(settings.machine), per_token)
        if keyring:
            rows["API keys"] = str(len(keyring))
        if tunnel is not None:
            rows["public"] = tunnel.open(urlsplit(address).port or 80)
        if settings.logs.json_output:
            log.info("ready", extra={"fields": rows | {"seconds": round(time.monotonic() - started, 3)}})
            return
        console.say(*(f"{console.bold(f'{name:>10}')}  {text}" for name, text in rows.items()))
        console.say(f"\nReady after {time.monotonic() - started:.1f} s. Try it:\n")
        console.say(example(house.serving.models()[0], address, bool(keyring)) + "\n")

    try:
        exit_code = until_told(
            serve(
                settings.server,
                worker,
                described.tokenizer_folder,
                dialects=made_dialects(settings.dialects),
                keys=keyring,
                catalog=settings.catalog,
                adapters=settings.adapters,
                continuing=settings.continuing,
                observers=() if tracing is None else (tracing,),
                progress=bar,
                opened=opened,
                launched=launched,
            )
        )
    finally:
        bar.close()
        if tunnel is not None:
            tunnel.close()
        if tracing is not None:
            tracing.close()
    return exit_code


def started_plan(house: House, address: str, threads: int, kv_bytes_per_token: int) -> dict[str, str]:
    """What is being served, in a few lines."""
    info, model = house.info, house.info.model
    kv_tokens = info.num_blocks * info.block_size
    weights, kv = console.size(model.weight_bytes), console.size(kv_tokens * kv_bytes_per_token)
    names = ", ".join(card.name for card in house.serving.models())
    return {
        "model": f"{names} ({model.architecture}, {console.count(model.parameter_count)} parameters)",
        "precision": f"{model.precision}, keys and values in {model.kv_precision}",
        "memory": f"{weights} of weights, {kv} for keys and values of {kv_tokens:,} tokens",
        "context": f"{info.max_context:,} tokens, {info.max_running} sequences at once",
        "threads": str(threads),
        "address": f"{address}  (OpenAI's API at {address}/v1, also {address}/openai/v1)",
    }


def example(card: ModelCard, address: str, with_key: bool) -> str:
    """One request to paste into a terminal."""
    if card.has_chat_template:
        path = "chat/completions"
        question = {"role": "user", "content": "What is the capital of France?"}
        body = json.dumps({"model": card.name, "messages": [question]})
    else:
        path = "completions"
        body = json.dumps({"model": card.name, "prompt": "Once upon a time", "max_tokens": 64})
    key = ' -H "Authorization: Bearer $DRAGOMAN_API_KEY"' if with_key else ""
    return f"curl {address}/v1/{path}{key} -H 'Content-Type: application/json' -d '{body}'"
