"""What models are told first, as clients store it: for all models, and for single ones."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import msgspec

from dragoman.core.errors import BadRequest

MAX_MODELS = 1024
MAX_FILE_BYTES = 64 * 1024 * 1024


class Stored(msgspec.Struct, frozen=True, rename={"for_all": "global"}):
    """The file. ``for_all`` None: nobody has stored anything."""

    for_all: str | None = None
    models: dict[str, str] = {}


class Instructions:
    """Kept in one JSON file, which is replaced as a whole. Every method may wait for the disk: call it in a thread.

    ``default`` is what holds where nothing is stored. A file that cannot be read as one of ours is left alone, and
    counts as empty until something is stored.
    """

    def __init__(self, folder: Path, default: str) -> None:
        self._path = folder / "system_instructions.json"
        self._default = default
        self._lock = threading.Lock()
        self._stored: Stored | None = None

    def of(self, model: str | None) -> str:
        """The instructions for a model; for None those for all."""
        stored = self._read()
        if model is not None and model in stored.models:
            return stored.models[model]
        return self._default if stored.for_all is None else stored.for_all

    def store(self, text: str, model: str | None) -> None:
        """Raises BadRequest for more models than anybody has."""
        with self._lock:
            stored = self._read()
            if model is None:
                self._write(msgspec.structs.replace(stored, for_all=text))
                return
            if len(stored.models) >= MAX_MODELS and model not in stored.models:
                raise BadRequest(f"there are instructions for {MAX_MODELS} models already", param="model_id")
            self._write(msgspec.structs.replace(stored, models=stored.models | {model: text}))

    def reset(self, model: str | None) -> None:
        """Forget what is stored: for one model, or everything."""
        with self._lock:
            if model is None:
                self._write(Stored())
                return
            stored = self._read()
            models = {name: text for name, text in stored.models.items() if name != model}
            self._write(msgspec.structs.replace(stored, models=models))

    def _read(self) -> Stored:
        if self._stored is None:
            try:
                with self._path.open("rb") as file:
                    self._stored = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=Stored)
            except (OSError, msgspec.DecodeError):
                self._stored = Stored()
        return self._stored

    def _write(self, stored: Stored) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the old file first: a reader, or a power cut, meets the one or the other.
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=".instructions-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(stored), indent=2))
            os.replace(name, self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        self._stored = stored
