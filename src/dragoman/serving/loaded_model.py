"""A model in memory, with its engine's process and its serving."""

from __future__ import annotations

from collections import Counter

import msgspec

from dragoman.core.catalog import CatalogEntry, ModelState
from dragoman.engine.messages import EngineInfo
from dragoman.engine_client.client import EngineClient
from dragoman.engine_client.health import State
from dragoman.engine_client.vllm.client import VllmClient
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.serving import EngineServing
from dragoman.text import ChatTemplate

Engine = EngineClient | VllmClient


class LoadedModel:
    """An engine that can generate, and its serving. Its counts are added to the ``past`` ones when it is closed."""

    def __init__(
        self,
        source: ModelSource,
        engine: Engine,
        info: EngineInfo,
        template: ChatTemplate,
        serving: EngineServing,
        past: dict[str, float],
        past_drafts: Counter[tuple[str, str]],
        adapter_slots: int = 0,
    ) -> None:
        """``adapter_slots``: how many adapters fit into its memory at one time."""
        self._adapter_slots = adapter_slots
        self.engine = engine
        self.info = info
        self.serving = serving
        self._template = template
        self._past, self._past_drafts = past, past_drafts
        card = serving.model(None)
        # Not those of adapters, which come and go.
        own_names = [each.name for each in serving.models() if each.base is None]
        self._entry = CatalogEntry(
            id=source.name,
            aliases=tuple(dict.fromkeys((*source.aliases, *own_names))),
            title=card.name,
            state=ModelState.LOADED,
            progress=1.0,
            architecture=info.model.architecture,
            precision=info.model.precision,
            parameters=info.model.parameter_count,
            context_tokens=card.context_tokens,
            size_bytes=source.size_bytes,
            modified=source.modified,
            memory_bytes=info.model.weight_bytes,
        )

    @property
    def entry(self) -> CatalogEntry:
        return self._entry

    @property
    def pid(self) -> int | None:
        return self.engine.health().pid

    def serves(self, name: str) -> bool:
        return any(name in (card.name, f"{card.name}:latest") for card in self.serving.models())

    def set_threads(self, threads: int) -> None:
        if isinstance(self.engine, EngineClient):
            self.engine.set_threads(threads)

    def not_ready(self) -> str:
        """Return why the engine cannot run requests now; empty when it can."""
        health = self.engine.health()
        return health.message or ("" if health.state is State.READY else f"the engine is {health.state}")

    def gauges(self) -> dict[str, float]:
        """Return the state of the engine, by the names of the metrics."""
        stats = self.engine.stats()
        if not stats.blocks:  # before the first step of a process
            stats = msgspec.structs.replace(stats, blocks=self.info.num_blocks, free_blocks=self.info.num_blocks)
        return {
            "sequences_running": stats.running,
            "sequences_waiting": stats.waiting,
            "engine_seconds_since_step": self.engine.seconds_since_step,
            "kv_blocks": stats.blocks,
            "kv_tokens": stats.blocks * self.info.block_size,
            "kv_blocks_free": stats.free_blocks,
            "kv_blocks_used": stats.blocks - stats.free_blocks,
            "kv_blocks_cached": stats.cached_blocks,
            "image_cache_bytes": stats.image_cache_bytes,
            "disk_cache_records": stats.disk_records,
            "disk_cache_bytes": stats.disk_bytes,
            "adapter_slots": self._adapter_slots,
        }

    def counters(self) -> dict[str, float]:
        """Return the engine's counts, by the names of the metrics."""
        stats = self.engine.stats()
        return {
            "engine_restarts": stats.restarts,
            "engine_steps": stats.steps,
            "engine_busy_seconds": stats.busy_s,
            "engine_read_bytes": stats.read_bytes,
            "engine_generated_tokens": stats.generated_tokens,
            "preemptions": stats.preemptions,
            "drafted_tokens": stats.drafted_tokens,
            "accepted_tokens": stats.accepted_tokens,
            "images_encoded": stats.encoded_images,
            "images_found": stats.found_images,
            "image_seconds": stats.image_s,
            "disk_cache_read_records": stats.disk_read_blocks,
            "disk_cache_read_bytes": stats.disk_read_bytes,
            "disk_cache_written_bytes": stats.disk_written_bytes,
            "disk_cache_damaged": stats.disk_damaged,
            "disk_cache_dropped": stats.disk_dropped,
        }

    def draft_tokens(self) -> Counter[tuple[str, str]]:
        """Return the tokens of the engine's drafts, by source and by whether they were ``accepted`` or ``rejected``."""
        stats, found = self.engine.stats(), Counter[tuple[str, str]]()
        for source, drafted in stats.drafted.items():
            found[source, "accepted"] = accepted = stats.accepted.get(source, 0)
            found[source, "rejected"] = drafted - accepted
        return found

    async def close(self) -> None:
        for name, count in self.counters().items():
            self._past[name] = self._past.get(name, 0.0) + count
        self._past_drafts.update(self.draft_tokens())
        await self.engine.close()
        self.serving.close()
        self._template.close()
