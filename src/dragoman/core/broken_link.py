"""Symbolic links to files that are not there, as a copy or a mount of one folder of the hub's cache has them."""

from __future__ import annotations

from pathlib import Path


def broken_link_problem(file: Path) -> str:
    """Return what is wrong and what helps where ``file`` is a link to nothing; an empty text for anything else."""
    if not file.is_symlink() or file.exists():
        return ""
    return (
        f"{file}: is a link to {file.readlink()}, which is not there; copy its folder with cp -rL, which copies the "
        "files themselves, or mount the whole repository's folder of the hub's cache (models--OWNER--NAME)"
    )
