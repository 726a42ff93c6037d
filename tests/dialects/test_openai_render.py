"""OpenAI's answers and errors, from values of the core."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.core import errors
from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.core.events import FinishReason, PromptReady, TextDelta, Token, Usage
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.completion_stream import CompletionStream
from dragoman.dialects.field_types import FieldError, FieldRule, Integer, ListOf, Number, OneOf, String
from dragoman.dialects.logprobs import chat_logprobs, completion_logprobs, shown_tokens
from dragoman.dialects.openai.errors import render_error
from dragoman.dialects.openai.render import ChatChunks, CompletionChunks, Envelope, fault
from dragoman.dialects.openai_stream import finish_reason, usage

HEAD = Envelope("id-1", 7, "m", "fp")


def decoded(chunks: Any) -> list[dict[str, Any]]:
    result = []
    for chunk in chunks:
        assert chunk.startswith(b"data: ")
        assert chunk.endswith(b"\n\n")
        assert chunk.count(b"\n") == 2
        result.append(json.loads(chunk[6:]))
    return result


def token(text: str, logprob: float | None = -1.0, offset: int = 0, raw: bytes | None = None) -> Token:
    return Token(1, text, text.encode() if raw is None else raw, logprob, (), offset)


@pytest.mark.parametrize(
    ("finish", "word"),
    [
        (None, None),
        (FinishReason.EOS, "stop"),
        (FinishReason.STOP_TOKEN, "stop"),
        (FinishReason.STOP_STRING, "stop"),
        (FinishReason.LENGTH, "length"),
    ],
)
def test_finish_reasons(finish: FinishReason | None, word: str | None) -> None:
    assert finish_reason(finish) == word


@pytest.mark.parametrize("finish", [FinishReason.TIMEOUT, FinishReason.CANCELLED, FinishReason.ERROR])
def test_ends_that_are_failures_raise(finish: FinishReason) -> None:
    with pytest.raises(GenerationFailed, match="why"):
        finish_reason(finish, "why")
    with pytest.raises(GenerationFailed):
        finish_reason(finish)


def test_usage_adds_up_all_prompts() -> None:
    counts = [Usage(prompt_tokens=3, completion_tokens=5, cached_tokens=2), Usage(prompt_tokens=1, completion_tokens=1)]
    assert usage(counts) == {
        "prompt_tokens": 4,
        "completion_tokens": 6,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_chat_stream_opens_each_choice_and_closes_it() -> None:
    stream = ChatStream(ChatChunks(HEAD, logprobs=False), 2)
    prompt = PromptReady(prompt_tokens=1, cached_tokens=0, seeds=(1, 2))
    opened = decoded(stream.prompt(prompt))
    assert [chunk["choices"][0]["index"] for chunk in opened] == [0, 1]
    assert opened[0] == {
        "id": "id-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "", "refusal": None},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
    }
    last = decoded(stream.delta(TextDelta(sequence=1, text="x", finish=FinishReason.LENGTH)))
    assert [chunk["choices"][0]["delta"] for chunk in last] == [{"content": "x"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in last] == [None, "length"]
    assert decoded(stream.delta(TextDelta(sequence=0, text=""))) == []


def test_usage_key_is_there_only_when_asked_for() -> None:
    counted = Envelope("id-1", 7, "m", "fp", counted=True)
    delta = TextDelta(sequence=0, text="x")
    assert "usage" not in decoded(CompletionStream(CompletionChunks(HEAD, logprobs=False)).delta(delta))[0]
    assert decoded(CompletionStream(CompletionChunks(counted, logprobs=False)).delta(delta))[0]["usage"] is None
    counts = [Usage(prompt_tokens=1, completion_tokens=2)]
    for chunks in (CompletionChunks(counted, logprobs=False), ChatChunks(counted, logprobs=False)):
        last = decoded([*chunks.end(counts)][:1])[0]
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == 3


def test_completion_stream_numbers_choices_prompt_by_prompt() -> None:
    stream = CompletionStream(CompletionChunks(HEAD, logprobs=False), 2, 4)
    (chunk,) = decoded(stream.delta(TextDelta(sequence=1, text="x", finish=FinishReason.EOS)))
    assert chunk["object"] == "text_completion"
    assert chunk["choices"] == [{"text": "x", "index": 5, "logprobs": None, "finish_reason": "stop"}]


def test_echoed_prompt_shifts_the_offsets() -> None:
    stream = CompletionStream(CompletionChunks(HEAD, logprobs=True))
    prompt = PromptReady(prompt_tokens=1, cached_tokens=0, seeds=(1,), tokens=(token("abc", None),), text="abc")
    (echoed,) = decoded(stream.prompt(prompt))
    assert echoed["choices"][0]["text"] == "abc"
    assert echoed["choices"][0]["logprobs"]["token_logprobs"] == [None]
    (chunk,) = decoded(stream.delta(TextDelta(sequence=0, text="d", tokens=(token("d"),))))
    assert chunk["choices"][0]["logprobs"]["text_offset"] == [3]


# Log-probabilities ---------------------------------------------------------------------------------------------------


def test_completion_logprobs_are_parallel_lists() -> None:
    top = (token("b", -0.5), token("c", -2.0))
    shape = completion_logprobs([token("a", None), Token(2, "d", b"d", -3.0, top, 1)], 10)
    assert shape == {
        "tokens": ["a", "d"],
        "token_logprobs": [None, -3.0],
        "top_logprobs": [None, {"b": -0.5, "c": -2.0, "d": -3.0}],
        "text_offset": [10, 11],
    }


def test_chat_logprobs_carry_bytes() -> None:
    entry = Token(2, "\ufffd", b"\xe2\x82", -3.0, (token("c", -2.0),), 1)
    assert chat_logprobs([entry]) == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -3.0,
                "bytes": [0xE2, 0x82],
                "top_logprobs": [{"token": "c", "logprob": -2.0, "bytes": [99]}],
            }
        ],
        "refusal": None,
    }


def test_parts_of_characters_are_named_by_their_bytes() -> None:
    assert completion_logprobs([token("\ufffd", raw=b"\xe2\x82")], 0)["tokens"] == ["bytes:\\xe2\\x82"]


def test_minus_infinity_is_floored() -> None:
    assert completion_logprobs([token("a", float("-inf"))], 0)["token_logprobs"] == [-9999.0]


def test_tokens_that_the_text_does_not_show_are_left_out() -> None:
    tokens = [token("ab", offset=0), token("c", offset=2), token("", offset=3)]
    assert len(shown_tokens(tokens, 3, FinishReason.LENGTH)) == 3
    assert len(shown_tokens(tokens, 3, FinishReason.EOS)) == 2
    assert len(shown_tokens(tokens, 1, FinishReason.STOP_STRING)) == 1
    assert len(shown_tokens(tokens, 0, FinishReason.STOP_STRING)) == 0


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (errors.BadRequest("m", param="p"), 400, "invalid_request_error", None),
        (errors.UnsupportedFeature("m", param="p"), 400, "invalid_request_error", "unsupported_parameter"),
        (errors.ContextOverflow("m", param="p"), 400, "invalid_request_error", "context_length_exceeded"),
        (errors.Unauthorized("m"), 401, "invalid_request_error", "invalid_api_key"),
        (errors.ModelNotFound("m"), 404, "invalid_request_error", "model_not_found"),
        (errors.NotFound("m"), 404, "invalid_request_error", "unknown_url"),
        (errors.MethodNotAllowed("m"), 405, "invalid_request_error", "method_not_supported"),
        (errors.RequestTimeout("m"), 408, "invalid_request_error", "request_timeout"),
        (errors.PayloadTooLarge("m"), 413, "invalid_request_error", "request_too_large"),
        (errors.Overloaded("m", retry_after_s=3), 429, "rate_limit_error", "rate_limit_exceeded"),
        (errors.GenerationFailed("m"), 500, "server_error", None),
        (errors.EngineUnavailable("m"), 503, "server_error", "service_unavailable"),
    ],
)
def test_every_error_has_its_status(error: DragomanError, status: int, kind: str, code: str | None) -> None:
    answer = render_error(error)
    assert answer.status == status
    assert answer.body == {"error": {"message": "m", "type": kind, "param": error.param, "code": code}}
    assert answer.headers == ({"retry-after": "3", "retry-after-ms": "3000"} if status == 429 else {})


def test_every_error_of_the_core_is_in_the_table() -> None:
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, DragomanError):
            required = {errors.IdempotencyError: {"status": 422}, errors.BadImage: {"reason": "why"}}
            given = required.get(error, {})
            assert 400 <= render_error(error("m", **given)).status <= 599


def test_an_error_in_a_stream_is_an_event() -> None:
    (event,) = decoded(fault(GenerationFailed("why")))
    assert event == {"error": {"message": "why", "type": "server_error", "param": None, "code": None}}


@pytest.mark.parametrize(
    ("violation", "message", "code"),
    [
        (
            FieldError(FieldRule.TYPE, ("temperature",), "x", kind=Number(0, 2)),
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
            "invalid_type",
        ),
        (
            FieldError(FieldRule.TYPE, ("stop",), 5, kind=OneOf((String(), ListOf(String())))),
            "Invalid type for 'stop': expected one of a string or an array of strings, but got an integer instead.",
            "invalid_type",
        ),
        (
            FieldError(FieldRule.TYPE, ("prompt",), {}, kind=ListOf(ListOf(Integer()))),
            "Invalid type for 'prompt': expected an array of arrays of integers, but got an object instead.",
            "invalid_type",
        ),
        (
            FieldError(FieldRule.ABOVE, ("temperature",), 3, kind=Number(0, 2), bound=2),
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
            "decimal_above_max_value",
        ),
        (
            FieldError(FieldRule.BELOW, ("n",), 0, kind=Integer(1), bound=1),
            "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
            "integer_below_min_value",
        ),
        (
            FieldError(FieldRule.SHORT, ("messages",), [], kind=ListOf(String(), 1), bound=1),
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            "empty_array",
        ),
        (
            FieldError(FieldRule.LONG, ("stop",), ["x"] * 5, kind=ListOf(String(), 0, 4), bound=4),
            "Invalid 'stop': array too long. Expected an array with maximum length 4, "
            "but got an array with length 5 instead.",
            "array_above_max_length",
        ),
        (
            FieldError(FieldRule.MISSING, ("messages",)),
            "Missing required parameter: 'messages'.",
            "missing_required_parameter",
        ),
        (
            FieldError(FieldRule.UNKNOWN, ("a",), 1, bound=("a", "b")),
            "Unrecognized request arguments supplied: a, b",
            None,
        ),
        (
            FieldError(FieldRule.CHOICE, ("messages", 0, "role"), "x", kind=String(), bound=("user", "tool")),
            "Invalid value: 'x'. Supported values are: 'user', and 'tool'.",
            "invalid_value",
        ),
    ],
)
def test_violations_in_openais_words(violation: FieldError, message: str, code: str | None) -> None:
    body = render_error(violation).body["error"]
    assert (body["message"], body["code"]) == (message, code)
