"""System instructions that clients store: for all models, and for single models."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import msgspec

from dragoman.core.decoding import UNDECODABLE
from dragoman.core.errors import BadRequest, GenerationFailed
from dragoman.core.whole_file import replace_file

log = logging.getLogger("dragoman.server")

MAX_MODELS = 1024
MAX_FILE_BYTES = 64 * 1024 * 1024


class Stored(msgspec.Struct, frozen=True, rename={"for_all": "global"}):
    """The contents of the file. ``for_all`` None: no instruction is stored for all models."""

    for_all: str | None = None
    models: dict[str, str] = {}


class Instructions:
    """Kept in one JSON file, which is replaced as a whole. Every method may wait for the disk: call it in a thread.

    ``default`` applies where nothing is stored. A file that cannot be read is not changed, and counts as empty until
    something is stored: then it gets another name.
    """

    def __init__(self, folder: Path, default: str) -> None:
        self._path = folder / "system_instructions.json"
        self._default = default
        self._lock = threading.Lock()
        self._stored: Stored | None = None
        self._is_readable = True

    def of(self, model: str | None) -> str:
        """Return the instructions for a model; for None those for all models."""
        stored = self._read()
        if model is not None and model in stored.models:
            return stored.models[model]
        return self._default if stored.for_all is None else stored.for_all

    def store(self, text: str, model: str | None) -> None:
        """Store instructions. Raises BadRequest for too many models, and GenerationFailed where the disk refuses."""
        with self._lock:
            stored = self._read()
            if model is None:
                self._write(msgspec.structs.replace(stored, for_all=text))
                return
            if len(stored.models) >= MAX_MODELS and model not in stored.models:
                raise BadRequest(f"there are instructions for {MAX_MODELS} models already", param="model_id")
            self._write(msgspec.structs.replace(stored, models=stored.models | {model: text}))

    def reset(self, model: str | None) -> None:
        """Delete the stored instructions: for one model, or all. Raises GenerationFailed where the disk refuses."""
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
            except FileNotFoundError:
                self._stored = Stored()
            except (OSError, *UNDECODABLE) as error:
                log.warning("%s cannot be read, and counts as empty: %s", self._path, error)
                self._stored, self._is_readable = Stored(), False
        return self._stored

    def _write(self, stored: Stored) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if not self._is_readable:
                aside = self._path.with_name(f"{self._path.name}.{time.strftime('%Y%m%dT%H%M%S')}")
                self._path.rename(aside)
                log.warning("%s is replaced; what it was is now %s", self._path, aside)
                self._is_readable = True
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(stored), indent=2))
        except OSError as error:
            log.error("%s cannot be written: %s", self._path, error.strerror)
            raise GenerationFailed(f"the instructions cannot be stored: {error.strerror}") from None
        self._stored = stored
