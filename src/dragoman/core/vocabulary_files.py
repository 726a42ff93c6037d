"""Names of the files that hold a model's vocabulary where it has no ``tokenizer.json``."""

from __future__ import annotations

from pathlib import Path

VOCABULARY_PAIR = ("vocab.json", "merges.txt")
"""Two that go together."""
VOCABULARY_FILES = (
    "tekken.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
    "tiktoken.model",
    "qwen.tiktoken",
    "hy.tiktoken",
    "vocab.txt",
)
"""Each alone, the one that is read first where there are several."""


def find_vocabulary(folder: Path) -> Path | None:
    """Return the file that holds a folder's vocabulary (of two, the first); None where there is none."""
    pair = all((folder / name).is_file() for name in VOCABULARY_PAIR)
    names = ("tokenizer.json", *VOCABULARY_PAIR[:pair], *VOCABULARY_FILES)
    return next((folder / name for name in names if (folder / name).is_file()), None)
