"""``dragoman models``: list, download and delete models of the hub cache on this machine."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec
import typer

from dragoman.cli import console
from dragoman.cli.download_bar import DownloadBar
from dragoman.cli.pack import pack
from dragoman.cli.settings import ModelChoice
from dragoman.core.errors import ModelError
from dragoman.core.regular_file import FileName, require_regular
from dragoman.core.user_folders import expand_user, unreadable
from dragoman.models.config import read_json
from dragoman.models.settings import ModelSettings, Precision
from dragoman.models.short_names import repository_of
from dragoman.models.source import (
    EMBEDDED,
    embedded_path,
    fetch_again,
    find_source,
    find_weights,
    is_gguf_folder,
    require_repository_id,
    source_name,
)
from dragoman.serving.model_registry import ModelRegistry, ModelSource
from dragoman.serving.settings import CatalogSettings

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo


_MODEL = {"positional": True, "configurable": False, "twin": "--model"}


PACKED: dict[str, Precision] = {"int8": "int8", "int4": "int4"}
"""Quantizations of our own."""


class ListSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The models to list, and the form of the list."""

    PANEL: ClassVar[str] = "Options"

    format: Annotated[
        Literal["table", "json"],
        msgspec.Meta(description="A table to read, or JSON to process.", extra={"configurable": False}),
    ] = "table"
    registry_only: Annotated[
        bool, msgspec.Meta(description="Only what this program brings along.", extra={"configurable": False})
    ] = False
    custom_only: Annotated[bool, msgspec.Meta(description="Only what it does not.", extra={"configurable": False})] = (
        False
    )
    offer: Annotated[
        tuple[FileName, ...], msgspec.Meta(description="List this one too, as `dragoman serve` would offer it.")
    ] = ()
    models_folder: Annotated[FileName | None, msgspec.Meta(description="List the models in this folder too.")] = None


class PullSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The model to download."""

    PANEL: ClassVar[str] = "Options"

    repository: Annotated[FileName, msgspec.Meta(description="Hub id, as owner/name.", extra=_MODEL)]
    revision: Annotated[
        str | None, msgspec.Meta(description="Branch, tag or commit of a hub model (default: its main branch).")
    ] = None
    token: Annotated[str | None, msgspec.Meta(description="Access token of the hub (default: HF_TOKEN).")] = None
    quantization: Annotated[
        str | None,
        msgspec.Meta(
            description="Of a GGUF repository the file that is quantized so, as Q4_K_M; of others int8 or int4: the "
            "weights are packed so, ready for `dragoman serve --precision`.",
            extra={"configurable": False},
        ),
    ] = None
    verbose: Annotated[
        bool, msgspec.Meta(description="Name each file when it is here.", extra={"configurable": False, "short": "-v"})
    ] = False


class DownloadSettings(PullSettings, frozen=True, kw_only=True):
    """The model to download, with the options of LocalLab's command."""

    force: Annotated[
        bool, msgspec.Meta(description="Download again what is here already.", extra={"configurable": False})
    ] = False
    no_cache_update: Annotated[
        bool, msgspec.Meta(description="No effect: no list is kept beside the cache.", extra={"configurable": False})
    ] = False


class InfoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The model to describe."""

    PANEL: ClassVar[str] = "Options"

    repository: Annotated[
        FileName, msgspec.Meta(description="Hub id (owner/name), folder, GGUF file, or embedded.", extra=_MODEL)
    ]


class CleanSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Options of cleaning."""

    PANEL: ClassVar[str] = "Options"

    yes: Annotated[bool, msgspec.Meta(description="Do not ask.", extra={"configurable": False})] = False


class RemoveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The model to delete."""

    PANEL: ClassVar[str] = "Options"

    repository: Annotated[FileName, msgspec.Meta(description="Hub id, as owner/name.", extra=_MODEL)]
    yes: Annotated[bool, msgspec.Meta(description="Do not ask.", extra={"configurable": False})] = False


def list_models(asked: ListSettings) -> None:
    """List the models on this machine: the embedded one, those that are offered, and those in the hub cache."""
    if asked.registry_only and asked.custom_only:
        raise ModelError("--registry-only and --custom-only exclude each other")
    others = () if asked.registry_only else _other_models(asked)
    cached = () if asked.registry_only else cached_models()
    if asked.format == "json":
        embedded = [] if asked.custom_only else _embedded_entry()
        _write_json([*embedded, *map(_source_entry, others), *map(_cached_entry, cached)])
        return
    table = console.table(("MODEL", "TYPE", "PRECISION", "SIZE", "LAST USED"), right=("SIZE",))
    embedded_rows = [] if asked.custom_only else _embedded_row()
    for row in (*embedded_rows, *map(_source_row, others), *map(_cached_row, cached)):
        table.add_row(*row)
    if not table.rows:
        console.notes().print("There are no models yet: dragoman models pull gets one", markup=False)
        return
    console.output().print(table)


def pull(settings: PullSettings) -> None:
    """Download a model from the hub, so that it can be served without a network."""
    name, precision = _quantized(settings.repository, settings.quantization)
    with DownloadBar(verbose=settings.verbose) as bar:
        found = find_source(name, revision=settings.revision, token=settings.token, watcher=bar)
        if found.repository is None:
            raise ModelError(f"{settings.repository} is on this machine: there is nothing to download")
        if precision is not None and found.gguf:
            raise ModelError(f"{found.name} is quantized already: --quantization names one of its files, as Q4_K_M")
        found = find_weights(found, token=settings.token, watcher=bar)
    files = found.gguf or [found.folder / name for name in found.weight_files]
    total = sum(file.stat().st_size for file in files)
    console.notes().print(f"{found.name}: {console.size(total)} of weights in {files[0].parent}", markup=False)
    if precision is not None:
        pack(
            ModelChoice(model=name),
            ModelSettings(precision=precision, revision=settings.revision, token=settings.token),
        )
    at = "" if precision is None else f" --precision {precision}"
    console.notes().print(f"Talk with it: dragoman run {name}{at}    Serve it: dragoman serve {name}{at}", markup=False)


def _quantized(repository: str, quantization: str | None) -> tuple[str, Precision | None]:
    """Return the model's name with the file of this quantization, or the precision to pack it at."""
    repository = repository_of(repository)
    if quantization is None:
        return repository, None
    if quantization in PACKED:
        return repository, PACKED[quantization]
    if ":" in repository:
        raise ModelError(f"{repository} and --quantization {quantization}: give one of them")
    return f"{repository}:{quantization}", None


def download(settings: DownloadSettings) -> None:
    """Download a model from the hub, as pull does; LocalLab's name for it."""
    if settings.no_cache_update:
        console.remarks(["--no-cache-update has no effect: no list is kept beside the hub's cache"])
    here = settings.force and any(found.repo_id == settings.repository for found in cached_models())
    pull(settings)
    if here:
        found = find_source(settings.repository, revision=settings.revision, token=settings.token)
        fetch_again(found, token=settings.token)
        console.notes().print(f"Downloaded {found.name} again")


def info(settings: InfoSettings) -> None:
    """Show what is known of a model on this machine, and whether it can be served here. Nothing is downloaded."""
    for name, text in _known(settings.repository).items():
        console.output().print(f"[bold]{name:>14}[/]  {console.escape(text)}")


def clean(settings: CleanSettings) -> None:
    """Delete what interrupted downloads of models left in the hub cache. Nothing else is touched."""
    parts = list(_incomplete_files())
    if not parts:
        console.notes().print("No download of a model is incomplete: there is nothing to delete")
        return
    for path in parts:
        told = f"{_repository_of(path)}: {path.name} ({console.size(path.lstat().st_size)})"
        console.notes().print(told, markup=False)
    if not settings.yes:
        typer.confirm(f"Delete {len(parts)} incomplete files from the hub cache?", abort=True, err=True)
    deleted = 0
    for path in parts:
        if _delete_unless_in_use(path):
            deleted += 1
        else:
            console.notes().print(f"{path.name} stays: it is being downloaded", markup=False)
    console.notes().print(f"Deleted {deleted} incomplete files")


def remove(settings: RemoveSettings) -> None:
    """Delete a model, in every revision, from the hub cache."""
    from huggingface_hub import scan_cache_dir

    repository = next((found for found in cached_models() if found.repo_id == settings.repository), None)
    if repository is None:
        raise ModelError(f"{settings.repository} is not in the hub cache; `dragoman models list` shows what is")
    size = console.size(repository.size_on_disk)
    if not settings.yes:
        typer.confirm(f"Delete {repository.repo_id} ({size}) from the hub cache?", abort=True, err=True)
    scan_cache_dir().delete_revisions(*(revision.commit_hash for revision in repository.revisions)).execute()
    console.notes().print(f"Deleted {repository.repo_id}, {size}")


