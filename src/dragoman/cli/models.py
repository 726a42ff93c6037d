"""``dragoman models``: what is in the hub cache of this machine, and what to bring in or throw out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec

from dragoman.cli import console
from dragoman.core.errors import ModelError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo


class PullSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to download."""

    PANEL: ClassVar[str] = "Options"

    repository: Annotated[
        str, msgspec.Meta(description="Hub id, as owner/name.", extra={"positional": True, "configurable": False})
    ]
    revision: Annotated[
        str | None, msgspec.Meta(description="Branch, tag or commit of a hub model (default: its main branch).")
    ] = None
    token: Annotated[str | None, msgspec.Meta(description="Access token of the hub (default: HF_TOKEN).")] = None


class RemoveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which model to delete."""

    PANEL: ClassVar[str] = "Options"

    repository: Annotated[
        str, msgspec.Meta(description="Hub id, as owner/name.", extra={"positional": True, "configurable": False})
    ]
    yes: Annotated[bool, msgspec.Meta(description="Do not ask.", extra={"configurable": False})] = False


def list_models() -> None:
    """List the models on this machine: the embedded one and those in the hub cache."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("MODEL", "TYPE", "PRECISION", "SIZE", "LAST USED"):
        table.add_column(column, justify="right" if column == "SIZE" else "left", no_wrap=True)
    for row in (*_embedded_row(), *map(_cached_row, cached_models())):
        table.add_row(*row)
    console.output().print(table)


def pull(settings: PullSettings) -> None:
    """Download a model from the hub, so that it can be served without a network."""
    from dragoman.models.source import find_source, find_weights

    found = find_source(settings.repository, revision=settings.revision, token=settings.token)
    if found.repository is None:
        raise ModelError(f"{settings.repository} is a folder on this machine: there is nothing to download")
    found = find_weights(found, token=settings.token)
    total = sum((found.folder / name).stat().st_size for name in found.weight_files)
    console.notes().print(f"{found.name}: {console.size(total)} of weights in {found.folder}")
    console.notes().print(f"Serve it: dragoman serve {found.name}")


def remove(settings: RemoveSettings) -> None:
    """Delete a model, in every revision, from the hub cache."""
    import typer
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
    """Every model repository of the hub cache, by name; none when there is no cache yet."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return ()
    return tuple(sorted((r for r in repositories if r.repo_type == "model"), key=lambda r: r.repo_id.lower()))


def _embedded_row() -> list[tuple[str, str, str, str, str]]:
    from dragoman.models.source import EMBEDDED, embedded_path

    try:
        folder = embedded_path()
    except ModelError:
        return []
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return [(EMBEDDED, *_described(folder), console.size(weights), "always here")]


def _cached_row(repository: CachedRepoInfo) -> tuple[str, str, str, str, str]:
    newest = max(repository.revisions, key=lambda revision: revision.last_modified)
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(repository.last_accessed))
    return repository.repo_id, *_described(newest.snapshot_path), console.size(repository.size_on_disk), used


def _described(folder: Path) -> tuple[str, str]:
    """The model's type and stored precision, as its config says; dashes where it says nothing."""
    from dragoman.models.config import read_json

    try:
        config = read_json(folder / "config.json")
    except ModelError:
        return "–", "–"
    return str(config.get("model_type", "–")), str(config.get("torch_dtype") or config.get("dtype") or "–")
