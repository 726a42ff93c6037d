"""Files that are there in place of others: Git LFS pointers, pages of a web site, and links to what is not there."""

from __future__ import annotations

from pathlib import Path

HEAD_BYTES = 40
"""So many bytes of a file tell whether it is one."""

_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGES = (b"<!doctype html", b"<html")


def stand_in_problem(file: Path, head: bytes) -> str:
    """Return what is wrong and what helps where ``head``, the file's first ``HEAD_BYTES``, begins a Git LFS pointer (a
    clone without Git LFS has them) or a web page; an empty text for any other file."""
    if head.startswith(_POINTER):
        return (
            f"{file}: is a Git LFS pointer, the file itself has not been fetched; fetch it with: "
            f"git -C {file.parent} lfs pull (Debian's package is git-lfs)"
        )
    if head.lstrip().lower().startswith(_PAGES):
        return (
            f"{file}: is a web page, not the file itself; on the hub the addresses of files have /resolve/ where those "
            "of pages about them have /blob/"
        )
    return ""


def broken_link_problem(file: Path) -> str:
    """Return what is wrong and what helps where ``file`` is a link to nothing, as a copy or a mount of one folder of
    the hub's cache has them; an empty text for anything else."""
    if not file.is_symlink() or file.exists():
        return ""
    return (
        f"{file}: is a link to {file.readlink()}, which is not there; copy its folder with cp -rL, which copies the "
        "files themselves, or mount the whole repository's folder of the hub's cache (models--OWNER--NAME)"
    )
