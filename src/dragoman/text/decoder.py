"""Streaming decoder: a tokenizer's decoder that runs one token at a time.

``tokenizers`` decodes a whole list of tokens through a chain of stages. Each stage here does to a stream what the
stage of the same name does to the list, so that pushing every token and then flushing gives exactly the whole
decode, at a cost that does not depend on the number of earlier tokens. A stage holds back only what later tokens can
still change:

* ``ByteLevel``: the bytes of an unfinished character, three at most.
* ``ByteFallback``: a run of ``<0xNN>`` tokens, to its end: one invalid byte anywhere turns every byte of the run
  into U+FFFD, so nothing of it is certain earlier.
* ``BPEDecoder``: a token with an end-of-word mark, which becomes a space unless the text ends there.
* ``Strip`` and ``Replace`` after ``Fuse``: text that may be the end of the text, or part of the pattern.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Regex, decoders

from dragoman.core.errors import ModelError

REPLACEMENT = "\ufffd"


class Stage(Protocol):
    """One step of the chain: tokens are pushed one by one, zero or more come out."""

    def push(self, token: str) -> Sequence[str]: ...

    def flush(self) -> Sequence[str]: ...


class Decoder:
    """The stages of one stream; created by ``DecoderSpec.start``."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages

    def push(self, token: str) -> str:
        """Return the text that is certain after ``token``."""
        tokens: Sequence[str] = (token,)
        for stage in self._stages:
            tokens = stage.push(tokens[0]) if len(tokens) == 1 else [out for t in tokens for out in stage.push(t)]
        return "".join(tokens)

    def settle(self) -> str:
        """Return the whole characters of a run of bytes, which it holds back in case a later byte is invalid. Now they
        are certain: a prompt ends here."""
        tokens: list[str] = []
        for stage in self._stages:
            tokens = [out for token in tokens for out in stage.push(token)]
            if isinstance(stage, _ByteFallback):
                tokens.extend(stage.settle())
        return "".join(tokens)

    def flush(self) -> str:
        """Return the rest of the text: no token follows."""
        tokens: list[str] = []
        for stage in self._stages:
            tokens = [out for token in tokens for out in stage.push(token)]
            tokens.extend(stage.flush())
        return "".join(tokens)


class DecoderSpec:
    """A tokenizer's ``decoder`` in the library's format (None: tokens are joined by spaces), checked once.

    Raises ModelError for a decoder that is unknown or cannot be streamed.
    """

    def __init__(self, spec: Mapping[str, Any] | None) -> None:
        self._makers: list[Callable[[], Stage]] = []
        self._byte_level = self._byte_fallback = False
        fused = False
        for part in _flatten(spec):
            kind = str(part.get("type"))
            stages = _FUSED_STAGES if fused else _TOKEN_STAGES
            if kind not in stages:
                raise ModelError(f"tokenizer.json: the decoder {kind} is not supported" + " after Fuse" * fused)
            make = functools.partial(stages[kind], part)
            try:
                make()
            except (KeyError, TypeError, ValueError) as error:
                raise ModelError(f"tokenizer.json: malformed decoder {kind}: {error!r}") from error
            self._makers.append(make)
            self._byte_level |= kind == "ByteLevel"
            self._byte_fallback |= kind == "ByteFallback"
            fused |= kind in ("ByteLevel", "Fuse")

    def start(self) -> Decoder:
        """Return a new stream."""
        return Decoder([make() for make in self._makers])

    def begins_character(self, token: str) -> bool:
        """Return whether ``token`` decodes to the same text whatever bytes precede it."""
        if self._byte_level:
            return not 0x80 <= next(iter(byte_level_bytes(token)), 0) < 0xC0
        return not (self._byte_fallback and byte_fallback(token) is not None)

    def token_bytes(self, token: str) -> bytes:
        """Return the exact bytes that ``token`` adds at the end of a non-empty text."""
        if self._byte_level:
            return byte_level_bytes(token)
        if self._byte_fallback and (byte := byte_fallback(token)) is not None:
            return bytes((byte,))
        decoder = self.start()
        begun = decoder.push("a")
        return (begun + decoder.push(token) + decoder.flush())[1:].encode()


