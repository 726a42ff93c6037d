"""The adapters that this server may load, by the names that clients use for them.

As with models, a client's name is only looked up: it becomes a path only inside the folder that the operator offers,
and a repository of the hub only where the operator lets clients download.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from dragoman.core.catalog import listed
from dragoman.core.errors import AdapterNotFound, Conflict, DragomanError, ModelError
from dragoman.core.user_folders import expand_user
from dragoman.models.adapters.source import find_adapter
from dragoman.serving.settings import AdapterSettings

MAX_OFFERS = 1024
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_CONFIG = "adapter_config.json"


class AdapterSource(NamedTuple):
    """An adapter under a name: a folder, or a repository of the hub at a revision."""

    name: str
    source: str
    revision: str | None = None


class AdapterRegistry:
    """All adapters that may be loaded. ``allow_downloads``: clients may name any repository of the hub. ``token``:
    of the hub. ``model_names``: the names of all models, which no adapter may have: requests would get the wrong one.
    """

    def __init__(
        self,
        settings: AdapterSettings,
        *,
        allow_downloads: bool = False,
        token: str | None = None,
        model_names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Raises DragomanError for an invalid list."""
        self._token = token
        self._model_names = model_names
        self.first = read_list(settings.lora_adapters)
        self._folder = None if settings.adapters_folder is None else expand_user(settings.adapters_folder)
        self._allow_downloads = allow_downloads

    def check_name(self, name: str) -> None:
        """Raise Conflict where a model has the name of an adapter that is to be loaded."""
        if name in self._model_names():
            raise Conflict(f"'{name}' is the name of a model.", param="name")

    def check_first(self) -> None:
        """Raise ModelError where a model has the name of an adapter of the start."""
        for adapter in self.first:
            try:
                self.check_name(adapter.name)
            except Conflict:
                raise ModelError(f"--lora-adapters: {adapter.name} is the name of a model") from None

    def sources(self) -> Iterator[AdapterSource]:
        """Return the adapters of the start, and those in the folder; reads the folder."""
        yield from self.first
        named = {adapter.name for adapter in self.first}
        for path in self._inside():
            if path.name not in named:
                yield AdapterSource(path.name, str(path))

    def find(self, name: str, source: str | None = None) -> AdapterSource:
        """Return the source of the adapter ``name``. Reads the folder. Raises AdapterNotFound."""
        param = "name" if source is None else "source"
        if source is None or source == name:
            for adapter in self.sources():
                if adapter.name == name:
                    return adapter
            source = name
        for path in self._inside():
            if source in (path.name, str(path), str(path.resolve())):
                return AdapterSource(name, str(path))
        if self._allow_downloads and _HUB_ID.fullmatch(source) and not Path(source).exists():
            return AdapterSource(name, source)
        there = listed(adapter.name for adapter in self.sources()) or "none"
        raise AdapterNotFound(f"There is no adapter '{source[:256]}' to load. There are: {there}.", param=param)

    def fetch(self, adapter: AdapterSource) -> Path:
        """Return the folder with the adapter's files, downloaded where they are missing. Raises ModelError."""
        return find_adapter(adapter.source, revision=adapter.revision, token=self._token)

    def _inside(self) -> list[Path]:
        if self._folder is None:
            return []
        try:
            found = sorted(path for path in self._folder.iterdir() if (path / _CONFIG).is_file())
        except OSError:
            return []
        return found[:MAX_OFFERS]


def read_list(text: str | None) -> tuple[AdapterSource, ...]:
    """Return the adapters of ``--lora-adapters``. Raises DragomanError naming an invalid one."""
    sources = tuple(_read(item) for item in text.split(",")) if text and text.strip() else ()
    names = [adapter.name for adapter in sources]
    for name in names:
        if names.count(name) > 1:
            raise DragomanError(f"--lora-adapters: two adapters are called {name}")
    return sources


def _read(item: str) -> AdapterSource:
    """Return the adapter of ``repository``, ``repository@revision``, ``name=source`` or ``name=source@revision``."""
    name, equals, rest = item.strip().partition("=")
    source, at, revision = (rest if equals else name).partition("@")
    name = name if equals else source
    if item.count("=") > 1 or item.count("@") > 1 or not (name and source and (revision or not at)):
        raise DragomanError(f"Invalid LoRA adapter format: {item}")
    return AdapterSource(name, source, revision or None)