def cached_models() -> tuple[CachedRepoInfo, ...]:
    """Return every model repository of the hub cache, by name; none when there is no cache yet, and none with a
    remark when it may not be read."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return ()
    except OSError as error:
        console.remarks([f"the hub's cache {error.filename}: {error.strerror}; HF_HOME names another folder"])
        return ()
    return tuple(sorted((r for r in repositories if r.repo_type == "model"), key=lambda r: r.repo_id.lower()))


def _other_models(asked: ListSettings) -> tuple[ModelSource, ...]:
    """Return the models that `dragoman serve` would offer besides the embedded one and the cache. Raises
    DragomanError."""
    if asked.models_folder is not None and (reason := unreadable(expand_user(asked.models_folder))):
        console.remarks([f"--models-folder {asked.models_folder}: {reason}"])
    chosen = CatalogSettings(offer=asked.offer, models_folder=asked.models_folder, offer_cached=False)
    return tuple(
        o for o in ModelRegistry(chosen, ModelSource(name=EMBEDDED, source=None)).sources() if o.source is not None
    )


def _source_row(source: ModelSource) -> tuple[str, str, str, str, str]:
    files = _files_of(source)
    kind = _described(files[0].parent) if files else ("–", "–")
    size = console.size(_size_of(source, files)) if files else "–"
    return source.name, *kind, size, "offered" if files else f"offered: {source.source}"


def _files_of(source: ModelSource) -> list[Path]:
    """Return the model's files on this machine: none for a model that would come from the hub."""
    place = expand_user(source.source or "")
    if place.is_file():
        return [place]
    return sorted(path for path in place.iterdir() if path.is_file()) if place.is_dir() else []


def _size_of(source: ModelSource, files: list[Path]) -> int:
    """Return the size of the model's weights where the registry counted them, else of its files."""
    return source.size_bytes or sum(path.stat().st_size for path in files)


def _embedded_row() -> list[tuple[str, str, str, str, str]]:
    try:
        folder = embedded_path()
    except ModelError:
        return []
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return [(EMBEDDED, *_described(folder), console.size(weights), "always here")]


def _cached_row(repository: CachedRepoInfo) -> tuple[str, str, str, str, str]:
    newest = _newest(repository)
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(repository.last_accessed))
    return repository.repo_id, *_described(newest.snapshot_path), console.size(repository.size_on_disk), used


def _described(folder: Path) -> tuple[str, str]:
    """Return the model's type and stored precision, as its config says; dashes where it says nothing."""
    if is_gguf_folder(folder):
        return "GGUF", "–"
    try:
        config = read_json(folder / "config.json")
    except ModelError:
        return "–", "–"
    return str(config.get("model_type", "–")), str(config.get("torch_dtype") or config.get("dtype") or "–")


