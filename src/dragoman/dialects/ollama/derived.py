"""Derived models: a name of a client's own for a model of the operator, with a system text, parameters and messages.

They have no weights. They are kept in one JSON file of the operator's choice, which is replaced as a whole.
"""

from __future__ import annotations

import fcntl
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.decoding import UNDECODABLE
from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.regular_file import require_regular
from dragoman.core.user_folders import expand_user
from dragoman.core.whole_file import replace_file
from dragoman.dialects.ollama.names import REMOTE, spellings

MOST_MODELS = 256
MOST_MODEL_BYTES = 1024 * 1024
MOST_FILE_BYTES = 64 * 1024 * 1024
_PART = r"[A-Za-z0-9_][\w.-]{0,79}"
_NAME = re.compile(rf"(?:{_PART}/){{0,2}}{_PART}(?::{_PART})?", re.ASCII)


class DerivedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One derived model.

    Attributes:
        name: as it is shown. base: the id of the operator's model, or of an adapter.
        system: used where a request has none. parameters: options of requests that do not give them.
        messages: before those of a chat, in the form of a request. license: shown; empty: that of the base.
        modified: Unix time of its creation.
    """

    name: str
    base: str
    system: str = ""
    parameters: dict[str, Any] = {}
    messages: list[dict[str, Any]] = []
    license: str = ""
    modified: float = 0.0


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the file."""

    derived_models: list[DerivedModel] = []


class DerivedModels:
    """All derived models. ``put`` and ``remove`` may wait for the disk: call them in a thread.

    Other servers that use the same file see its changes when they change it themselves, or start again.
    """

    def __init__(self, path: str) -> None:
        """``path``: of the file; empty: there are none. Raises DragomanError for a file of another form."""
        self._path = expand_user(path) if path else None
        self._lock = threading.Lock()
        self._models: Mapping[str, DerivedModel] = {} if self._path is None else _read(self._path)

    @property
    def is_on(self) -> bool:
        """Return whether clients may make derived models."""
        return self._path is not None

    def all(self) -> tuple[DerivedModel, ...]:
        """Return them in the order of their creation."""
        return tuple(self._models.values())

    def find(self, name: str) -> DerivedModel | None:
        """Return the model that a name means, in any case of letters, with or without ``:latest``."""
        return self._models.get(_key(name))

    def put(self, model: DerivedModel) -> None:
        """Keep a model, in place of one of this name. Raises BadRequest where there are too many, or it is too
        large."""
        if len(msgspec.json.encode(model)) > MOST_MODEL_BYTES:
            raise BadRequest(f"a derived model has at most {MOST_MODEL_BYTES} bytes", param="model")

        def added(models: dict[str, DerivedModel]) -> None:
            models.pop(_key(model.name), None)
            if len(models) >= MOST_MODELS:
                raise BadRequest(f"there are {MOST_MODELS} derived models already", param="model")
            models[_key(model.name)] = model

        self._change(added)

    def remove(self, name: str) -> None:
        """Forget a model."""

        def removed(models: dict[str, DerivedModel]) -> None:
            models.pop(_key(name), None)

        self._change(removed)

    def _change(self, change: Callable[[dict[str, DerivedModel]], None]) -> None:
        """Change what the file has now, which another server may have written."""
        assert self._path is not None
        with self._lock:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.with_name(f"{self._path.name}.lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    models = _read(self._path)
                    change(models)
                    _write(self._path, models)
            except OSError as error:
                raise DragomanError(f"the derived models cannot be written: {error.strerror}") from None
            self._models = models


def check_name(name: str) -> str:
    """Return the name of a new model as it is shown. Raises BadRequest for one that is none."""
    name = name.strip()
    if _NAME.fullmatch(name) is None or name.endswith(REMOTE):
        raise BadRequest("invalid model name", param="model")
    return name


def _key(name: str) -> str:
    *_, plain = spellings(name.strip().lower())
    return plain


def _read(path: Path) -> dict[str, DerivedModel]:
    """Return the models of a file; none where there is none. Raises DragomanError."""
    require_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_FILE_BYTES)
        stored = msgspec.json.decode(content, type=_Stored)
    except FileNotFoundError:
        return {}
    except (OSError, *UNDECODABLE) as error:
        raise DragomanError(f"--derived-models {path}: {error}") from None
    return {_key(model.name): model for model in stored.derived_models}


def _write(path: Path, models: Mapping[str, DerivedModel]) -> None:
    content = msgspec.json.format(msgspec.json.encode(_Stored(list(models.values()))), indent=2)
    if len(content) >= MOST_FILE_BYTES:
        raise BadRequest(f"all derived models together have at most {MOST_FILE_BYTES} bytes", param="model")
    replace_file(path, content)
