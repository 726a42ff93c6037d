"""Sources of models: a local folder or GGUF file, the embedded model, or a repository on the Hugging Face hub."""

from __future__ import annotations

import difflib
import importlib.resources
import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.stand_ins import broken_link_problem, stand_in_problem
from dragoman.core.user_folders import expand_user
from dragoman.core.vocabulary_files import VOCABULARY_FILES, find_vocabulary
from dragoman.models import gguf, hub
from dragoman.models.config import read_json
from dragoman.models.gguf.parts import (
    SUFFIX,
    choose,
    choose_projector,
    files_of,
    head_of,
    is_gguf,
    is_projector,
    models_among,
    part_names,
)
from dragoman.models.hub import DownloadWatcher
from dragoman.models.pooling import FILES as POOLING_FILES
from dragoman.models.progress import DOWNLOADING, Progress, ignore_progress
from dragoman.models.quantized import CONFIG_FILES, find_scheme, join_quantized
from dragoman.models.safetensors_file import INDEX_NAME, choose_weight_files, read_safetensors
from dragoman.models.short_names import hub_name, repository_of, similar_names
from dragoman.models.tensors import TensorFiles
from dragoman.models.vision.readers import PREPROCESSOR_FILES

_LOG = logging.getLogger(__name__)

EMBEDDED = "embedded"
AUTO, NO_PROJECTOR = "auto", "none"
"""Projectors that are not named: the one beside the model, and none."""

# Files that describe a model and tokenize its text; a few megabytes.
_DESCRIPTION_FILES = ("config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json",
                      "vocab.*", "merges.txt", "chat_template*", "added_tokens.json", INDEX_NAME,
                      *POOLING_FILES, *CONFIG_FILES, *PREPROCESSOR_FILES)  # fmt: skip
_FILE_IN_REPOSITORY = re.compile(r"(?P<repository>[\w.-]{1,96}/[\w.-]{1,96}):(?P<file>[\w./-]{1,200})")
# As the hub has it: not begun or ended by - or ., neither -- nor .. anywhere.
_REPOSITORY_ID = re.compile(r"(?!.*(--|\.\.))(?![-.])[\w.-]{1,96}(?<![-.])(/(?![-.])[\w.-]{1,96}(?<![-.]))?", re.ASCII)


class Source(msgspec.Struct, frozen=True):
    """Paths of a model's files on this machine.

    Attributes:
        name: the user's name for it: the folder's name, the file's, the hub id, or ``embedded``.
        folder: holds ``config.json`` and the tokenizer's files. Of a GGUF model: generated from its metadata.
        repository: the hub id; None for a folder. revision: its commit.
        weight_files: names in the folder; empty until they are downloaded.
        gguf: files of a GGUF model, downloaded as soon as it is found.
        projector: the file with its vision tower. projector_asked: a user named it; else it was found beside the model,
            which is served as text alone where they do not go together.
    """

    name: str
    folder: Path
    repository: str | None = None
    revision: str | None = None
    weight_files: tuple[str, ...] = ()
    gguf: tuple[Path, ...] = ()
    projector: Path | None = None
    projector_asked: bool = False


def is_repository_id(source: str) -> bool:
    """Return whether a source that is not a folder can be a hub id, by the hub's rules for names."""
    return _REPOSITORY_ID.fullmatch(source) is not None


def source_name(source: str | Path | None) -> str:
    """Return the user's name for a source: the folder's or file's name, the hub id, or ``embedded``. Looks up
    nothing."""
    if source is None or source == EMBEDDED:
        return EMBEDDED
    folder = expand_user(source)
    if folder.is_file() and is_gguf(folder):
        return part_names(folder.name).name
    if (place := _file_in_folder(str(source))) is not None:
        return f"{place[0].resolve().name}:{place[1]}"
    return folder.resolve().name if folder.is_dir() else hub_name(str(source))


