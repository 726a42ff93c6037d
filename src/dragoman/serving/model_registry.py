"""The models that this server may load, by the names that clients use for them.

A client's name is only looked up: it never becomes a path. The registry holds the models that the operator named, those
in a folder that the operator named, those in the hub's cache on this machine, and the embedded model.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from dragoman.core.catalog import listed, without_tag
from dragoman.core.errors import DragomanError, ModelError, ModelNotFound
from dragoman.core.user_folders import expand_user
from dragoman.models.config import read_json
from dragoman.models.gguf.parts import models_among
from dragoman.models.short_names import hub_name
from dragoman.models.source import EMBEDDED, embedded_path, is_gguf_folder, source_name
from dragoman.serving.settings import CatalogSettings

MAX_MODELS = 1024
"""The most models in a folder, and in the hub's cache."""

_FRESH_S = 10.0
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(:[A-Za-z0-9][\w.-]{0,127})?", re.ASCII)
"""A repository, and where it has several models the file or the quantization of one."""


_MAY_BE_SOURCE = re.compile(r"[/.~]|[\w.-]+(/[\w.-]+)*/?(:[\w.-]+)?(@[\w.-]+)?$|.*\.gguf$", re.ASCII)
"""A path or a name on the hub; a relative path of other characters begins with ``./``."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may be loaded.

    ``source``: a folder, or a hub id where it has to be downloaded; None is the embedded model. ``size_bytes``: of its
    weight files, where they are on this machine. ``modified``: Unix time of the newest of them.
    """

    name: str
    source: str | None
    aliases: tuple[str, ...] = ()
    architecture: str = ""
    size_bytes: int | None = None
    modified: float | None = None