def _incomplete_files() -> Iterator[Path]:
    """Yield the files that the hub's library names incomplete, in the folders of models."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    try:
        found = sorted(cache.glob("models--*/blobs/*.incomplete"))
    except OSError as error:
        raise ModelError(f"the hub's cache {error.filename}: {error.strerror}; HF_HOME names another folder") from None
    for path in found:
        if path.is_file() and not any(place.is_symlink() for place in (path, path.parent, path.parent.parent)):
            yield path


def _delete_unless_in_use(path: Path) -> bool:
    """Delete the file and return True, unless the hub's library holds ``.locks/<repository>/<etag>.lock``, as it
    does while it writes ``<etag>[.<random>].incomplete``."""
    lock = path.parents[2] / ".locks" / path.parents[1].name / f"{path.name.partition('.')[0]}.lock"
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        path.unlink(missing_ok=True)
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def _repository_of(blob: Path) -> str:
    return blob.parents[1].name.removeprefix("models--").replace("--", "/")


def _known(name: str) -> dict[str, str]:
    """Return rows about the model: its place and description, and whether memory holds it."""
    place = expand_user(name)
    if name == EMBEDDED:
        return {"model": name, "kind": "brought along by this program", "folder": str(embedded_path())} | _served_as(
            embedded_path()
        )
    if place.exists():
        require_regular(place)
        return _in_folder(place) | _served_as(place)
    repository = next((found for found in cached_models() if found.repo_id == name), None)
    if repository is not None:
        newest = _newest(repository)
        rows = {
            "model": name,
            "kind": "downloaded from the hub",
            "folder": str(newest.snapshot_path),
            "size": f"{console.size(repository.size_on_disk)} in {repository.nb_files} files",
            "last used": time.strftime("%Y-%m-%d %H:%M", time.localtime(repository.last_accessed)),
        }
    else:
        require_repository_id(name)
        return {"model": name, "kind": f"not on this machine; `dragoman models pull {name}` fetches it"}
    return rows | _served_as(Path(rows["folder"]))


def _in_folder(place: Path) -> dict[str, str]:
    """Return rows about a folder or a GGUF file."""
    files = [place] if place.is_file() else [path for path in place.iterdir() if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    changed = max((path.stat().st_mtime for path in files), default=0.0)
    return {
        "model": source_name(place),
        "kind": "a folder of this machine" if place.is_dir() else "a file of this machine",
        "folder" if place.is_dir() else "file": str(place.resolve()),
        "size": f"{console.size(size)} in {len(files)} file{'s' if len(files) != 1 else ''}",
        "last changed": time.strftime("%Y-%m-%d %H:%M", time.localtime(changed)),
    }


def _served_as(folder: Path) -> dict[str, str]:
    """Return rows with architecture, size and context, and the memory it takes; or why it cannot be served."""
    from dragoman.models import describe, parameter_count, plan

    try:
        described = describe(str(folder))
        planned = plan(described, ModelSettings())
    except ModelError as error:
        return {"can be served": f"no: {error.message}"}
    spec = described.spec
    return {
        "architecture": f"{spec.architecture}, {console.count(parameter_count(spec))} parameters",
        "context": f"{spec.context:,} tokens",
        "stored as": described.stored_as,
        "memory": f"{console.size(planned.total_bytes)} of {console.size(planned.available_bytes)} available",
        "can be served": f"no: {planned.refusal}" if planned.refusal else "yes",
    }


def _embedded_entry() -> list[dict[str, Any]]:
    try:
        folder = embedded_path()
    except ModelError:
        return []
    files = sorted(path for path in folder.iterdir() if path.is_file())
    made = max(path.stat().st_mtime for path in files)
    return [_entry(EMBEDDED, folder, [(path.name, path.stat().st_size, path) for path in files], made, None)]


def _source_entry(source: ModelSource) -> dict[str, Any]:
    files = _files_of(source)
    told = [(path.name, path.stat().st_size, path) for path in files]
    made = max((path.stat().st_mtime for path in files), default=None)
    return _entry(source.name, Path(source.source or ""), told, made, None) | {"is_registry_model": False}


def _cached_entry(repository: CachedRepoInfo) -> dict[str, Any]:
    newest = _newest(repository)
    files = sorted((file.file_name, file.size_on_disk, file.file_path) for file in newest.files)
    return _entry(repository.repo_id, repository.repo_path, files, newest.last_modified, repository.last_accessed) | {
        "size": repository.size_on_disk,
        "size_formatted": console.size(repository.size_on_disk),
    }


def _entry(
    name: str, path: Path, files: list[tuple[str, int, Path]], cached: float | None, used: float | None
) -> dict[str, Any]:
    """Return a model in the form of LocalLab's command; null for fields that are not recorded."""
    size = sum(count for _, count, _ in files)
    folder = files[0][2].parent if files else path
    kind, stored = _described(folder)
    return {
        "id": name,
        "name": name.rpartition("/")[2],
        "full_name": name,
        "size": size,
        "size_formatted": console.size(size),
        "file_count": len(files),
        "model_files": [{"name": file, "size": count, "path": str(place)} for file, count, place in files],
        "path": str(path),
        "cached_at": None if cached is None else _moment(cached),
        "download_method": None if used is None else "huggingface_hub",
        "last_accessed": None if used is None else _moment(used),
        "access_count": None,
        "is_registry_model": used is None,
        "description": f"{kind}, {stored}",
    }


def _newest(repository: CachedRepoInfo) -> CachedRevisionInfo:
    return max(repository.revisions, key=lambda revision: revision.last_modified)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _write_json(value: Any) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