def embedded_path() -> Path:
    """Return the folder of the embedded model, in an installed package or in a checkout. Raises ModelError without
    one."""
    installed = Path(str(importlib.resources.files("dragoman"))) / "builtin"
    checkout = Path(__file__).resolve().parents[3] / "builtin"
    for folder in (installed, checkout):
        if (folder / "config.json").is_file():
            return folder
    raise ModelError("this installation has no embedded model: name a folder or a hub id")


def find_source(
    source: str | Path | None,
    *,
    revision: str | None = None,
    token: str | None = None,
    mmproj: str = AUTO,
    progress: Progress = ignore_progress,
    watcher: DownloadWatcher | None = None,
) -> Source:
    """Return the files that describe the model; from the hub only those are downloaded, and only when not cached.

    A GGUF file describes itself, so it is the only file of a repository that is downloaded.
    ``source``: a folder, a GGUF file, a hub id (``owner/name``, or ``owner/name:file.gguf``), a short name
    of ``short_names``, or None or ``embedded``. ``mmproj``: the projector file of a GGUF model, ``auto`` for the one
    beside it, or ``none``. ``watcher`` is told of bytes instead of the ``progress`` of shares.
    Raises ModelError when there is no such model; the message says what to do.
    """
    if source is None or source == EMBEDDED:
        return Source(EMBEDDED, embedded_path())
    if source == "":  # as a path it would be the working folder
        raise ModelError("the model has no name: it is empty")
    path = expand_user(source)
    if path.is_dir():
        return _find_in_folder(path, mmproj)
    if not path.exists():
        source = repository_of(str(source))
    if path.is_file() and is_gguf(path):
        return _gguf_source(part_names(path.name).name, files_of(path), mmproj)
    if path.exists():
        if problem := stand_in_problem(path, head_of(path)):
            raise ModelError(problem)
        raise ModelError(
            f"{path} is a file; name the folder that holds config.json and the *.safetensors files, or a GGUF file"
        )
    if (place := _file_in_folder(str(source))) is not None:
        return _find_in_folder(place[0], mmproj, place[1])
    repository, file = str(source), ""
    if found := _FILE_IN_REPOSITORY.fullmatch(repository):
        repository, file = found["repository"], found["file"]
    else:
        require_repository_id(repository)
    return _find_on_hub(repository, file, revision, token, mmproj, progress, watcher)


def _file_in_folder(source: str) -> tuple[Path, str] | None:
    """Return folder and file of ``folder:file``, as on the hub; None for anything else."""
    place, _, file = source.rpartition(":")
    folder = expand_user(place)
    return (folder, file) if place and file and folder.is_dir() else None


def require_repository_id(source: str) -> None:
    """Raise ModelError for a source at which there is nothing here, unless it may be a hub id."""
    if not is_repository_id(source):
        raise ModelError(_missing(source, expand_user(source)))


def _missing(source: str, path: Path) -> str:
    """What to tell who names a path at which there is nothing."""
    if problem := broken_link_problem(path):
        return problem
    if "://" in source or "@" in source:
        return (
            f"{source} is neither a folder or file nor a model of the hub, which is named as owner/name, with a "
            "branch, tag or commit by --revision"
        )
    parent = path.absolute().parent
    hint = ""
    if parent.is_dir():
        if near := difflib.get_close_matches(path.name, os.listdir(parent), n=1):
            hint = f"; is {parent / near[0]} meant?"
    else:
        there = next(folder for folder in parent.parents if folder.is_dir())
        hint = f", of its path only {there} is there"
    similar = similar_names(source) if ":" in source else ""
    return f"there is no folder or file {source}{hint} (a model of the hub is named as owner/name){similar}"


def is_gguf_folder(folder: Path) -> bool:
    """Return whether the model of a folder is in GGUF files: it has some, and no safetensors files that its
    ``config.json`` describes. Repositories of GGUF files often have that file too."""
    if not any(not is_projector(path.name) for path in folder.glob(f"*{SUFFIX}")):
        return False
    return not (folder / "config.json").is_file() or not _has_safetensors(folder)