class ModelRegistry:
    """All models that may be loaded; folders are read again after some seconds. Its methods read small files."""

    def __init__(
        self, settings: CatalogSettings, first: ModelSource, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``first``: the model that the server starts with. Raises DragomanError for an invalid ``offer``."""
        self._settings = settings
        self._named = [first]
        for text in settings.offer:
            offered = _named(text)
            known = next((each for each in self._named if offered.name in (each.name, *each.aliases)), None)
            if known is None:
                self._named.append(offered)
            elif known.source != offered.source:
                raise DragomanError(f"--offer {text}: another model has the name {offered.name}; NAME=SOURCE gives one")
        self._clock = clock
        self._found: tuple[ModelSource, ...] = ()
        self._looked: float | None = None

    @property
    def is_fixed(self) -> bool:
        """Return whether the first model is the only one for good."""
        return self._settings.fixed_model

    @property
    def request_loads(self) -> Literal["admin", "any", "never"]:
        """Return who may have a model loaded by naming it in a request."""
        return "never" if self.is_fixed else self._settings.request_loads

    def sources(self) -> tuple[ModelSource, ...]:
        """Return every model once: a name in several places is that of the first place."""
        if self.is_fixed:
            return (self._named[0],)
        now = self._clock()
        if self._looked is None or now - self._looked > _FRESH_S:
            self._looked, self._found = now, tuple(self._search())
        return self._found

    def find(self, name: str) -> ModelSource:
        """Return the model by name or alias, or by the last part of a name where only one fits, ignoring case.

        Raises ModelNotFound.
        """
        name, sources = hub_name(name), self.sources()
        for source in sources:
            if name in (source.name, *source.aliases):
                return source
        short = name.lower()
        close = [source for source in sources if short in _short_names(source)]
        if len(close) == 1:
            return close[0]
        if name.endswith(":latest"):
            return self.find(without_tag(name))
        if self._may_be_fetched(name):
            return ModelSource(name=name, source=name)
        there = listed(source.name for source in sources)
        raise ModelNotFound(f"model not found: {name[:256]}; there are: {there}", param="model")

    def look_again(self) -> None:
        """Read folders and the hub's cache again when they are asked for next."""
        self._looked = None

    def find_on_hub(self, name: str) -> ModelSource:
        """Return the model by its name on the hub, where clients may name any, and otherwise as ``find``: the hub's
        cache may have a part of it only. Raises ModelNotFound."""
        on_hub = without_tag(hub_name(name))
        if any(name in (source.name, *source.aliases) for source in self._named) or not self._may_be_fetched(on_hub):
            return self.find(name)
        return ModelSource(name=on_hub, source=on_hub)

    def _may_be_fetched(self, name: str) -> bool:
        # A folder below the working directory may look like a hub id, and clients may not name it.
        is_allowed = self._settings.offer_downloads and not self.is_fixed
        return is_allowed and _HUB_ID.fullmatch(name) is not None and not Path(name).exists()

    def find_exact(self, name: str) -> ModelSource | None:
        """Return the model that has this name or alias, with or without ``:latest``; None: no model has."""
        try:
            source = self.find(name)
        except ModelNotFound:
            return None
        return source if {name, without_tag(name)}.intersection((source.name, *source.aliases)) else None

    def _search(self) -> Iterator[ModelSource]:
        seen: set[str] = set()
        for source in (*self._named, *self._in_folder(), *self._in_cache(), *_embedded()):
            if seen.isdisjoint({source.name, *source.aliases}):
                seen.update({source.name, *source.aliases})
                yield source

    def _in_folder(self) -> Iterator[ModelSource]:
        if self._settings.models_folder is None:
            return
        folder = expand_user(self._settings.models_folder)
        try:
            inside = sorted(path for path in folder.iterdir() if path.is_dir())
        except OSError:
            return
        yield from _gguf_sources("", folder)
        for path in inside[:MAX_MODELS]:
            if is_gguf_folder(path):
                yield from _gguf_sources(path.name, path)
            elif (path / "config.json").is_file():
                yield _described(path.name, str(path), path)

    def _in_cache(self) -> Iterator[ModelSource]:
        if not self._settings.offer_cached:
            return
        import huggingface_hub  # the start of the server does not wait for it

        try:
            repositories = sorted(huggingface_hub.scan_cache_dir().repos, key=lambda each: each.repo_id)
        except (huggingface_hub.CacheNotFound, OSError):
            return
        for repository in [each for each in repositories if each.repo_type == "model"][:MAX_MODELS]:
            newest = max(repository.revisions, key=lambda each: each.last_modified, default=None)
            if newest is None:
                continue
            if is_gguf_folder(newest.snapshot_path):
                yield from _gguf_sources(repository.repo_id, newest.snapshot_path)
            elif (newest.snapshot_path / "config.json").is_file():
                found = _described(repository.repo_id, str(newest.snapshot_path), newest.snapshot_path)
                if found.size_bytes is not None:  # otherwise its weights were not fetched to the end
                    yield found


def model_source(name: str, source: str | None, aliases: tuple[str, ...] = ()) -> ModelSource:
    """Return the source of a model that an operator named. Reads a local folder's config."""
    folder = embedded_path() if source is None or source == EMBEDDED else expand_user(source)
    if not folder.is_dir():
        return ModelSource(name=name, source=source, aliases=aliases)
    return msgspec.structs.replace(_described(name, source, folder), aliases=aliases)


def missing_offers(settings: CatalogSettings) -> Iterator[str]:
    """Yield the offers of paths that do not exist now: each may still be mounted, or is mistyped."""
    for text in settings.offer:
        source = text.partition("=")[2] or text
        if source.startswith(("/", "./", "../", "~")) and not os.path.exists(expand_user(source)):
            yield text


def _named(text: str) -> ModelSource:
    name, equals, source = text.partition("=")
    if not equals:
        name, source = source_name(name), name
    if not name or not source:
        raise DragomanError(f"--offer {text}: it is NAME=SOURCE, where the source is a folder or a hub id")
    if not os.path.exists(expand_user(source)) and not _MAY_BE_SOURCE.match(source):
        raise DragomanError(f"--offer {text!r}: {source!r} is no path, and no hub id (owner/name)")
    return model_source(name, source)


def _described(name: str, source: str | None, folder: Path) -> ModelSource:
    """Return the model as its config describes it; without details where that cannot be read: loading it reports
    why."""
    try:
        architectures = read_json(folder / "config.json").get("architectures")
    except ModelError:
        architectures = None
    known = architectures[0] if isinstance(architectures, list) and architectures else ""
    size, modified = _extent(folder.glob("*.safetensors"))
    return ModelSource(
        name=name, source=source, architecture=str(known)[:128], size_bytes=size or None, modified=modified
    )


def _extent(files: Iterable[Path]) -> tuple[int, float | None]:
    """Return the bytes of files, and the Unix time of the newest; 0 and None where one cannot be read."""
    try:
        found = [path.stat() for path in files]
    except OSError:
        return 0, None
    return sum(each.st_size for each in found), max((each.st_mtime for each in found), default=None)


def _gguf_sources(place: str, folder: Path) -> Iterator[ModelSource]:
    """Yield the GGUF models of a folder: under its name where there is one model, else as ``name:file``, as on the hub.

    ``place``: the folder's name; where it is empty, each model has its file's name.
    """
    try:
        models = models_among(path.name for path in folder.iterdir() if path.is_file())[:MAX_MODELS]
    except (OSError, ModelError):  # a name that looks like one part of a split model
        return
    for model in models:
        name = model.name if not place else place if len(models) == 1 else f"{place}:{model.files[0]}"
        files = [folder / file for file in model.files]
        size, modified = _extent(path for path in files if path.is_file())
        yield ModelSource(name=name, source=str(files[0]), size_bytes=size or None, modified=modified)


def _embedded() -> Iterator[ModelSource]:
    try:
        yield _described(EMBEDDED, None, embedded_path())
    except ModelError:
        return


def _short_names(source: ModelSource) -> set[str]:
    names = [name.lower() for name in (source.name, *source.aliases)]
    return {*names, *(name.rpartition("/")[2] for name in names)}
