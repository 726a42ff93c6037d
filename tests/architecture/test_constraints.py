"""The pinned releases: one for each dependency, within its bounds, and hashes for all of their files."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
PINNED = [line for extra in ("otlp", "public", "kv-events", "images") for line in EXTRAS[extra]]
RUNTIME = [*PROJECT["project"]["dependencies"], *PINNED]


def pinned(name: str) -> dict[str, tuple[str, int]]:
    """Release and number of hashes by package, of one file of constraints."""
    text = re.sub(r"^\s*#.*$", "", (ROOT / name).read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.split(" --hash=sha256:") for line in text.splitlines() if line.strip()]
    assert all(re.fullmatch(r"[0-9a-f]{64}\s*", digest) for _, *digests in lines for digest in digests)
    releases = [requirement.partition(";")[0].strip().split("==") for requirement, *_ in lines]
    return {canonicalize_name(n): (v, len(line) - 1) for (n, v), line in zip(releases, lines, strict=True)}


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("constraints.txt", RUNTIME),
        ("constraints-build.txt", PROJECT["build-system"]["requires"]),
        ("constraints-site.txt", EXTRAS["site"]),
    ],
)
def test_every_dependency_has_a_release_within_its_bounds(file: str, wanted: list[str]) -> None:
    releases = pinned(file)
    for requirement in map(Requirement, wanted):
        release, _ = releases[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(release), f"{requirement} and {release}"


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-build.txt", "constraints-site.txt"])
def test_every_release_has_the_hashes_of_its_files(file: str) -> None:
    assert all(hashes for _, hashes in pinned(file).values())
    assert "://" not in (ROOT / file).read_text("utf-8"), "no index, and no folder of a machine"


def test_packages_whose_private_classes_are_used_are_bounded_above() -> None:
    bounded = {r.name for r in map(Requirement, RUNTIME) if any(s.operator == "<" for s in r.specifier)}
    assert {"uvicorn", "websockets", "typer"} <= bounded
