"""Where a text ends, and what of it is shown: streams and whole answers against one plain account of the rules."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from stub_runtime import QUICK, STUB, TOKENIZER, LocalEngine, local_model

from dragoman.core.events import FinishReason, GenerationResult, TextDelta
from dragoman.core.observer import Observers
from dragoman.core.request import GenerationRequest, TokenPrompt
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.engine.arrays import Float32
from dragoman.engine.engine import Engine
from dragoman.engine.stub import StubRunner
from dragoman.models.batch import Batch
from dragoman.serving.serving import EngineServing
from dragoman.text import ChatTemplate

PROMPT = (17, 30)
MODEL = local_model(QUICK, STUB, ChatTemplate({}))
SPECIAL = set(TOKENIZER.special_ids)

# Letters that stop strings are made of, alone and in longer tokens; bytes of characters that break off; special tokens.
SHORT = [i for i in range(TOKENIZER.vocab_size) if len(TOKENIZER.token_bytes(i)) == 1]
LETTERS = [
    i for i in range(TOKENIZER.vocab_size) if i not in SPECIAL and set(TOKENIZER.token_bytes(i)) <= set(b"ab eo")
]
ORDINARY = st.sampled_from(LETTERS) | st.sampled_from(SHORT) | st.integers(0, TOKENIZER.vocab_size - 1)
SCRIPTS = st.lists(ORDINARY | st.sampled_from(sorted(SPECIAL)), min_size=1, max_size=16)
STOPS = st.lists(st.text("ab eo", min_size=1, max_size=4), max_size=3).map(tuple)
ENDINGS = st.builds(
    EndingParams,
    ignore_eos=st.booleans(),
    end_token_ids=st.none() | st.lists(ORDINARY, max_size=2).map(tuple),
    stop_token_ids=st.lists(ORDINARY, max_size=2).map(tuple),
    stop=STOPS,
    include_stop=st.booleans(),
    skip_special_tokens=st.booleans(),
    length_first=st.booleans(),
    stop_at_token_ends=st.booleans(),
)


class Said(NamedTuple):
    text: str
    finish: FinishReason
    stop: str | int | None
    num_tokens: int


class Speaker(StubRunner):
    """A model that says its script, whatever it is asked."""

    def __init__(self, script: list[int]) -> None:
        super().__init__(STUB)
        self.script = script

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None, interrupt: int | None = None) -> Float32:
        logits = super().run(batch, meanwhile)
        for row, position in enumerate(batch.positions[batch.logit_rows] + 1 - len(PROMPT)):
            logits[row, self.script[min(position, len(self.script) - 1)]] = 1000.0
        return logits


def decoded(ids: list[int], ending: EndingParams, *, whole: bool = False) -> str:
    """The text of tokens: their bytes, but for special ones that are skipped. ``whole``: no byte is still to come."""
    shown = [i for i in ids if i not in SPECIAL or not ending.skip_special_tokens]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(map(TOKENIZER.token_bytes, shown)), final=whole)


def first_stop(text: str, ending: EndingParams) -> tuple[int, str] | None:
    """Where the stop string ends that is complete first, and the longest that ends there."""
    ends = [len(text)] if ending.stop_at_token_ends else range(len(text) + 1)
    for end in ends:
        found = [stop for stop in ending.stop if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def told(script: list[int], ending: EndingParams) -> Said:
    """The rules of the manual, token by token, each time on all the text there is."""
    eos = TOKENIZER.eos_ids if ending.end_token_ids is None else ending.end_token_ids
    for count, token in enumerate(script, 1):
        ids, is_last = script[:count], count == len(script)
        if is_last and ending.length_first:
            break
        if token in eos and not ending.ignore_eos:
            shown = ids[:-1] if ending.skip_special_tokens else ids
            return Said(decoded(shown, ending, whole=True), FinishReason.EOS, None, count)
        if token in ending.stop_token_ids:
            shown = ids if ending.include_stop else ids[:-1]
            return Said(decoded(shown, ending, whole=True), FinishReason.STOP_TOKEN, token, count)
        # What the last token leaves incomplete is complete now.
        text = decoded(ids, ending, whole=is_last)
        match = first_stop(text, ending)
        if match is not None:
            end, stop = match
            return Said(text[: end if ending.include_stop else end - len(stop)], FinishReason.STOP_STRING, stop, count)
    return Said(decoded(script, ending, whole=True), FinishReason.LENGTH, None, len(script))


def asked(script: list[int], ending: EndingParams, request_id: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=request_id,
        prompt=TokenPrompt(token_ids=PROMPT),
        sampling=SamplingParams(temperature=0),
        ending=ending,
    )


async def spoken(script: list[int], ending: EndingParams) -> tuple[list[TextDelta], GenerationResult]:
    """A stream and a whole answer, from a serving over a real engine."""
    engine = LocalEngine()
    engine.engine = Engine(Speaker(script))
    serving = EngineServing(engine, MODEL, Observers())
    stepping = asyncio.create_task(engine.run())
    try:
        stream = serving.stream(asked(script, ending, "stream"))
        deltas = [event async for event in stream if isinstance(event, TextDelta)]
        whole = await serving.generate(asked(script, ending, "whole"))
        assert engine.free_blocks == STUB.num_blocks
        return deltas, whole
    finally:
        stepping.cancel()
        serving.close()


@given(script=SCRIPTS, ending=ENDINGS)
@settings(max_examples=400, deadline=None)
def test_streams_whole_answers_and_the_rules_say_the_same(script: list[int], ending: EndingParams) -> None:
    limited = EndingParams(
        **{name: getattr(ending, name) for name in ending.__struct_fields__} | {"max_tokens": len(script)}
    )
    deltas, whole = asyncio.run(spoken(script, limited))
    expected = told(script, limited)
    (generation,) = whole.generations
    last, tokens = deltas[-1], [token.token_id for delta in deltas for token in delta.tokens]
    assert last.finish is not None
    streamed = Said("".join(delta.text for delta in deltas), last.finish, last.stop, len(tokens))
    assert streamed == expected
    assert Said(generation.text, generation.finish, generation.stop, len(generation.tokens)) == expected
    assert tokens == [token.token_id for token in generation.tokens] == script[: expected.num_tokens]
    assert all(delta.finish is None for delta in deltas[:-1])
    assert whole.usage.completion_tokens == expected.num_tokens
