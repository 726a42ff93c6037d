"""Files of a GGUF model: one, or the parts of a split one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dragoman.core.errors import ModelError
from dragoman.core.regular_file import require_regular
from dragoman.core.stand_ins import broken_link_problem

SUFFIX = ".gguf"
MAGIC = b"GGUF"
_HEAD_BYTES = 64
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MOST_PARTS = 1000


def is_gguf(path: Path) -> bool:
    """Return whether a file is called GGUF, or begins as such a file does whatever it is called."""
    return path.suffix == SUFFIX or head_of(path).startswith(MAGIC)


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file. Raises ModelError where it cannot be read."""
    require_regular(path, ModelError)
    try:
        with path.open("rb") as stream:
            return stream.read(_HEAD_BYTES)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from None


class Model(NamedTuple):
    """One model among file names: its name, and its files in order."""

    name: str
    files: tuple[str, ...]


def part_names(name: str) -> Model:
    """Return the model that a file belongs to. Raises ModelError where its name has an impossible part number."""
    found = _PART.fullmatch(name)
    if found is None:
        return Model(name.removesuffix(SUFFIX), (name,))
    number, count = int(found["number"]), int(found["count"])
    if not 1 <= number <= count <= _MOST_PARTS:
        raise ModelError(f"{name}: is named as part {number} of {count}, which is not possible")
    files = (f"{found['stem']}-{part:05d}-of-{count:05d}{SUFFIX}" for part in range(1, count + 1))
    return Model(found["stem"], tuple(files))


def models_among(names: Iterable[str]) -> list[Model]:
    """Return the models among a folder's or a repository's files. Image projectors (``mmproj``) are not models."""
    ours = (name for name in names if name.endswith(SUFFIX) and not is_projector(name))
    return sorted({part_names(name) for name in ours})


def is_projector(name: str) -> bool:
    """Return whether a file is called as projectors are: ``mmproj-F16.gguf``, or ``gemma-3-4b-it.mmproj-f16.gguf``."""
    return name.endswith(SUFFIX) and "mmproj" in name.rpartition("/")[2].lower()


def choose_projector(names: Iterable[str]) -> str | None:
    """Return the projector among the files beside a model: of several the one in float16, else the first by name."""
    found = sorted(name for name in names if is_projector(name))
    halves = [name for name in found if re.search(r"[-._]f16\.gguf$", name, re.IGNORECASE)]
    return next(iter([*halves, *found]), None)


def choose(models: list[Model], wanted: str, place: str, separator: str = ":") -> Model:
    """Return the wanted model: by file name or quantization (``Q4_K_M``); for an empty name the only one.

    Raises ModelError naming the available ones. ``separator``: between place and file in the name of one of them.
    """
    matching = [m for m in models if not wanted or wanted in m.files or wanted.removesuffix(SUFFIX) == m.name]
    if not matching:
        matching = [m for m in models if re.search(rf"[-._]{re.escape(wanted)}$", m.name, re.IGNORECASE)]
    if len(matching) == 1:
        return matching[0]
    there = ", ".join(m.files[0] for m in models[:20]) or "none"
    if not matching:
        raise ModelError(f"{place} has no GGUF file {wanted}; there are: {there}")
    example = f"{place}{separator}{matching[0].files[0]}"
    raise ModelError(f"{place} has {len(matching)} GGUF models: name one of {there}, as in {example}")


def files_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the model that a file is (a part of). Raises ModelError naming a missing one."""
    files = tuple(path.parent / name for name in part_names(path.name).files)
    if missing := [file for file in files if not file.is_file()]:
        if problem := broken_link_problem(missing[0]):
            raise ModelError(problem)
        raise ModelError(f"{missing[0]} is missing: the model is in {len(files)} files")
    return files
