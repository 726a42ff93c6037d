"""From settings to something that serves: the engine's process, the text side, and the two joined."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from dragoman.core.observer import ObservedStep
from dragoman.core.serving import ModelCard
from dragoman.engine.client import EngineClient, State
from dragoman.engine.messages import EngineInfo, EngineStats, WorkerSettings
from dragoman.server.continuing import IN_MEMORY, ContinueSettings, SqliteContinueStore
from dragoman.server.metrics import Metrics
from dragoman.server.model import ServedModel
from dragoman.server.serving import EngineServing
from dragoman.server.settings import ServerSettings
from dragoman.text import ChatTemplate, Tokenizer
from dragoman.text.template_names import template_names
from dragoman.text.tool_calls import reasoning_of, tool_calls_of


class House(NamedTuple):
    """A started engine and what serves on it."""

    engine: EngineClient
    info: EngineInfo
    serving: EngineServing
    metrics: Metrics

    def not_ready(self) -> str:
        """Why requests cannot be served now; empty when they can."""
        if not self.serving.admission.is_open:
            return "the server is shutting down"
        health = self.engine.health()
        return "" if health.state is State.READY else health.message or f"the engine is {health.state}"


@asynccontextmanager
async def open_house(
    settings: ServerSettings, worker: WorkerSettings, folder: Path, *, continuing: ContinueSettings = IN_MEMORY
) -> AsyncIterator[House]:
    """Start the engine and wait until it can generate. ``folder`` holds the tokenizer's and the chat template's files.

    Leaving ends the engine; what is unfinished then fails. Raises ModelError, and DragomanError where what was kept of
    cut generations cannot be used.
    """
    engine = EngineClient(worker)
    metrics = Metrics()
    kept = SqliteContinueStore(continuing)
    with _threads(settings.text_threads):
        # The process loads weights for as long as the tokenizer takes, or longer.
        starting = asyncio.create_task(engine.start())
        template: ChatTemplate | None = None
        serving: EngineServing | None = None
        try:
            await kept.open()
            tokenizer = await asyncio.to_thread(Tokenizer.load, folder)
            template = await asyncio.to_thread(ChatTemplate.load, folder, tokenizer.special_tokens)
            await asyncio.to_thread(lambda: tokenizer.token_table)
            info = await starting
            model = served_model(settings, info, tokenizer, template)
            serving = EngineServing(
                engine,
                model,
                metrics,
                max_waiting=settings.max_waiting,
                timeout_s=settings.generation_timeout_s,
                continuing=kept,
            )
            engine.teach(model.vocabulary)
            house = House(engine, info, serving, metrics)
            metrics.watch(lambda: _gauges(house), lambda: _counters(house))
            metrics.watch(*kept_counts(kept))
            engine.on_step = lambda before, after: metrics.tell(_step(before, after))
            yield house
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await engine.close()
            await kept.close()
            if serving is not None:
                serving.close()
            if template is not None:
                template.close()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The loop's threads for work that takes long: few, and all there from the start."""
    with ThreadPoolExecutor(count, thread_name_prefix="dragoman-text") as executor:
        everyone = threading.Barrier(count)
        list(executor.map(lambda _: everyone.wait(), range(count)))
        asyncio.get_running_loop().set_default_executor(executor)
        yield


def served_model(
    settings: ServerSettings, info: EngineInfo, tokenizer: Tokenizer, template: ChatTemplate
) -> ServedModel:
    """The engine's model under the names and with the text abilities that it has here."""
    room = min(info.max_context, info.num_blocks * info.block_size)
    names = template_names(template.source)
    card = ModelCard(
        name=settings.name or info.model.name,
        created=int(time.time()),
        context_tokens=room,
        vocab_size=info.vocab_size,
        hidden_size=info.model.hidden_size,
        precision=info.model.precision,
        fingerprint=info.model.fingerprint,
        has_chat_template=template.available,
        has_fill_tokens=tokenizer.fill is not None,
        has_bos=tokenizer.bos_id is not None,
        template_variables=names.variables,
        template_members=names.members,
        tool_calls=tool_calls_of(template, tokenizer),
        reasoning=reasoning_of(template, tokenizer),
    )
    return ServedModel(
        card=card,
        tokenizer=tokenizer,
        template=template,
        context_tokens=room,
        vocab_size=info.vocab_size,
        eos_ids=tuple(dict.fromkeys((*tokenizer.eos_ids, *info.model.eos_token_ids))),
        aliases=settings.alias,
    )


def _gauges(house: House) -> dict[str, float]:
    stats, admission = house.engine.stats(), house.serving.admission
    if not stats.blocks:  # before the first step of a process
        stats = msgspec.structs.replace(stats, blocks=house.info.num_blocks, free_blocks=house.info.num_blocks)
    return {
        "requests_waiting": admission.waiting,
        "requests_running": admission.running,
        "engine_ready": not house.not_ready(),
        "sequences_running": stats.running,
        "sequences_waiting": stats.waiting,
        "kv_blocks": stats.blocks,
        "kv_tokens": stats.blocks * house.info.block_size,
        "kv_blocks_free": stats.free_blocks,
        "kv_blocks_used": stats.blocks - stats.free_blocks,
        "kv_blocks_cached": stats.cached_blocks,
    }


def kept_counts(kept: SqliteContinueStore) -> tuple[Callable[[], dict[str, float]], Callable[[], dict[str, float]]]:
    """Gauges and counters of the cut generations that are kept."""

    def gauges() -> dict[str, float]:
        return {"continue_keys": kept.keys, "continue_tokens": kept.tokens}

    def counters() -> dict[str, float]:
        return {f"continue_{name}": getattr(kept, name) for name in ("hits", "misses", "expired", "evicted", "waits")}

    return gauges, counters


def _step(before: EngineStats, after: EngineStats) -> ObservedStep:
    """What happened between two counts."""
    return ObservedStep(
        seconds=after.busy_s - before.busy_s,
        running=after.running,
        waiting=after.waiting,
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        generated_tokens=after.generated_tokens - before.generated_tokens,
        drafted_tokens=after.drafted_tokens - before.drafted_tokens,
        accepted_tokens=after.accepted_tokens - before.accepted_tokens,
    )


def _counters(house: House) -> dict[str, float]:
    stats = house.engine.stats()
    return {
        "engine_restarts": stats.restarts,
        "engine_steps": stats.steps,
        "engine_busy_seconds": stats.busy_s,
        "preemptions": stats.preemptions,
        "drafted_tokens": stats.drafted_tokens,
        "accepted_tokens": stats.accepted_tokens,
    }