def _flatten(spec: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    if spec is None:
        yield {"type": "Join"}
    elif spec.get("type") == "Sequence":
        for part in spec["decoders"]:
            yield from _flatten(part)
    else:
        yield spec


def _byte_alphabet() -> dict[str, int]:
    """Return GPT-2's printable alphabet: Latin-1's visible characters are themselves, every other byte is 256
    and up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTE_OF = _byte_alphabet()
_CHARS = {byte: char for char, byte in _BYTE_OF.items()}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@functools.lru_cache(1 << 14)
def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token. One with characters outside the alphabet (an added token) is
    plain text."""
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


def byte_level_token(data: bytes) -> str:
    """Return the byte-level token of these bytes."""
    return data.decode("latin-1").translate(_CHARS)


def byte_fallback(token: str) -> int | None:
    """Return the byte of a token such as ``<0x0A>``; None for any other token."""
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else None


class _Map:
    """A stage that treats each token separately; only the first token may differ."""

    def __init__(self, first: Callable[[str], str], later: Callable[[str], str]) -> None:
        self._first, self._later = first, later
        self._begun = False

    def push(self, token: str) -> Sequence[str]:
        if self._begun:
            return (self._later(token),)
        self._begun = True
        return (self._first(token),)

    def flush(self) -> Sequence[str]:
        return ()


def _join(_: Mapping[str, Any]) -> Stage:
    return _Map(lambda token: token, lambda token: " " + token)


def _metaspace(part: Mapping[str, Any]) -> Stage:
    mark = str(part["replacement"])
    strip = part["prepend_scheme"] != "never"

    def later(token: str) -> str:
        return token.replace(mark, " ")

    return _Map((lambda token: token.replace(mark, "")) if strip else later, later)


_CLEANUPS = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
    *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


def _word_piece(part: Mapping[str, Any]) -> Stage:
    prefix = str(part["prefix"])
    cleanups = _CLEANUPS if part["cleanup"] else ()

    def clean(token: str) -> str:
        for old, new in cleanups:
            token = token.replace(old, new)
        return token

    def later(token: str) -> str:
        return clean(token.removeprefix(prefix) if token.startswith(prefix) else " " + token)

    return _Map(clean, later)


def _replace(part: Mapping[str, Any]) -> Stage:
    content, pattern = str(part["content"]), part["pattern"]
    if "String" in pattern:
        replace = functools.partial(_replace_string, pattern["String"], content)
    else:
        # Oniguruma's dialect differs from Python's, so the library applies its own.
        library = decoders.Replace(Regex(pattern["Regex"]), content)
        replace = functools.partial(_decode_alone, library)
    return _Map(replace, replace)


def _replace_string(old: str, new: str, token: str) -> str:
    return token.replace(old, new)


def _decode_alone(decoder: decoders.Decoder, token: str) -> str:
    return decoder.decode([token])


def _strip(part: Mapping[str, Any]) -> Stage:
    content, start, stop = str(part["content"]), int(part["start"]), int(part["stop"])

    def strip(token: str) -> str:
        left = _leading(token, content, start)
        right = _leading(token[::-1], content, stop)
        return token[left : max(left, len(token) - right)]

    return _Map(strip, strip)


def _leading(text: str, char: str, limit: int) -> int:
    """Return how many of the first ``limit`` characters are ``char``, consecutively."""
    count = 0
    while count < min(limit, len(text)) and text[count] == char:
        count += 1
    return count


class _ByteLevel:
    """All bytes of the text as UTF-8; invalid ones become U+FFFD by the rule that Rust and Python share (one for each
    maximal part of a character)."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        self._unfinished = b""

    def push(self, token: str) -> Sequence[str]:
        data = byte_level_bytes(token)
        if self._unfinished:
            data = self._unfinished + data
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._unfinished = data[used:]
        return (text,)

    def flush(self) -> Sequence[str]:
        rest, self._unfinished = self._unfinished, b""
        return (rest.decode("utf-8", "replace"),)


class _ByteFallback:
    def __init__(self, _: Mapping[str, Any]) -> None:
        self._run = bytearray()

    def push(self, token: str) -> Sequence[str]:
        byte = byte_fallback(token)
        if byte is not None:
            self._run.append(byte)
            return ()
        return (*self.flush(), token) if self._run else (token,)

    def settle(self) -> Sequence[str]:
        try:
            text, used = codecs.utf_8_decode(bytes(self._run), "strict", False)
        except UnicodeDecodeError:
            return self.flush()
        del self._run[:used]
        return (text,) if text else ()

    def flush(self) -> Sequence[str]:
        run = bytes(self._run)
        self._run.clear()
        try:
            return (run.decode(),) if run else ()
        except UnicodeDecodeError:
            return (REPLACEMENT,) * len(run)


class _EndOfWord:
    """``BPEDecoder``: the suffix of a word is a space, but nothing at the end of the text."""

    def __init__(self, part: Mapping[str, Any]) -> None:
        self._suffix = str(part["suffix"])
        self._pending: str | None = None

    def push(self, token: str) -> Sequence[str]:
        before = () if self._pending is None else (self._pending.replace(self._suffix, " "),)
        if self._suffix in token:
            self._pending = token
            return before
        self._pending = None
        return (*before, token)

    def flush(self) -> Sequence[str]:
        pending, self._pending = self._pending, None
        return () if pending is None else (pending.replace(self._suffix, ""),)


class _Fuse:
    """Joins all tokens into one. Later stages see parts of a single token."""

    def __init__(self, _: Mapping[str, Any]) -> None:
        pass

    def push(self, token: str) -> Sequence[str]:
        return (token,)

    def flush(self) -> Sequence[str]:
        return ()


class _FusedStrip:
    def __init__(self, part: Mapping[str, Any]) -> None:
        self._content = str(part["content"])
        self._start, self._stop = int(part["start"]), int(part["stop"])
        self._pending = ""

    def push(self, text: str) -> Sequence[str]:
        if self._start:
            cut = _leading(text, self._content, self._start)
            self._start = 0 if cut < len(text) else self._start - cut
            text = text[cut:]
        if not self._stop:
            return (text,)
        text = self._pending + text
        cut = len(text) - _leading(text[::-1], self._content, self._stop)
        self._pending = text[cut:]
        return (text[:cut],)

    def flush(self) -> Sequence[str]:
        self._pending = ""
        return ()


class _FusedReplace:
    def __init__(self, part: Mapping[str, Any]) -> None:
        self._new, self._old = str(part["content"]), str(part["pattern"]["String"])
        self._pending = ""

    def push(self, text: str) -> Sequence[str]:
        *done, rest = (self._pending + text).split(self._old)
        size = min(len(rest), len(self._old) - 1)
        while size and not self._old.startswith(rest[-size:]):
            size -= 1
        self._pending = rest[len(rest) - size :]
        return (self._new.join((*done, rest[: len(rest) - size])),)

    def flush(self) -> Sequence[str]:
        pending, self._pending = self._pending, ""
        return (pending,)


_Table = Mapping[str, Callable[[Mapping[str, Any]], Stage]]

_TOKEN_STAGES: _Table = {
    "BPEDecoder": _EndOfWord,
    "ByteFallback": _ByteFallback,
    "ByteLevel": _ByteLevel,
    "Fuse": _Fuse,
    "Join": _join,
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
    "WordPiece": _word_piece,
}
_FUSED_STAGES: _Table = {"Fuse": _Fuse, "Replace": _FusedReplace, "Strip": _FusedStrip}
