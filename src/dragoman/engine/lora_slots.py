"""The adapters of an engine: which are loaded, in which slot of the model, and which are gone but still in use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.core.errors import AdapterNotFound, Conflict
from dragoman.engine.runner import Runner
from dragoman.models import AdapterInfo


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """An adapter in the model's memory. ``salt``: root of the block hashes of whoever runs with it."""

    name: str
    slot: int
    info: AdapterInfo

    @property
    def salt(self) -> bytes:
        return bytes.fromhex(self.info.digest)


class SlotLocation(NamedTuple):
    """A slot that is kept free for an adapter while it is read."""

    name: str
    slot: int


class Adapters:
    """Loaded adapters by name. One that is unloaded while sequences run with it keeps its slot until the last is over:
    nobody new gets it, and its name is free at once."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._loaded: dict[str, Adapter] = {}
        self._coming: dict[str, SlotLocation] = {}
        self._leaving: list[Adapter] = []
        self._free = list(range(runner.max_adapters - 1, -1, -1))

    def infos(self) -> dict[str, AdapterInfo]:
        """Those that requests may name."""
        return {name: adapter.info for name, adapter in self._loaded.items()}

    def __getitem__(self, name: str) -> Adapter:
        """AdapterNotFound where none of that name is loaded."""
        adapter = self._loaded.get(name)
        if adapter is None:
            raise AdapterNotFound(f"The adapter '{name}' is not loaded.", param="adapter")
        return adapter

    # Coming ----------------------------------------------------------------------------------------------------------

    def load(self, name: str, source: str) -> AdapterInfo:
        """Read and keep one now. Raises ModelError, and Conflict where there is no room or it is there."""
        place = self.reserve(name)
        try:
            info = self.read(place, source)
        except BaseException:
            self.give_back(place)
            raise
        self.keep(place, info)
        return info

    def reserve(self, name: str) -> SlotLocation:
        """A place for an adapter of that name. Raises Conflict where there is no room or it is there."""
        if name in self._loaded or name in self._coming:
            raise Conflict(f"An adapter '{name}' is loaded already.", param="adapter")
        if not self._free:
            used = len(self._loaded) + len(self._coming) + len(self._leaving)
            raise Conflict(f"All {used} places for adapters are taken; unload one first.", param="adapter")
        place = self._coming[name] = SlotLocation(name, self._free.pop())
        return place

    def read(self, place: SlotLocation, source: str) -> AdapterInfo:
        """Bring an adapter's weights into the model's memory; any thread may. Raises ModelError."""
        return self._runner.load_adapter(place.slot, place.name, source)

    def keep(self, place: SlotLocation, info: AdapterInfo) -> None:
        """What was read into the place may be used from now on."""
        del self._coming[place.name]
        self._loaded[place.name] = Adapter(place.name, place.slot, info)

    def give_back(self, place: SlotLocation) -> None:
        """It could not be read."""
        del self._coming[place.name]
        self._free.append(place.slot)

    # Going -----------------------------------------------------------------------------------------------------------

    def unload(self, name: str) -> None:
        """Nobody new gets it. Raises AdapterNotFound. Its memory is freed by ``sweep``."""
        self._leaving.append(self[name])
        del self._loaded[name]

    @property
    def is_any_leaving(self) -> bool:
        return bool(self._leaving)

    def sweep(self, used: Iterable[Adapter | None]) -> None:
        """Free those that were unloaded and are not in use."""
        in_use = {id(adapter) for adapter in used}
        for adapter in [each for each in self._leaving if id(each) not in in_use]:
            self._leaving.remove(adapter)
            self._runner.unload_adapter(adapter.slot)
            self._free.append(adapter.slot)

    def check_integrity(self) -> None:
        """Whether every slot is in one place. AssertionError otherwise."""
        slots = [each.slot for each in (*self._loaded.values(), *self._leaving)]
        slots += [place.slot for place in self._coming.values()]
        assert sorted(slots + self._free) == list(range(self._runner.max_adapters)), "a slot has two owners or none"
