"""Serving over the stub engine: prompts of every form, their echo and their log-probabilities."""

from __future__ import annotations

import msgspec
import pytest
from asking import request
from stub_runtime import STUB, TOKENIZER, LocalServer, local_server

from dragoman.core.errors import (
    BadRequest,
    ContextOverflow,
    ModelNotFound,
    UnsupportedFeature,
)
from dragoman.core.events import (
    FinishReason,
)
from dragoman.core.request import ChatPrompt, FillPrompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import EndingParams, LogprobParams, SamplingParams
from dragoman.core.sampling_defaults import SamplingDefaults
from dragoman.engine.messages import EngineInfo
from dragoman.models import ModelInfo
from dragoman.serving.model_loader import served_model
from dragoman.serving.model_registry import ModelSource
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

# Echo and log-probabilities ------------------------------------------------------------------------------------------


async def test_echo_with_no_new_tokens_scores_the_prompt(runtime: LocalServer) -> None:
    text = "Once upon a time"
    asked = request(text, max_tokens=0, echo=True, logprobs=LogprobParams(top=2, prompt=True))
    whole = await runtime.serving.generate(asked)
    assert whole.prompt.text == text
    assert whole.generations[0].text == ""
    assert whole.generations[0].finish is FinishReason.LENGTH
    assert "".join(token.text for token in whole.prompt.tokens) == text
    assert whole.prompt.tokens[0].logprob is None
    for token in whole.prompt.tokens[1:]:
        assert token.logprob is not None
        assert token.logprob <= 0
        assert len(token.top) == 2
        assert text.startswith(token.text, token.text_offset)


async def test_logprobs_of_one_answer_are_bounded(runtime: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.serving.checks.MAX_LOGPROBS", 2 * 12 * 6)
    asked = request(n=2, logprobs=LogprobParams(top=5))
    assert (await runtime.serving.generate(asked)).usage.completion_tokens == 24
    with pytest.raises(BadRequest) as raised:
        await runtime.serving.generate(request(n=2, logprobs=LogprobParams(top=6)))
    assert raised.value.param == "logprobs"


async def test_logprobs_do_not_change_the_tokens(runtime: LocalServer) -> None:
    plain = (await runtime.serving.generate(request())).generations[0]
    scored = (await runtime.serving.generate(request(logprobs=LogprobParams(top=5)))).generations[0]
    assert [t.token_id for t in scored.tokens] == [t.token_id for t in plain.tokens]
    for token in scored.tokens:
        assert token.logprob is not None
        assert [other.logprob for other in token.top] == sorted((o.logprob for o in token.top), reverse=True)


# Prompts -------------------------------------------------------------------------------------------------------------


async def test_tokenize_is_what_is_run(runtime: LocalServer) -> None:
    chat = ChatPrompt(messages=({"role": "user", "content": "hello"},))
    ids = await runtime.serving.tokenize(chat)
    await runtime.serving.generate(request(prompt=chat))
    assert runtime.engine.requests[-1].prompt == ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False).endswith("assistant\n")


async def test_a_token_that_only_the_tokenizer_has_is_refused_by_its_text(template: ChatTemplate) -> None:
    size = TOKENIZER.vocab_size - 200  # as where tokens were added to a tokenizer, and to no model
    word = next(
        text
        for token_id in range(size, TOKENIZER.vocab_size)
        if TOKENIZER.encode(text := TOKENIZER.decode([token_id])) == (token_id,)
    )
    stub = msgspec.structs.replace(STUB, vocab_size=size)
    messages = ({"role": "user", "content": word},)
    async with local_server(template, stub=stub) as runtime:
        for prompt, param in ((TextPrompt(text=word), "prompt"), (ChatPrompt(messages=messages), "messages")):
            with pytest.raises(BadRequest, match=f"the token '{word}', which the model 'stub' does not have") as raised:
                await runtime.serving.generate(request(prompt=prompt))
            assert raised.value.param == param
        banned = SamplingParams(temperature=0, bad_words=(word, "a"), dry_multiplier=0.5, dry_sequence_breakers=(word,))
        await runtime.serving.generate(request(prompt=TextPrompt(text="a"), sampling=banned))
        (sent,) = (asked.sampling for asked in runtime.engine.requests)
        assert len(sent.banned_phrases) == 1
        assert sent.dry_breaker_ids == ()


def test_an_end_that_only_the_tokenizer_has_ends_nothing(template: ChatTemplate) -> None:
    """As transformers adds a special token that a config names and no vocabulary has."""
    named = ModelInfo(
        name="m",
        architecture="LlamaForCausalLM",
        precision="float32",
        kv_precision="float32",
        context_tokens=64,
        vocab_size=4,
        hidden_size=8,
        eos_token_ids=(3, 4),
        bos_token_id=None,
        parameter_count=1,
        weight_bytes=1,
        fingerprint="f",
        tokenizer_folder="",
    )
    sizes = {"block_size": 16, "num_blocks": 4, "max_running": 1, "max_unfinished": 1, "step_tokens": 8, "load_s": 0.0}
    info = EngineInfo(model=named, vocab_size=4, max_context=64, **sizes)
    served = served_model(ModelSource(name="m", source="m"), info, TOKENIZER, template, SamplingDefaults())
    assert served.eos_ids == tuple(each for each in (*TOKENIZER.eos_ids, 3) if each < 4)
    assert served.first_unknown == 4


