"""Names of models as Ollama's clients write them, and the served or offered model that one means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LIBRARY = "library/"
"""Ollama's own models; no owner on the hub."""
REGISTRIES = ("registry.ollama.ai/", LIBRARY, "hf.co/", "huggingface.co/")
LATEST = ":latest"
REMOTE = (":cloud", "-cloud")
"""Ends of the names of models that Ollama runs elsewhere."""


def spellings(name: str) -> Iterator[str]:
    """Yield a name, then without the parts that say nothing here."""
    yield name
    if name.lower().endswith(LATEST):
        name = name[: -len(LATEST)]
    yield name
    for registry in REGISTRIES:
        if name.lower().startswith(registry):
            name = name[len(registry) :]
            yield name


def close_name(name: str, known: Iterable[str]) -> str | None:
    """Return the one of the known names whose last part is this name, but for case and ``:`` for ``-``; None where
    none is, or several are."""
    *_, plain = spellings(name)
    found = {each for each in known if _plain(each.rpartition("/")[2]) == _plain(plain)}
    return found.pop() if len(found) == 1 else None


def _plain(name: str) -> str:
    return name.lower().replace(":", "-")


def shown_name(name: str) -> str:
    """Return a name with its tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST
