"""Adapter loads of the client, which outlive the engine's process.

Every load has a unique key, which is its name in the process: requests that began with one version of a name finish
with that version, also after a restart of the process, whatever the name means by then.
"""

from __future__ import annotations

import asyncio

import msgspec

from dragoman.core.errors import AdapterNotFound, BadRequest, Conflict, EngineUnavailable, ModelError
from dragoman.engine.block_events import BlockEvent, BlocksStored
from dragoman.engine.messages import AdapterLoaded, AdapterRefused, LoadModel, StubModel
from dragoman.models import AdapterInfo, find_adapter

MAX_NAME_LENGTH = 256


class AdapterLoad(msgspec.Struct, eq=False):
    """One requested adapter. ``info`` is None until the process has it; ``users``: number of unfinished requests."""

    name: str
    key: str
    folder: str
    answer: asyncio.Future[AdapterInfo]
    info: AdapterInfo | None = None
    users: int = 0


class AdapterLoads:
    """Loads by name, for requests, and by key, including unloaded ones that requests still use."""

    def __init__(self) -> None:
        self._by_name: dict[str, AdapterLoad] = {}
        self._by_key: dict[str, AdapterLoad] = {}
        self._count = 0

    def infos(self) -> dict[str, AdapterInfo]:
        """Return the adapters that requests may name, in the order in which they were loaded."""
        return {name: load.info for name, load in self._by_name.items() if load.info is not None}

    def begin(self, name: str, *, replace: bool = False) -> AdapterLoad:
        """Register a load of that name, for the process to answer. ``replace``: the name means the loaded adapter until
        the load is finished. Raises BadRequest, and Conflict where the name is taken."""
        check_name(name)
        taken = self._by_name.get(name)
        if taken is not None and (taken.info is None or not replace):
            raise Conflict(f"The adapter '{name}' is already loaded; unload it first.", param="name")
        self._count += 1
        load = AdapterLoad(name, f"{name}#{self._count}", "", asyncio.get_running_loop().create_future())
        self._by_key[load.key] = load
        if taken is None:
            self._by_name[name] = load
        return load

    def make_room(self, load: AdapterLoad, slots: int) -> str | None:
        """Return the key of the adapter that a load replaces, for the process to free, where its slot is the only one
        that the load can have."""
        taken = self._by_name.get(load.name, load)
        if taken is load or taken.users or len(self._by_key) <= slots:
            return None
        return self.unload(load.name)

    def finish(self, load: AdapterLoad, info: AdapterInfo) -> str | None:
        """Let requests name a loaded adapter. Return the key of the one that it replaced if the process can free it.
        Raises Conflict where the name was taken meanwhile."""
        taken = self._by_name.get(load.name, load)
        if taken is not load and taken.info is None:
            raise Conflict(f"Another adapter '{load.name}' is being loaded.", param="name")
        load.info = info
        self._by_name[load.name] = load
        return None if taken is load else self._drop_unused(taken)

    def forget(self, load: AdapterLoad) -> None:
        """Remove a load that failed or has no users any more."""
        if self._by_name.get(load.name) is load:
            del self._by_name[load.name]
        self._by_key.pop(load.key, None)
        if load.answer.done() and not load.answer.cancelled():
            load.answer.exception()  # marks it as retrieved, even where nothing awaited it

    def key(self, name: str) -> str:
        """Return the key of an adapter that requests may name. Raises AdapterNotFound."""
        return self._loaded(name).key

    def acquire(self, name: str) -> str:
        """Add a request to the adapter's users; return its key. Raises AdapterNotFound."""
        load = self._loaded(name)
        load.users += 1
        return load.key

    def release(self, key: str) -> str | None:
        """Remove a finished request from the users. Return the key if the process can free the adapter."""
        load = self._by_key.get(key)
        if load is None:
            return None
        load.users -= 1
        return self._drop_unused(load)

    def unload(self, name: str) -> str | None:
        """Remove the adapter for new requests. Return the key if the process can free it. Raises AdapterNotFound."""
        load = self._loaded(name)
        del self._by_name[name]
        return self._drop_unused(load)

    def on_answer(self, message: AdapterLoaded | AdapterRefused) -> bool:
        """Handle an answer of the process. Returns False if no load waits for it; a loaded adapter must then be
        unloaded."""
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

    def on_disconnect(self) -> None:
        """Fail all pending loads after the process's end."""
        for load in self._by_key.values():
            if not load.answer.done():
                load.answer.set_exception(EngineUnavailable("the engine process died while it loaded the adapter"))

    def to_restore(self) -> list[AdapterLoad]:
        """Return the loads that a new process must repeat before requests continue, each with a new answer to await."""
        loads = [load for load in self._by_key.values() if load.info is not None]
        for load in loads:
            load.answer = asyncio.get_running_loop().create_future()
        return loads

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
    """Raise BadRequest for an invalid adapter name."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        raise BadRequest(f"An adapter's name must have 1 to {MAX_NAME_LENGTH} printable characters.", param="name")


async def adapter_folder(model: StubModel | LoadModel, source: str) -> str:
    """Return the adapter's folder, downloaded here if needed, as the engine process is busy with steps."""
    if not isinstance(model, LoadModel):
        return source
    return str(await asyncio.to_thread(find_adapter, source, token=model.settings.token))


def with_adapter_name(event: BlockEvent) -> BlockEvent:
    """Return the event with the name of its adapter in place of the key of its load."""
    if isinstance(event, BlocksStored) and event.adapter is not None:
        return msgspec.structs.replace(event, adapter=event.adapter.rpartition("#")[0])
    return event