@pytest.mark.parametrize("text", ["Once upon a time", "Hé, 東京! 🎉 naïve", "", " \n\t"])
async def test_tokens_of_a_text_say_which_bytes_they_stand_for(runtime: LocalServer, text: str) -> None:
    tokens = await runtime.serving.tokenize_text(text)
    raw = text.encode()
    assert [token.token_id for token in tokens] == list(TOKENIZER.encode(text))
    for token in tokens:
        assert raw[token.start : token.stop].decode() == token.text
    inside = [token for token in tokens if token.stop]
    assert [token.start for token in inside] == sorted(token.start for token in inside)
    assert not inside or (inside[0].start, inside[-1].stop) == (0, len(raw))
    bare = await runtime.serving.tokenize_text(text, add_special_tokens=False)
    assert [token.token_id for token in bare] == list(TOKENIZER.encode(text, add_special_tokens=False))


async def test_detokenize_is_the_text_of_the_tokens(runtime: LocalServer) -> None:
    ids = (*TOKENIZER.encode("Hé, 東京!"), TOKENIZER.eos_ids[0])
    assert await runtime.serving.detokenize(ids, skip_special_tokens=True) == "Hé, 東京!"
    assert await runtime.serving.detokenize(ids) == TOKENIZER.decode(ids, skip_special_tokens=False) != "Hé, 東京!"
    with pytest.raises(BadRequest):
        await runtime.serving.detokenize((STUB.vocab_size,))


async def test_render_is_what_a_chat_is_tokenized_from(runtime: LocalServer) -> None:
    chat = ChatPrompt(messages=({"role": "user", "content": "hello"},))
    text = await runtime.serving.render(chat)
    assert TOKENIZER.encode(text, add_special_tokens=False) == await runtime.serving.tokenize(chat)


async def test_empty_text_starts_at_the_first_token(runtime: LocalServer) -> None:
    assert await runtime.serving.tokenize(TextPrompt(text="")) == (TOKENIZER.bos_id,)


async def test_fill_prompt_uses_the_models_tokens(runtime: LocalServer) -> None:
    ids = await runtime.serving.tokenize(FillPrompt(prefix="before", suffix="after"))
    assert ids == TOKENIZER.render_fill("before", "after")


async def test_a_gap_is_refused_without_the_tokens_for_it(
    runtime: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TOKENIZER, "fill", None)
    with pytest.raises(UnsupportedFeature) as raised:
        await runtime.serving.generate(request(prompt=FillPrompt(prefix="before", suffix="after")))
    assert raised.value.param == "suffix"


async def test_long_prompts_are_refused_unread(runtime: LocalServer) -> None:
    with pytest.raises(ContextOverflow) as raised:
        await runtime.serving.generate(request("word " * 10**6))
    assert raised.value.param == "prompt"
    assert not runtime.engine.requests


async def test_prompt_and_output_must_fit_the_context(runtime: LocalServer) -> None:
    prompt = TokenPrompt(token_ids=tuple(range(10, 110)))
    with pytest.raises(ContextOverflow, match="maximum context length is 256") as raised:
        await runtime.serving.generate(request(prompt=prompt, max_tokens=157))
    assert (raised.value.prompt_tokens, raised.value.max_tokens, raised.value.context_tokens) == (100, 157, 256)
    whole = await runtime.serving.generate(request(prompt=prompt, max_tokens=156))
    assert whole.usage.completion_tokens == 156


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": TokenPrompt(token_ids=(STUB.vocab_size,))}, "prompt"),
        ({"sampling": SamplingParams(logit_bias={STUB.vocab_size: 1.0})}, "logit_bias"),
        ({"ending": EndingParams(max_tokens=2, stop_token_ids=(STUB.vocab_size,))}, "stop_token_ids"),
    ],
)
async def test_ids_outside_the_vocabulary_are_refused(
    runtime: LocalServer, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequest) as raised:
        await runtime.serving.generate(request(**fields))
    assert raised.value.param == param


async def test_unknown_model_is_refused_and_aliases_are_served(runtime: LocalServer) -> None:
    with pytest.raises(ModelNotFound):
        await runtime.serving.generate(request(model="nobody"))
    assert [card.name for card in runtime.serving.models()] == ["stub", "other", "org/name"]
    assert (await runtime.serving.generate(request(model="org/name"))).usage.completion_tokens == 12


async def test_chat_without_a_template_is_refused(anyio_backend: str) -> None:
    async with local_server(ChatTemplate({})) as runtime:
        with pytest.raises(UnsupportedFeature):
            await runtime.serving.generate(request(prompt=ChatPrompt(messages=({"role": "user", "content": "hi"},))))
