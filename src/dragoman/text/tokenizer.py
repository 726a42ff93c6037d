"""Tokenizer of a model: text to token ids and back, and properties of single tokens."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Pipeline

from dragoman.core.errors import BadRequest, ContextOverflow, UnsupportedFeature
from dragoman.core.events import PromptToken
from dragoman.core.vocabulary import Vocabulary
from dragoman.text.decoder import DecoderSpec
from dragoman.text.fim import FillOrder, find_fill_tokens
from dragoman.text.tokenizer_files import TokenizerFiles, parse_pipeline, read_tokenizer_files
from dragoman.text.vocabularies.folder import call_library

_MAX_ID = 2**32 - 1
_PIECE_CHARS = 1 << 16
_GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole parts, are spread evenly
_MOST_UNUSED_IDS = 1 << 20  # limits the size of tables by id


class Tokenizer:
    """A ``tokenizers`` pipeline and its special tokens. Immutable after loading, and thread-safe.

    Attributes:
        special_tokens: by the names that chat templates use (``bos_token``, ``eos_token``, …).
        special_ids: the ids that ``skip_special_tokens`` hides.
        bos_id, eos_id: None where the tokenizer names none.
        eos_ids: every id that ends a generation: the tokenizer's, ``generation_config.json``'s and ``config.json``'s.
        fill: the fill-in-the-middle marks, None where the tokenizer has none.
        decoder: the decoder, to be run one token at a time.
    """

    def __init__(self, files: TokenizerFiles, fill_order: FillOrder = "family") -> None:
        self._pipeline = files.pipeline
        self._plain: Pipeline | None = None
        self._tokens: dict[int, str] = {}
        """Cache of spellings: the library takes some microseconds for one."""
        self._lock = threading.Lock()
        self.decoder = DecoderSpec(files.decoder)
        self.special_tokens = files.special_tokens
        added = self._pipeline.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_id = self._named("bos_token")
        self.eos_id = self._named("eos_token")
        self.eos_ids = tuple(dict.fromkeys((*(() if self.eos_id is None else (self.eos_id,)), *files.eos_ids)))
        fill = find_fill_tokens(self._pipeline.token_to_id, files.fill_tokens)
        self.fill = None if fill is None else fill.ordered(fill_order)

    @classmethod
    def load(cls, folder: Path | str, fill_order: FillOrder = "family") -> Tokenizer:
        """Read the tokenizer of a model folder. Raises ModelError; see ``tokenizer_files``."""
        return cls(read_tokenizer_files(Path(folder)), fill_order)

    def encode(
        self, text: str, add_special_tokens: bool = True, parse_special: bool = True, max_tokens: int | None = None
    ) -> tuple[int, ...]:
        """Return the token ids of ``text``; the GIL is released meanwhile (about 4 MB/s on one core).

        ``add_special_tokens``: around the text, as the tokenizer itself does (BOS where the model has it).
        ``parse_special``: special tokens spelled in the text become those tokens; otherwise they are ordinary text.
        A rendered chat needs them parsed, the template's and so also those in a message, as ``transformers`` does.
        Raises ContextOverflow for text that surely has more than ``max_tokens`` tokens, at a cost that does not grow
        with its length; BadRequest for text that is not Unicode (a lone surrogate).
        """
        self._check_text(text, max_tokens)
        pipeline = self._pipeline if parse_special else self._plain_pipeline()
        # The library's `encode` keeps the GIL, its batch methods do not; this one also computes no offsets.
        try:
            return tuple(call_library(pipeline.encode_batch_fast, [text], add_special_tokens=add_special_tokens)[0].ids)
        except Exception as error:  # the library raises plain Exception
            raise _cannot_encode(error) from error

    def encode_pair(self, first: str, second: str, max_tokens: int | None = None) -> tuple[tuple[int, ...], int]:
        """Return the token ids of two texts as the tokenizer joins them, and the position of the first one that is of
        the second text's type; 0 where it gives all tokens one type. Raises as ``encode`` does."""
        for text in (first, second):
            self._check_text(text, max_tokens)
        try:
            encoding = call_library(self._pipeline.encode_batch_fast, [(first, second)], add_special_tokens=True)[0]
        except Exception as error:
            raise _cannot_encode(error) from error
        types = encoding.type_ids
        return tuple(encoding.ids), types.index(1) if 1 in types else 0

    def encode_beginning(self, text: str, max_tokens: int) -> tuple[int, ...]:
        """Return the token ids of the beginning of a text, at most ``max_tokens`` with the special tokens around it."""
        chars, around = max_tokens * self.max_token_chars, self.encode("")
        ids = self.encode(text[:chars])
        while len(ids) <= max_tokens and chars < len(text):  # the tokenizer drops characters
            chars *= 2
            ids = self.encode(text[:chars])
        if len(ids) <= max_tokens:
            return ids
        if max_tokens <= len(around):
            raise BadRequest(f"{max_tokens} tokens leave no room for a text: {len(around)} are around each")
        before = next((i for i, token_id in enumerate(around) if ids[i] != token_id), len(around))
        after = len(around) - before
        return (*ids[: max_tokens - after], *ids[len(ids) - after :])

    def encode_with_offsets(
        self, text: str, add_special_tokens: bool = True, max_tokens: int | None = None
    ) -> tuple[PromptToken, ...]:
        """Return the tokens of ``text``, each with its bytes in the text's UTF-8.

        Tokens that share a character have all of its bytes. Raises as ``encode`` does.
        """
        self._check_text(text, max_tokens)
        try:
            encoding = call_library(self._pipeline.encode_batch, [text], add_special_tokens=add_special_tokens)[0]
        except Exception as error:
            raise _cannot_encode(error) from error
        tokens = []
        char_at = byte_at = 0
        # The library counts characters.
        for token_id, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if start < char_at:  # a token added after the text has no position in it
                char_at = byte_at = 0
            byte_at += len(text[char_at:start].encode())
            char_at, token = start, text[start:stop]
            tokens.append(PromptToken(token_id, token, byte_at, byte_at + len(token.encode())))
        return tuple(tokens)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of all ids. Ids outside the vocabulary have none."""
        # The library goes on hiding a special token that the settings have declared to be none.
        hidden = self.special_ids if skip_special_tokens else frozenset()
        shown = [token_id for token_id in token_ids if 0 <= token_id <= _MAX_ID and token_id not in hidden]
        return self._pipeline.decode(shown, skip_special_tokens=False)

    def token(self, token_id: int) -> str | None:
        """Return the token in the vocabulary's spelling; None for an id outside the vocabulary."""
        token = self._tokens.get(token_id)
        if token is None and 0 <= token_id <= _MAX_ID:
            token = self._pipeline.id_to_token(token_id)
            if token is not None:
                self._tokens[token_id] = token
        return token

    def token_id(self, token: str) -> int | None:
        """Return the id of a token in the vocabulary's spelling; None where there is none."""
        return self._pipeline.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes that the token adds to a non-empty text; for many a part of a character."""
        token = self.token(token_id)
        return b"" if token is None else self.decoder.token_bytes(token)

    @functools.cached_property
    def token_table(self) -> tuple[bytes, ...]:
        """``token_bytes`` of every id below ``vocab_size``. Takes a second for 300,000."""
        return tuple(map(self.token_bytes, range(self.vocab_size)))

    def vocabulary(self, size: int, eos_ids: Sequence[int]) -> Vocabulary:
        """Return the vocabulary for grammars of a model with ``size`` rows and these end tokens. Rows without a token
        are left out."""
        tokens = self.token_table[:size]
        tokens += (b"",) * (size - len(tokens))
        # A model that never ends by itself still needs a token that stands for the end: its last one, as no text.
        ends = tuple(each for each in eos_ids if each < size) or (size - 1,)
        special = tuple(each for each in sorted(self.special_ids) if each < size)
        return Vocabulary(tokens=tokens, special_ids=special, end_ids=ends)

    def token_text(self, token_id: int) -> str:
        """Return ``token_bytes`` as text; bytes that are not a whole character are U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_special(self, token_id: int) -> bool:
        """Return whether ``skip_special_tokens`` hides the token."""
        return token_id in self.special_ids

    def render_fill(
        self,
        prefix: str,
        suffix: str,
        max_tokens: int | None = None,
        files: Sequence[tuple[str, str]] | None = None,
    ) -> tuple[int, ...] | None:
        """Return the prompt to fill the gap between two texts; None when the tokenizer has no tokens for it.

        ``files``: names and texts of other files, which come first; None: without anything about files.
        Special tokens spelled in the texts are ordinary text; BOS comes first where the tokenizer adds one. Raises
        as ``encode`` does.
        """
        if self.fill is None:
            return None
        texts = (prefix, suffix, *(text for file in files or () for text in file))
        self._check_length("prefix and suffix have", texts, max_tokens)
        if max_tokens is not None:
            for text in texts:
                self._check_count(text, max_tokens)
        before = self.encode(prefix, add_special_tokens=False, parse_special=False)
        after = self.encode_inside(suffix)
        bos = (self.bos_id,) if self.bos_id is not None and self.bos_id in self.encode("") else ()
        others: tuple[int, ...] = ()
        if files is not None:
            others = self.fill.files(
                files, lambda text: self.encode(text, add_special_tokens=False, parse_special=False)
            )
        return (*others, *bos, *self.fill.arrange(before, after))

    def encode_inside(self, text: str) -> tuple[int, ...]:
        """Return the token ids of text that does not begin a text: without the space that SentencePiece prepends.

        Special tokens spelled in it are ordinary text. Raises BadRequest for text that is not Unicode.
        """
        ids = self.encode(text, add_special_tokens=False, parse_special=False)
        if not self._adds_space:
            return ids
        # A rare character that merges with nothing is prepended and takes the space.
        mark = self.encode("☺", add_special_tokens=False, parse_special=False)
        marked = self.encode("☺" + text, add_special_tokens=False, parse_special=False)
        return marked[len(mark) :] if marked[: len(mark)] == mark else ids

    @functools.cached_property
    def _adds_space(self) -> bool:
        ids = self.encode("a", add_special_tokens=False)
        return bool(ids) and self.token_bytes(ids[0]).startswith(b" ")

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._extent[0]

    @property
    def max_token_chars(self) -> int:
        """Characters of the longest token. Text has at least its length over this many tokens, unless the tokenizer
        drops characters or turns a run of unknown ones into one token."""
        return self._extent[1]

    @functools.cached_property
    def _extent(self) -> tuple[int, int]:
        """Size of the vocabulary, in ids, and its longest token, in characters. Listing 128,000 tokens takes 0.1 s, so
        it is done on first use."""
        vocabulary = self._pipeline.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        if size > 8 * len(vocabulary) + _MOST_UNUSED_IDS:
            raise UnsupportedFeature(
                f"this model's tokenizer.json has ids up to {size - 1} for {len(vocabulary)} tokens"
            )
        return size, max(map(len, vocabulary), default=1)

    def _plain_pipeline(self) -> Pipeline:
        """Return a second pipeline for ``parse_special=False``: the library keeps that choice in the pipeline
        itself."""
        with self._lock:
            if self._plain is None:
                _ = self._extent  # raises for a vocabulary that takes minutes to write
                try:
                    self._plain = parse_pipeline(call_library(self._pipeline.to_str).encode())
                except Exception as error:  # if two tokens of a file share an id, the library writes only one
                    raise UnsupportedFeature(
                        f"this model's tokenizer.json cannot take special tokens for ordinary text: {error}"
                    ) from error
                self._plain.encode_special_tokens = True
            return self._plain

    def _named(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.token_id(token)

    def _check_text(self, text: str, max_tokens: int | None) -> None:
        self._check_length("the prompt has", (text,), max_tokens)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"the prompt is not valid Unicode: a lone surrogate at character {error.start}") from None
        if max_tokens is not None:
            self._check_count(text, max_tokens)

    def _check_count(self, text: str, max_tokens: int) -> None:
        """Count a long text in pieces before it is tokenized as a whole, which takes some 300 bytes for each token."""
        if len(text) <= 2 * max_tokens + _PIECE_CHARS:
            return
        # At a cut a token may become two.
        most, count, chars = max_tokens + max_tokens // 4 + 64, 0, 0
        for piece in _pieces(text):
            try:
                count += self._count(piece)
            except Exception as error:
                raise _cannot_encode(error) from error
            chars += len(piece)
            if count > most:
                estimate = round(count * len(text) / chars)
                message = f"the prompt has more than {max_tokens} tokens"
                raise ContextOverflow(message, prompt_tokens=estimate, is_exact=False)

    def _check_length(self, what: str, texts: Sequence[str], max_tokens: int | None) -> None:
        chars = sum(map(len, texts))
        if max_tokens is None or chars <= max_tokens:  # the usual case, without the vocabulary
            return
        if chars > (most := max_tokens * self.max_token_chars):
            piece = next(_pieces(max(texts, key=len)))
            estimate = -(-chars // self.max_token_chars)
            with contextlib.suppress(Exception):  # it is too long, whatever else is wrong with it
                estimate = max(estimate, round(self._count(piece) * chars / len(piece)))
            message = f"{what} {chars} characters; this model takes at most {most}"
            raise ContextOverflow(message, prompt_tokens=estimate, is_exact=False)

    def _count(self, piece: str) -> int:
        """Return the number of a text's tokens. Raises what the library does."""
        (found,) = call_library(self._pipeline.encode_batch_fast, [piece], add_special_tokens=False)
        return len(found)


def _pieces(text: str) -> Iterator[str]:
    """Yield all pieces of a text, each far from the one before it: the first ones stand for the whole."""
    count = -(-len(text) // _PIECE_CHARS)
    for i in sorted(range(count), key=lambda i: i * _GOLDEN % 1):
        yield text[i * _PIECE_CHARS : (i + 1) * _PIECE_CHARS]


def _cannot_encode(error: Exception) -> BadRequest:
    """Return the error for text that a tokenizer has no tokens for, not even an unknown one."""
    return BadRequest(f"this model's tokenizer cannot read the text: {error}")
