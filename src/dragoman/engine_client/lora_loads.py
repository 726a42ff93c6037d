"""What the client keeps of adapters, so that they outlive the engine's process.

Every load has a key of its own, which is what the process knows it by: requests that began with one version of a name
finish with that version, also in the next life of the process, whatever the name has come to mean since.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from dragoman.core.errors import AdapterNotFound, BadRequest, Conflict, EngineUnavailable, ModelError
from dragoman.engine.messages import AdapterLoaded, AdapterRefused
from dragoman.models import AdapterInfo

MAX_NAME_LENGTH = 256


@dataclass(slots=True, eq=False)
class AdapterLoad:
    """One adapter that was asked for. ``info`` is None until the process has it; ``users`` are unfinished requests."""

    name: str
    key: str
    folder: str
    answer: asyncio.Future[AdapterInfo]
    info: AdapterInfo | None = None
    users: int = 0


class AdapterLoads:
    """By name those that requests may name; by key also those that were unloaded and that requests still run with."""

    def __init__(self) -> None:
        self._by_name: dict[str, AdapterLoad] = {}
        self._by_key: dict[str, AdapterLoad] = {}
        self._count = 0

    def infos(self) -> dict[str, AdapterInfo]:
        """Those that requests may name, in the order in which they were loaded."""
        return {name: load.info for name, load in self._by_name.items() if load.info is not None}

    def begin(self, name: str) -> AdapterLoad:
        """A load of that name, to be asked of the process. Raises BadRequest, and Conflict where there is one."""
        check_name(name)
        if name in self._by_name:
            raise Conflict(f"An adapter '{name}' is loaded already; unload it first.", param="adapter")
        self._count += 1
        load = AdapterLoad(name, f"{name}#{self._count}", "", asyncio.get_running_loop().create_future())
        self._by_name[name] = self._by_key[load.key] = load
        return load

    def forget(self, load: AdapterLoad) -> None:
        """It could not be loaded, or nobody has it any more."""
        if self._by_name.get(load.name) is load:
            del self._by_name[load.name]
        self._by_key.pop(load.key, None)
        if load.answer.done() and not load.answer.cancelled():
            load.answer.exception()  # heard, even where nobody waited for it

    def enter(self, name: str) -> str:
        """One more request runs with the adapter; its key. Raises AdapterNotFound."""
        load = self._loaded(name)
        load.users += 1
        return load.key

    def leave(self, key: str) -> str | None:
        """A request that entered is over. The key, where the process need not keep the adapter any longer."""
        load = self._by_key.get(key)
        if load is None:
            return None
        load.users -= 1
        return self._drop_unused(load)

    def retire(self, name: str) -> str | None:
        """Nobody new gets the adapter. The key, where the process need not keep it. Raises AdapterNotFound."""
        load = self._loaded(name)
        del self._by_name[name]
        return self._drop_unused(load)

    def hear(self, message: AdapterLoaded | AdapterRefused) -> bool:
        """An answer of the process. False: nobody waits for it, and a loaded adapter would stay for ever."""
        key = message.info.name if isinstance(message, AdapterLoaded) else message.name
        load = self._by_key.get(key)
        if load is None:
            return False
        if load.answer.done():
            return True
        if isinstance(message, AdapterRefused):
            load.answer.set_exception(ModelError(message.message))
        else:
            load.answer.set_result(msgspec.structs.replace(message.info, name=load.name))
        return True

    def lose(self) -> None:
        """The process is gone; whoever waits for its answer hears that."""
        for load in self._by_key.values():
            if not load.answer.done():
                load.answer.set_exception(EngineUnavailable("the engine process died while it loaded the adapter"))

    def to_restore(self) -> list[AdapterLoad]:
        """What a new process has to load before requests go on, each with a new answer to wait for."""
        kept = [load for load in self._by_key.values() if load.info is not None]
        for load in kept:
            load.answer = asyncio.get_running_loop().create_future()
        return kept

    def _loaded(self, name: str) -> AdapterLoad:
        load = self._by_name.get(name)
        if load is None or load.info is None:
            raise AdapterNotFound(f"The adapter '{name[:MAX_NAME_LENGTH]}' is not loaded.", param="adapter")
        return load

    def _drop_unused(self, load: AdapterLoad) -> str | None:
        if load.users or self._by_name.get(load.name) is load:
            return None
        del self._by_key[load.key]
        return load.key


def check_name(name: str) -> None:
    """BadRequest where an adapter cannot be called that."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise BadRequest(f"An adapter's name has 1 to {MAX_NAME_LENGTH} printable characters.", param="adapter")
