"""Reading adapters beside the steps: files are read and packed in a thread, while tokens go on."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import NamedTuple

from dragoman.core.errors import DragomanError
from dragoman.engine.lora_slots import Adapters, SlotLocation
from dragoman.engine.messages import AdapterLoaded, AdapterRefused
from dragoman.models import AdapterInfo


class _Read(NamedTuple):
    place: SlotLocation
    future: Future[AdapterInfo]


class AdapterReader:
    """Reads one adapter after the other. ``fileno`` can be polled: it is readable when ``finished`` has something."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters
        self._executor: ThreadPoolExecutor | None = None
        self._done: SimpleQueue[_Read] = SimpleQueue()
        self._bell, self._rope = os.pipe()

    def fileno(self) -> int:
        return self._bell

    def begin(self, name: str, source: str) -> AdapterRefused | None:
        """Start with one. The answer where there is nothing to read."""
        try:
            place = self._adapters.reserve(name)
        except DragomanError as error:
            return AdapterRefused(name, error.message)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        future = self._executor.submit(self._adapters.read, place, source)
        future.add_done_callback(lambda future: self._ring(_Read(place, future)))
        return None

    def _ring(self, read: _Read) -> None:
        """In the thread."""
        self._done.put(read)
        os.write(self._rope, b"\0")

    def finished(self) -> list[AdapterLoaded | AdapterRefused]:
        """What has been read since the last call, or why not. From now on requests may name it."""
        answers: list[AdapterLoaded | AdapterRefused] = []
        for _ in os.read(self._bell, 4096):
            place, future = self._done.get()
            try:
                info = future.result()
            except DragomanError as error:
                self._adapters.give_back(place)
                answers.append(AdapterRefused(place.name, error.message))
            except Exception as error:
                self._adapters.give_back(place)
                answers.append(AdapterRefused(place.name, f"{type(error).__name__}: {error}"))
            else:
                self._adapters.keep(place, info)
                answers.append(AdapterLoaded(info))
        return answers
