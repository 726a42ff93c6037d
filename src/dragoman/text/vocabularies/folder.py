"""What a model's folder says of its tokenizer apart from the vocabulary, and what is made of the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tokenizers import Tokenizer, processors

from dragoman.core.errors import ModelError

_Result = TypeVar("_Result")

LARGEST_FILE = 64 << 20
"""Bytes of a vocabulary's file: the largest that are published have 20 MB."""
MOST_TOKENS = 1 << 20
"""Of a vocabulary: the largest that are published have 900,000. The library keeps the GIL while it builds one."""
MOST_ADDED = 1 << 14
"""Tokens that are found in a text before it is split, which take the library time by the square of their number: the
most that are published are 6,500."""


class FolderSettings(NamedTuple):
    """Settings of a folder's tokenizer.

    Attributes:
        values: what ``tokenizer_config.json`` holds, or ``special_tokens_map.json`` has in place of it.
        declared: texts of added tokens by their ids.
        family: ``model_type`` of the model.
    """

    folder: Path
    values: Mapping[str, Any]
    declared: Mapping[int, str]
    family: str

    @property
    def kind(self) -> str:
        """The tokenizer's class, without ``Fast``; empty where none is named."""
        return str(self.values.get("tokenizer_class") or "").removesuffix("Fast")[:80]

    def of_class(self, name: str) -> FolderSettings:
        """Return the settings of a folder that names this class."""
        return self._replace(values={**self.values, "tokenizer_class": name})

    def flag(self, name: str, default: bool) -> bool:
        """Return a setting that is true or false. Raises ModelError for another value."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelError(
                f"{self.folder / 'tokenizer_config.json'}: {name} must be true or false, not {value!r:.80}"
            )
        return default if value is None else value

    def named(self, name: str, default: str | None) -> str | None:
        """Return the text of a special token; ``default`` where the settings do not name it, None where they say
        null."""
        return token_text(self.values[name]) if name in self.values else default


class Vocabulary(NamedTuple):
    """A pipeline without the special tokens around a text.

    Attributes:
        names: special tokens of the class by their names, for folders that do not name them.
        before, after: special tokens around a text. joint: between two texts; None: those after and before a text.
        second_type: type of the second text's tokens.
        finds_added_as_written: added tokens are looked for in a text before it is rewritten, whatever their settings
            say, as SentencePiece's classes do: rewritten, each of them would begin with a space.
    """

    pipeline: Tokenizer
    names: Mapping[str, str] = {}
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    joint: tuple[str, ...] | None = None
    second_type: int = 0
    finds_added_as_written: bool = False

    def surrounded(self, settings: FolderSettings, *, adds_bos: bool, adds_eos: bool) -> Vocabulary:
        """Return it with BOS and EOS around a text where the settings say so; where they do not, as given here."""
        bos, eos = (settings.named(name, self.names.get(name)) for name in ("bos_token", "eos_token"))
        before = (bos,) if bos and settings.flag("add_bos_token", adds_bos) else ()
        after = (eos,) if eos and settings.flag("add_eos_token", adds_eos) else ()
        return self._replace(before=before, after=after)

    def finish(self) -> None:
        """Have the pipeline put the special tokens around each text, when all tokens have been added. Those that it
        does not have are left out."""
        ids = {token: self.pipeline.token_to_id(token) for token in (*self.before, *self.after, *(self.joint or ()))}
        known = {token: token_id for token, token_id in ids.items() if token_id is not None}
        before, after = ([token for token in tokens if token in known] for tokens in (self.before, self.after))
        between = after + before if self.joint is None else [token for token in self.joint if token in known]
        kind = self.second_type
        if before or after:
            self.pipeline.post_processor = processors.TemplateProcessing(
                single=[*before, "$A", *after],
                pair=[*before, "$A", *between, f"$B:{kind}", *(f"{token}:{kind}" for token in after)],
                special_tokens=list(known.items()),
            )


def token_text(token: object) -> str | None:
    """Return the text of a token, which is written as its text, or as an object around it."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) and text else None


def call_library(function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """Call the tokenizers library. A panic raises an Exception: the library's own is a BaseException, which would pass
    every handler that isolates requests."""
    try:
        return function(*arguments, **options)
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise RuntimeError(f"the tokenizers library failed: {error}") from error
        raise


def read_bounded(path: Path) -> bytes:
    """Return the content of a file. Raises ModelError for one that cannot be read, or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    if len(data) > LARGEST_FILE:
        raise ModelError(f"{path}: a vocabulary has at most {LARGEST_FILE >> 20} MiB")
    return data


def check_added(path: Path, count: int) -> None:
    """Raise ModelError where a file has too many tokens that are found in a text before it is split."""
    if count > MOST_ADDED:
        raise ModelError(f"{path}: it has {count:,} special and added tokens; at most {MOST_ADDED:,} are read")


def build(path: Path, function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """Call the tokenizers library with what a file holds. Raises ModelError that names the file."""
    try:
        return call_library(function, *arguments, **options)
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{path}: not a tokenizer that can be read: {error}") from error
