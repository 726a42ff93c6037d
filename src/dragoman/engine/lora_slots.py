"""The adapters of an engine: loaded ones by name and slot, and unloaded ones that are still in use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from dragoman.core.errors import AdapterNotFound, Conflict
from dragoman.engine.runner import Runner
from dragoman.models import AdapterInfo


class Adapter(msgspec.Struct, frozen=True, eq=False):
    """An adapter in the model's memory. ``hash_seed``: seed of the block hashes of its sequences."""

    name: str
    slot: int
    info: AdapterInfo

    @property
    def hash_seed(self) -> bytes:
        return bytes.fromhex(self.info.digest)


class SlotLocation(NamedTuple):
    """A slot reserved for an adapter while it is read."""

    name: str
    slot: int


class Adapters:
    """Loaded adapters by name. One that is unloaded while sequences run with it keeps its slot until the last is
    finished: no new request gets it, and its name is free at once."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._loaded: dict[str, Adapter] = {}
        self._loading: dict[str, SlotLocation] = {}
        self._unloading: list[Adapter] = []
        self._free = list(range(runner.max_adapters - 1, -1, -1))

    def infos(self) -> dict[str, AdapterInfo]:
        """Return the adapters that requests may name."""
        return {name: adapter.info for name, adapter in self._loaded.items()}

    def __getitem__(self, name: str) -> Adapter:
        """Return a loaded adapter. Raises AdapterNotFound."""
        adapter = self._loaded.get(name)
        if adapter is None:
            raise AdapterNotFound(f"The adapter '{name}' is not loaded.", param="adapter")
        return adapter

    # Loading ---------------------------------------------------------------------------------------------------------

    def load(self, name: str, source: str) -> AdapterInfo:
        """Read and keep an adapter, synchronously. Raises ModelError, and Conflict where no slot is free or the name is
        taken."""
        place = self.reserve(name)
        try:
            info = self.read(place, source)
        except BaseException:
            self.release(place)
            raise
        self.commit(place, info)
        return info

    def reserve(self, name: str) -> SlotLocation:
        """Reserve a slot for an adapter. Raises Conflict where no slot is free or the name is taken."""
        if name in self._loaded or name in self._loading:
            raise Conflict(f"The adapter '{name}' is already loaded.", param="adapter")
        if not self._free:
            used = len(self._loaded) + len(self._loading) + len(self._unloading)
            raise Conflict(
                f"All {used} adapter slots are in use (--max-adapters); unload an adapter first.", param="adapter"
            )
        place = self._loading[name] = SlotLocation(name, self._free.pop())
        return place

    def read(self, place: SlotLocation, source: str) -> AdapterInfo:
        """Read an adapter's weights into the model's memory; from any thread. Raises ModelError."""
        return self._runner.load_adapter(place.slot, place.name, source)

    def commit(self, place: SlotLocation, info: AdapterInfo) -> None:
        """Make an adapter available after its weights were read."""
        del self._loading[place.name]
        self._loaded[place.name] = Adapter(place.name, place.slot, info)

    def release(self, place: SlotLocation) -> None:
        """Free a reserved slot after reading failed."""
        del self._loading[place.name]
        self._free.append(place.slot)

    # Unloading -------------------------------------------------------------------------------------------------------

    def unload(self, name: str) -> None:
        """Remove an adapter for new requests. Raises AdapterNotFound. Its memory is freed by ``free_unused``."""
        self._unloading.append(self[name])
        del self._loaded[name]

    @property
    def has_unloading(self) -> bool:
        return bool(self._unloading)

    def free_unused(self, used: Iterable[Adapter | None]) -> None:
        """Free unloaded adapters that are not in use."""
        in_use = {id(adapter) for adapter in used}
        for adapter in [each for each in self._unloading if id(each) not in in_use]:
            self._unloading.remove(adapter)
            self._runner.unload_adapter(adapter.slot)
            self._free.append(adapter.slot)

    def check_integrity(self) -> None:
        """Check that every slot has one owner. AssertionError otherwise."""
        slots = [each.slot for each in (*self._loaded.values(), *self._unloading)]
        slots += [place.slot for place in self._loading.values()]
        assert sorted(slots + self._free) == list(range(self._runner.max_adapters)), "a slot has two owners or none"