def _find_in_folder(folder: Path, mmproj: str, file: str = "") -> Source:
    """``file``: the name or the quantization of one GGUF model of several."""
    if file or is_gguf_folder(folder):
        chosen = choose(models_among(path.name for path in folder.iterdir()), file, str(folder), "/")
        name = folder.resolve().name + (f":{file}" if file else "")
        return _gguf_source(name, files_of(folder / chosen.files[0]), mmproj)
    if not (folder / "config.json").is_file():
        if problem := broken_link_problem(folder / "config.json"):
            raise ModelError(problem)
        raise ModelError(f"{folder} has no config.json and no *{SUFFIX}: it is not a model folder{_what_it_is(folder)}")
    if not _has_safetensors(folder) and (inside := sorted(folder.glob(f"*/*{SUFFIX}"))):
        raise ModelError(f"{folder} has its GGUF files in folders: name one of them, as {inside[0].parent}")
    _refuse_projector(mmproj, str(folder))
    return Source(folder.resolve().name, folder)


def _what_it_is(folder: Path) -> str:
    """What to tell who names a folder that is not a model's, where it can be told."""
    if (folder / "adapter_config.json").is_file():
        return f"; it is an adapter: serve the model that it was made for, with --lora-adapters NAME={folder}"
    if (folder / "manifests").is_dir() and (folder / "blobs").is_dir():
        return "; it is Ollama's store: `ollama show --modelfile NAME` names a model's file, which can be served"
    if (folder / "params.json").is_file():
        return (
            "; it holds a model in the layout of its maker (params.json): use the same model in the layout of Hugging "
            "Face, which most repositories on the hub have"
        )
    inside = sorted(folder.glob("snapshots/*")) or sorted(path for path in folder.iterdir() if path.is_dir())
    found = [path for path in inside if (path / "config.json").is_file() or any(path.glob(f"*{SUFFIX}"))]
    return hint_at_inner(found)


def hint_at_inner(found: Sequence[Path]) -> str:
    """Return what to tell who names the folder above those that were found; empty where there are none."""
    if not found:
        return ""
    return f"; is {found[-1]} meant?" if len(found) == 1 else f"; name one inside of it, as {found[-1]}"


def _refuse_projector(mmproj: str, model: str) -> None:
    if mmproj not in (AUTO, NO_PROJECTOR):
        raise ModelError(f"{mmproj}: a projector file goes with a GGUF model, which {model} is not")


def _find_on_hub(
    repository: str,
    file: str,
    revision: str | None,
    token: str | None,
    mmproj: str,
    progress: Progress,
    watcher: DownloadWatcher | None,
) -> Source:
    found = hub.download_small(repository, revision, token, _DESCRIPTION_FILES)
    described = (found / "config.json").is_file()
    names = [] if described and not file and _has_safetensors(found) else _names_on_hub(repository, found, token)
    models = models_among(names)
    if file or (models and not any(name.endswith(".safetensors") for name in names)):
        chosen = choose(models, file, repository)
        projector = choose_projector(names) if mmproj == AUTO else mmproj if mmproj in names else None
        wanted = chosen.files if projector is None else (*chosen.files, projector)
        hub.download_large(repository, found, token, wanted, watcher or _Shares(progress))
        paths = files_of(found / chosen.files[0])
        if projector is not None and mmproj != AUTO:
            mmproj = str(found / projector)
        name = f"{repository}:{file}" if file else repository
        return replace(_gguf_source(name, paths, mmproj), repository=repository, revision=found.name)
    _refuse_projector(mmproj, repository)
    if not described:
        raise ModelError(f"{repository} has no config.json: it is not a model in Hugging Face layout")
    if find_vocabulary(found) is None:  # most repositories have these besides a tokenizer.json, for other programs
        hub.download_small(repository, found.name, token, VOCABULARY_FILES)
    return Source(repository, found, repository, found.name)


