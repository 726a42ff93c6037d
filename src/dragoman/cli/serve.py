"""``dragoman serve``: start, say what was started, and serve until told to stop."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import typer
from rich.markup import escape

from dragoman.cli import console
from dragoman.cli.engine import thread_count, worker_settings
from dragoman.cli.loading_bar import LoadingBar
from dragoman.cli.logs import LogSettings, configure_logs
from dragoman.cli.settings import MachineSettings, ModelChoice
from dragoman.cli.tunnel import Tunnel, TunnelSettings
from dragoman.dialects import made_dialects
from dragoman.engine.settings import SchedulerSettings
from dragoman.models import ModelSettings
from dragoman.models import plan as plan_memory
from dragoman.server.adapter_shelf import AdapterSettings
from dragoman.server.continuing import ContinueSettings
from dragoman.server.keys import Keyring, KeySettings, first_key, keyring_of, reaches_others
from dragoman.server.lifecycle import serve as serve_until_told
from dragoman.server.settings import ServerSettings
from dragoman.server.shelf import CatalogSettings
from dragoman.server.tracing import TracingSettings, tracing_of

if TYPE_CHECKING:
    from dragoman.core.serving import ModelCard
    from dragoman.server.opening import House


log = logging.getLogger("dragoman.server")


def serve(
    choice: ModelChoice,
    settings: ModelSettings,
    scheduling: SchedulerSettings,
    machine: MachineSettings,
    server: ServerSettings,
    keys: KeySettings,
    catalog: CatalogSettings,
    adapters: AdapterSettings,
    continuing: ContinueSettings,
    logs: LogSettings,
    traces: TracingSettings,
    way_in: TunnelSettings,
    dialects: Mapping[str, msgspec.Struct],
) -> None:
    """Raises ModelError or DragomanError before the port opens; afterwards typer.Exit with the server's exit code."""
    configure_logs(logs)
    started = time.monotonic()
    tracing = tracing_of(traces)
    made, keyring = made_dialects(dialects), open_keyring(keys, server.host, continuing.folder)
    tunnel = Tunnel(way_in, has_keys=bool(keyring)) if way_in.public else None
    worker, described = worker_settings(choice.model, settings, scheduling, machine)
    per_token = plan_memory(described, settings).kv_bytes_per_token

    bar = LoadingBar()

    def opened(house: House, address: str) -> None:
        bar.close()
        rows = started_plan(house, address, thread_count(machine), per_token)
        if keyring:
            rows["API keys"] = str(len(keyring))
        if tunnel is not None:
            rows["public"] = tunnel.open(urlsplit(address).port or 80)
        if logs.json_output:
            log.info("ready", extra={"fields": rows | {"seconds": round(time.monotonic() - started, 3)}})
            return
        for name, text in rows.items():
            console.notes().print(f"[bold]{name:>10}[/]  {escape(text)}")
        console.notes().print(f"\nReady after {time.monotonic() - started:.1f} s. Try it:\n")
        console.notes().print(escape(example(house.serving.models()[0], address, bool(keyring))) + "\n")

    folder = described.tokenizer_folder
    try:
        exit_code = serve_until_told(
            server,
            worker,
            folder,
            dialects=made,
            keys=keyring,
            catalog=catalog,
            adapters=adapters,
            continuing=continuing,
            observers=() if tracing is None else (tracing,),
            progress=bar,
            opened=opened,
        )
    finally:
        bar.close()
        if tunnel is not None:
            tunnel.close()
        if tracing is not None:
            tracing.close()
    raise typer.Exit(exit_code)


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


def open_keyring(keys: KeySettings, host: str, folder: Path) -> Keyring:
    """The keys that callers must have. A first start that others can reach, and that was given none, makes one and says
    it: at once, for what comes later may fail. ``folder``: where its digest is kept."""
    keyring = keyring_of(keys)
    if keyring or keys.insecure or not reaches_others(host):
        return keyring
    keyring, key = first_key(folder / "api-key")
    if key is not None:
        text = f"API key, shown this once: {key}\n(--api-key sets another one, --insecure does without; see {folder})\n"
        console.notes().print(text, markup=False)
    return keyring


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
