"""Translation from core to wire, as pure functions and structs: responses, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.core.events import FinishReason, Generation, GenerationResult, PromptReady, TextDelta, Token, Usage
from dragoman.dialects.chat_stream import ChatChunk, ChatShaper
from dragoman.dialects.gemini.content import signature_of
from dragoman.dialects.gemini.errors import render_error
from dragoman.dialects.json_lines import json_line
from dragoman.dialects.logprobs import FLOOR, shown_tokens
from dragoman.dialects.openai_stream import finish_reason
from dragoman.dialects.reasoning import ThinkingCounter
from dragoman.dialects.tools import MessageShape
from dragoman.text.call_parser import CallArguments, CallEnd, CallStart, Content, Part, Reasoning
from dragoman.text.chat_parser import MessageReader

REASONS = {"stop": "STOP", "length": "MAX_TOKENS"}
MALFORMED = "MALFORMED_FUNCTION_CALL"
CUT_CALL = "The arguments of the last function call are incomplete, so the call is left out."
BAD_CALL = "The arguments of a function call are no JSON object, so the call is left out."


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every response to one request has, and how its content is shown.

    Attributes:
        shows_thoughts: reasoning is part of the content.
        logprobs: the number of alternatives of each token; None: no log-probabilities.
    """

    id: str
    model: str
    shape: MessageShape
    shows_thoughts: bool = False
    logprobs: int | None = None

    def response(self, candidates: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        """Return a response, or a chunk of one."""
        counts = {} if usage is None else {"usageMetadata": usage}
        return {"candidates": candidates, **counts, "modelVersion": self.model, "responseId": self.id}

    def reader(self, event: PromptReady) -> MessageReader:
        return self.shape.reader(reasoning_begun=event.reasoning_begun)

    def counter(self, event: PromptReady) -> ThinkingCounter:
        return ThinkingCounter(self.shape.reasoning, event)


class Writer:
    """Makes the parts of one candidate's content, as they come.

    ``unfinished``: a call was left out, as its arguments are no object.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._hidden = ""
        self._call: CallStart | None = None
        self._arguments: list[str] = []
        self.unfinished = False

    def write(self, part: Part) -> dict[str, Any] | None:
        """Return the part of the content that a part of the message becomes; None: there is none yet."""
        match part:
            case Content(text):
                return self._signed({"text": text})
            case Reasoning(text):
                if self._head.shows_thoughts:
                    return {"text": text, "thought": True}
                self._hidden += text
            case CallStart():
                self._call, self._arguments = part, []
            case CallArguments(_, text):
                self._arguments.append(text)
            case CallEnd():
                return self._made_call()
        return None

    def _made_call(self) -> dict[str, Any] | None:
        call, self._call = self._call, None
        assert call is not None, "a call that ends has begun"
        args = _object("".join(self._arguments))
        if args is None:
            self.unfinished = True
            return None
        return self._signed({"functionCall": {"id": call.id, "name": call.name, "args": args}})

    def _signed(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return the part with the reasoning before it, which is not shown."""
        hidden, self._hidden = self._hidden, ""
        return part | {"thoughtSignature": signature_of(hidden)} if hidden else part

    def ending(self, finish: FinishReason) -> dict[str, Any]:
        """Return why the candidate ends. Raises GenerationFailed, GenerationTimeout."""
        reason = REASONS[finish_reason(finish) or ""]
        if not self.unfinished:
            return {"finishReason": reason}
        if reason == "MAX_TOKENS":
            return {"finishReason": reason, "finishMessage": CUT_CALL}
        return {"finishReason": MALFORMED, "finishMessage": BAD_CALL}


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def whole_response(head: Head, result: GenerationResult) -> dict[str, Any]:
    """Return a whole response."""
    candidates, thoughts = [], 0
    for generation in result.generations:
        counter = head.counter(result.prompt)
        counter.push(generation.text, generation.tokens)
        thoughts += counter.count
        candidates.append(_candidate(head, generation, head.reader(result.prompt)))
    return head.response(candidates, usage_metadata(result.usage, thoughts))


def _candidate(head: Head, generation: Generation, reader: MessageReader) -> dict[str, Any]:
    writer, parts = Writer(head), list[dict[str, Any]]()
    for part in (*reader.push(generation.text), *reader.flush()):
        made = writer.write(part)
        if made is not None:
            _add(parts, made)
    tokens = shown_tokens(generation.tokens, len(generation.text), generation.finish)
    return candidate(generation.index, parts or [{"text": ""}], writer.ending(generation.finish)) | (
        logprobs_of(head, tokens, is_whole=True)
    )


def _add(parts: list[dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a part, to the last one where both are texts of a kind."""
    last = parts[-1] if parts else {}
    alike = "text" in last and "text" in part and last.get("thought") == part.get("thought")
    if alike and "thoughtSignature" not in part:
        last["text"] += part["text"]
    else:
        parts.append(part)


def candidate(index: int, parts: list[dict[str, Any]], end: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a candidate, or a chunk of one."""
    return {"content": {"parts": parts, "role": "model"}, **(end or {}), "index": index}


def logprobs_of(head: Head, tokens: Sequence[Token], *, is_whole: bool = False) -> dict[str, Any]:
    """Return the members of a candidate with the log-probabilities of tokens; none where none are asked for."""
    if head.logprobs is None or not (tokens or is_whole):
        return {}
    chosen = [_token(token) for token in tokens]
    total = sum(each["logProbability"] for each in chosen)
    result: dict[str, Any] = {"chosenCandidates": chosen, "logProbabilitySum": total}
    if head.logprobs:
        result["topCandidates"] = [{"candidates": [_token(each) for each in token.top]} for token in tokens]
    average = {"avgLogprobs": total / len(chosen)} if is_whole and chosen else {}
    return {**average, "logprobsResult": result}


def _token(token: Token) -> dict[str, Any]:
    logprob = FLOOR if token.logprob is None else max(token.logprob, FLOOR)
    return {"token": token.text, "tokenId": token.token_id, "logProbability": logprob}


def usage_metadata(usage: Usage, thoughts: int) -> dict[str, Any]:
    """Return the counts of tokens. Those of the candidates are without the ``thoughts``."""
    counts = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - thoughts,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }
    if usage.cached_tokens:
        counts["cachedContentTokenCount"] = usage.cached_tokens
    return counts | ({"thoughtsTokenCount": thoughts} if thoughts else {})


class Framing:
    """How the chunks of a stream are written: as server-sent events, or as the items of one JSON array."""

    def __init__(self, *, events: bool) -> None:
        self._events, self._begun = events, False
        self.content_type = "text/event-stream; charset=utf-8" if events else "application/json"

    def chunk(self, value: dict[str, Any]) -> bytes:
        """Return one chunk."""
        if self._events:
            return b"data: " + json_line(value) + b"\n"
        before, self._begun = (b"," if self._begun else b"["), True
        return before + json_line(value)

    def end(self) -> bytes:
        """Return the end of the stream."""
        if self._events:
            return b""
        return b"]\n" if self._begun else b"[]\n"


class ResponseChunks(ChatShaper):
    """The chunks of a streamed response, each a whole response. The last one has why the candidates end, and the
    counts: ``end`` returns it."""

    tokens_apart = False

    def __init__(self, head: Head, framing: Framing, candidates: int) -> None:
        self._head, self._framing = head, framing
        self._writers = [Writer(head) for _ in range(candidates)]
        self._tokens: list[list[Token]] = [[] for _ in range(candidates)]
        self._finishes: list[FinishReason] = [FinishReason.CANCELLED] * candidates
        self._counters: list[ThinkingCounter] = []

    def reader(self, event: PromptReady) -> MessageReader:
        return self._head.reader(event)

    def opening(self, index: int, event: PromptReady) -> Iterable[bytes]:
        self._counters.append(self._head.counter(event))
        return ()

    def tokens(self, event: TextDelta, length: int) -> Sequence[Token]:
        self._counters[event.sequence].push(event.text, event.tokens)
        return () if self._head.logprobs is None else shown_tokens(event.tokens, length, event.finish)

    def shows(self, part: Part) -> bool:
        return True

    def write(self, chunk: ChatChunk) -> Iterable[bytes]:
        i = chunk.choice
        self._tokens[i] += chunk.tokens
        if chunk.finish is not None:
            self._finishes[i] = chunk.finish
        part = None if chunk.part is None else self._writers[i].write(chunk.part)
        if part is None:
            return ()
        made = candidate(i, [part]) | self._logprobs(i)
        return (self._framing.chunk(self._head.response([made], None)),)

    def _logprobs(self, i: int) -> dict[str, Any]:
        tokens, self._tokens[i] = self._tokens[i], []
        return logprobs_of(self._head, tokens)

    def end(self, usages: Sequence[Usage]) -> Iterable[bytes]:
        """Yield the last chunk, and the end of the stream."""
        (usage,) = usages
        ends = [
            # A content without parts is none for clients, which then keep no history.
            candidate(i, [{"text": ""}], writer.ending(finish)) | self._logprobs(i)
            for i, (writer, finish) in enumerate(zip(self._writers, self._finishes, strict=True))
        ]
        counts = usage_metadata(usage, sum(counter.count for counter in self._counters))
        yield self._framing.chunk(self._head.response(ends, counts))
        yield self._framing.end()

    def fault(self, error: DragomanError) -> Iterable[bytes]:
        """Yield what ends a stream that cannot be finished."""
        yield self._framing.chunk(render_error(error).body)
        yield self._framing.end()
