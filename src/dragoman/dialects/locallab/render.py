"""Core to wire, as pure functions: the answers of the LocalLab dialect, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.core.events import FinishReason, GenerationResult, Usage
from dragoman.dialects.locallab.chunking import DONE, Piece, Pieces
from dragoman.dialects.locallab.errors import one_line
from dragoman.dialects.locallab.translate import StreamFormat

encode = msgspec.json.Encoder().encode

END = f"data: {DONE}\n\n".encode()


def finish_reason(finish: FinishReason, message: str = "") -> str:
    """``stop`` or ``length``, as the end was. Raises GenerationFailed where it was neither."""
    match finish:
        case FinishReason.EOS | FinishReason.STOP_TOKEN | FinishReason.STOP_STRING:
            return "stop"
        case FinishReason.LENGTH | FinishReason.TIMEOUT:
            return "length"
        case _:
            raise GenerationFailed(message or "The generation was cancelled.")


def usage(counts: Sequence[Usage]) -> dict[str, int]:
    """The token counts, also as the TypeScript client spells them."""
    prompt = sum(one.prompt_tokens for one in counts)
    completion = sum(one.completion_tokens for one in counts)
    plain = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return plain | {"promptTokens": prompt, "completionTokens": completion, "totalTokens": prompt + completion}


def generated(result: GenerationResult, model: str) -> dict[str, Any]:
    """``POST /generate``: what both generations of the server answered."""
    text, finish = _whole(result)
    names = {"model": model, "model_id": model, "modelId": model}
    return {"response": text, "usage": usage([result.usage]), "text": text, **names, "finish_reason": finish}


def chatted(result: GenerationResult, model: str) -> dict[str, Any]:
    """``POST /chat``."""
    text, finish = _whole(result)
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": finish,
        "finishReason": finish,
    }
    return {"choices": [choice], "usage": usage([result.usage]), "model": model, "modelId": model}


def batched(results: Sequence[GenerationResult], model: str) -> dict[str, Any]:
    """``POST /generate/batch``: texts in the order of the prompts."""
    texts = [_whole(result)[0] for result in results]
    counts = usage([result.usage for result in results])
    return {"responses": texts, "usage": counts, "model": model, "modelId": model}


def _whole(result: GenerationResult) -> tuple[str, str]:
    one = result.generations[0]
    return one.text, finish_reason(one.finish)


class Writer(Protocol):
    """One way to write a stream; each method returns what goes on the wire now."""

    content_type: str

    def text(self, text: str) -> list[bytes]: ...

    def end(self, finish: str, counts: Usage) -> list[bytes]: ...

    def fail(self, error: DragomanError) -> bytes:
        """Instead of ``end``: what ends a stream that cannot be finished."""


def writer(form: StreamFormat, *, role: bool) -> Writer:
    """``role``: the stream is a chat's, and its events say who speaks."""
    match form:
        case "sse":
            return LineWriter()
        case "dual":
            return DualWriter()
        case "json":
            return JsonWriter(role=role)
        case "raw":
            return RawWriter()


class LineWriter:
    """``data: `` and a piece of text on one line."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self) -> None:
        self._pieces = Pieces()

    def text(self, text: str) -> list[bytes]:
        return [_line(piece) for piece in self._pieces.push(text)]

    def end(self, finish: str, counts: Usage) -> list[bytes]:
        return [*[_line(piece) for piece in self._pieces.flush()], END]

    def fail(self, error: DragomanError) -> bytes:
        return f"data: Error: {one_line(error)}\n\n".encode()


class DualWriter:
    """Two lines for each piece: one as of ``LineWriter``, one of JSON for readers that take only that."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self) -> None:
        self._pieces = Pieces()

    def text(self, text: str) -> list[bytes]:
        return [self._event(piece) for piece in self._pieces.push(text)]

    def end(self, finish: str, counts: Usage) -> list[bytes]:
        events = [self._event(piece) for piece in self._pieces.flush()]
        if self._pieces.rest:
            events.append(_chat_json(self._pieces.rest) + b"\n\n")
        choice = {"index": 0, "delta": {}, "finish_reason": finish}
        last = {"role": "assistant", "content": "", "choices": [choice], "usage": usage([counts])}
        return [*events, encode(last) + b"\n\n", END]

    def fail(self, error: DragomanError) -> bytes:
        message = one_line(error)
        return f"data: Error: {message}\n".encode() + encode({"error": message}) + b"\n\n"

    def _event(self, piece: Piece) -> bytes:
        return f"data: {piece.line}\n".encode() + _chat_json(piece.text) + b"\n\n"


class JsonWriter:
    """Events of JSON, which lose nothing."""

    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, *, role: bool) -> None:
        self._who = {"role": "assistant"} if role else {}

    def text(self, text: str) -> list[bytes]:
        return [b"data: " + encode(self._who | {"content": text}) + b"\n\n"] if text else []

    def end(self, finish: str, counts: Usage) -> list[bytes]:
        last = self._who | {"content": "", "finish_reason": finish, "usage": usage([counts])}
        return [b"data: " + encode(last) + b"\n\n", END]

    def fail(self, error: DragomanError) -> bytes:
        return b"data: " + encode({"error": one_line(error)}) + b"\n\n"


class RawWriter:
    """Plain text. A reader drops what is only white space, so that waits for what follows."""

    content_type = "text/plain; charset=utf-8"

    def __init__(self) -> None:
        self._held = ""

    def text(self, text: str) -> list[bytes]:
        self._held += text
        if not self._held.strip():
            return []
        shown, self._held = self._held, ""
        return [shown.encode()]

    def end(self, finish: str, counts: Usage) -> list[bytes]:
        return [self._held.encode()] if self._held else []

    def fail(self, error: DragomanError) -> bytes:
        return f"\nError: {one_line(error)}".encode()


def _line(piece: Piece) -> bytes:
    return f"data: {piece.line}\n\n".encode()


def _chat_json(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return encode({"role": "assistant", "content": text, "choices": [choice]})