def _gguf_source(name: str, files: tuple[Path, ...], mmproj: str) -> Source:
    projector, asked = _projector_of(files, mmproj), mmproj != AUTO
    try:
        folder = gguf.describing_folder(gguf.open_gguf(files, projector))
    except ModelError as error:
        if projector is None or asked:
            raise
        found = without_projector(Source(name, projector, gguf=files, projector=projector))
        warn_of_projector(error)
        return found
    return Source(name, folder, gguf=files, projector=projector, projector_asked=asked)


def _projector_of(files: tuple[Path, ...], mmproj: str) -> Path | None:
    """Return the projector file that is asked for, or the one beside a model."""
    if mmproj == NO_PROJECTOR:
        return None
    if mmproj == AUTO:
        name = choose_projector(path.name for path in files[0].parent.iterdir())
        return None if name is None else files[0].parent / name
    path = expand_user(mmproj)
    if not path.is_file():
        raise ModelError(f"there is no projector file {mmproj}")
    return path


def without_projector(source: Source) -> Source:
    """Return a GGUF model without the projector that was found beside it. Raises ModelError where it is no model even
    so."""
    return replace(source, folder=gguf.describing_folder(gguf.open_gguf(source.gguf)), projector=None)


def warn_of_projector(reason: ModelError) -> None:
    """Log why a model is served without the projector that was found beside it."""
    _LOG.warning("text only: %s", reason)


def _has_safetensors(folder: Path) -> bool:
    return (folder / INDEX_NAME).is_file() or any(folder.glob("*.safetensors"))


def _names_on_hub(repository: str, here: Path, token: str | None) -> list[str]:
    """Return the repository's file names; the cached ones where the hub cannot be reached."""
    try:
        return hub.list_files(repository, here.name, token)
    except ModelError:
        return [str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()]


def find_weights(
    source: Source,
    *,
    token: str | None = None,
    progress: Progress = ignore_progress,
    watcher: DownloadWatcher | None = None,
) -> Source:
    """Return the same source with its weight files present, downloading what is missing. ``watcher`` is told of bytes
    instead of the ``progress`` of shares."""
    if source.gguf:
        return source

    def choose(names: Iterable[str]) -> tuple[str, ...]:
        return choose_weight_files(
            names, lambda: read_json(source.folder / INDEX_NAME), source.repository or source.folder
        )

    try:
        return replace(source, weight_files=choose(path.name for path in source.folder.iterdir()))
    except ModelError:
        if source.repository is None:
            raise
    names = choose(hub.list_files(source.repository, source.revision, token))
    hub.download_large(source.repository, source.folder, token, names, watcher or _Shares(progress))
    if missing := [name for name in names if not (source.folder / name).is_file()]:
        raise ModelError(f"{source.repository}: {missing[0]} could not be downloaded")
    return replace(source, weight_files=names)


def open_files(source: Source) -> TensorFiles:
    """Open the tensors of a source whose weight files are present. Raises ModelError naming the damaged file."""
    if source.gguf:
        return gguf.tensor_files(gguf.open_gguf(source.gguf, source.projector))
    files = read_safetensors(source.folder, source.weight_files)
    scheme = find_scheme(source.folder, read_json(source.folder / "config.json"))
    return files if scheme is None else join_quantized(files, scheme)


def fetch_again(source: Source, *, token: str | None = None) -> None:
    """Download the cached files of a repository's revision again, in case they are damaged. Raises ModelError."""
    assert source.repository is not None
    if source.gguf:
        names = [f"*{path.name}" for path in (*source.gguf, *([source.projector] if source.projector else []))]
    else:
        names = [str(path.relative_to(source.folder)) for path in source.folder.rglob("*") if path.is_file()]
    hub.fetch_again(source.repository, source.revision, token, names)


class _Shares(DownloadWatcher):
    """Tells a ``Progress`` of a download."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._total, self._share = 0, 0.0

    def started(self, repository: str, total: int, kept: int) -> None:
        self._total = total
        self.advanced(kept)

    def advanced(self, done: int) -> None:
        self._share = max(self._share, min(1.0, done / max(1, self._total)))  # it never falls
        self._progress(DOWNLOADING, self._share)
