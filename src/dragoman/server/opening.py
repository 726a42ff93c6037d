"""From settings to something that serves: the first model, and the rotation that others may take its place in."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from dragoman.core.errors import EngineUnavailable
from dragoman.core.observer import ObservedStep
from dragoman.engine.client import EngineClient
from dragoman.engine.launch import Launched
from dragoman.engine.messages import EngineInfo, EngineStats, LoadModel, WorkerSettings
from dragoman.models.source import source_name
from dragoman.server.adapter_shelf import AdapterShelf
from dragoman.server.admission import Admission
from dragoman.server.continuing import IN_MEMORY, SqliteContinueStore
from dragoman.server.current import CurrentServing
from dragoman.server.metrics import Metrics
from dragoman.server.resident import ModelOpening, ModelResident
from dragoman.server.rotation import Progress, Rotation
from dragoman.server.settings import AdapterSettings, CatalogSettings, ContinueSettings, ServerSettings
from dragoman.server.shelf import Offer, Shelf, offer_of

ONE_MODEL = CatalogSettings(fixed_model=True)
NO_ADAPTERS = AdapterSettings()


class House:
    """What serves, and on what.

    Attributes:
        serving: for everybody who asks. metrics: what is counted meanwhile.
    """

    def __init__(self, rotation: Rotation[ModelResident], serving: CurrentServing, metrics: Metrics) -> None:
        self.serving = serving
        self.metrics = metrics
        self._rotation = rotation

    @property
    def engine(self) -> EngineClient:
        """The engine of the current model. Raises EngineUnavailable where there is none."""
        return self._rotation.resident().engine

    @property
    def info(self) -> EngineInfo:
        """What the engine of the current model runs. Raises EngineUnavailable where there is none."""
        return self._rotation.resident().info

    def not_ready(self) -> str:
        """Why requests cannot be served now; empty when they can."""
        if not self.serving.admission.is_open:
            return "the server is shutting down"
        try:
            return self._rotation.resident().not_ready()
        except EngineUnavailable as error:
            return error.message

    async def end(self) -> None:
        """End all engines. Every unfinished answer ends with an error."""
        await self._rotation.close()


@asynccontextmanager
async def open_house(
    settings: ServerSettings,
    worker: WorkerSettings,
    folder: Path,
    *,
    catalog: CatalogSettings = ONE_MODEL,
    adapters: AdapterSettings = NO_ADAPTERS,
    continuing: ContinueSettings = IN_MEMORY,
    progress: Progress = lambda stage, share: None,
    launched: Launched | None = None,
) -> AsyncIterator[House]:
    """Load the first model and wait until it can generate. ``worker`` says what its engine loads, ``folder`` holds the
    tokenizer's and the chat template's files; ``progress`` is told how far it is. ``launched``: the process of
    its engine, where that waits already.

    Leaving ends every engine; what is unfinished then fails. Raises ModelError, and DragomanError where what was kept
    of cut generations cannot be used.
    """
    metrics = Metrics()
    admission = Admission(settings.max_waiting)
    kept = SqliteContinueStore(continuing)
    first = _first_offer(settings, worker)
    opening = ModelOpening(
        settings,
        worker,
        folder,
        metrics,
        admission,
        kept,
        AdapterShelf(adapters, allow_downloads=catalog.offer_downloads, token=_hub_token(worker)),
        on_step=lambda before, after: metrics.tell(_step(before, after)),
        launched=launched,
    )
    rotation = Rotation(Shelf(catalog, first), opening, max_waiting=settings.max_waiting)
    with _threads(settings.text_threads):
        try:
            await kept.open()
            await rotation.begin(first, progress)
            house = House(rotation, CurrentServing(rotation, admission, kept), metrics)
            metrics.watch(lambda: _gauges(house, rotation), lambda: _counters(rotation, opening))
            metrics.watch(*kept_counts(kept))
            yield house
        finally:
            await rotation.close()
            await kept.close()


def _first_offer(settings: ServerSettings, worker: WorkerSettings) -> Offer:
    """The model that the server starts with, under the name and the aliases that the operator gives it."""
    if isinstance(worker.model, LoadModel):
        source = worker.model.source
        return offer_of(settings.name or source_name(source), source, settings.alias)
    return Offer(name=settings.name or "stub", source=None, aliases=settings.alias)


def _hub_token(worker: WorkerSettings) -> str | None:
    return worker.model.settings.token if isinstance(worker.model, LoadModel) else None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """The loop's threads for work that takes long: few, and all there from the start."""
    with ThreadPoolExecutor(count, thread_name_prefix="dragoman-text") as executor:
        everyone = threading.Barrier(count)
        list(executor.map(lambda _: everyone.wait(), range(count)))
        asyncio.get_running_loop().set_default_executor(executor)
        yield


def _gauges(house: House, rotation: Rotation[ModelResident]) -> dict[str, float]:
    """Of all models in memory together."""
    sums: dict[str, float] = {}
    for resident in rotation.residents:
        _add(sums, resident.gauges())
    admission = house.serving.admission
    own = {
        "requests_waiting": admission.waiting,
        "requests_running": admission.running,
        "engine_ready": not house.not_ready(),
    }
    return own | sums


def _counters(rotation: Rotation[ModelResident], opening: ModelOpening) -> dict[str, float]:
    """Of all models that are or were in memory."""
    sums = dict(opening.past)
    for resident in rotation.residents:
        _add(sums, resident.counters())
    return sums


def _add(sums: dict[str, float], values: Mapping[str, float]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0) + value


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
