"""Encoder-decoder models through every dialect, over HTTP, compared with transformers' ``generate``."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from stub_runtime import TOKENIZER, RunningServer
from tiny_server import tiny_server

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
EOS = TOKENIZER.eos_ids[0]
START = 7
SIZES: dict[str, Any] = {
    "vocab_size": TOKENIZER.vocab_size,
    "d_model": 48,
    "decoder_start_token_id": START,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
T5 = SIZES | {"d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu"}
BART = SIZES | {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 100,
    "forced_eos_token_id": EOS,
}


def make(folder: Path, family: str, config: dict[str, Any]) -> Path:
    """Write it, its weights large enough for logits that differ, and small enough that many tokens are likely."""
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(
        getattr(transformers, f"{family}Config")(**config)
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.15)
    if family == "Bart":
        model.generation_config.forced_bos_token_id = 11
    model.save_pretrained(folder)
    return folder


@functools.cache
def reference(folder: Path) -> Any:
    """The model as transformers reads it."""
    return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def t5_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("t5"), "T5", T5)


@pytest.fixture(scope="module")
def bart_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("bart"), "Bart", BART)


@pytest.fixture(scope="module")
def t5(t5_folder: Path) -> Iterator[RunningServer]:
    with tiny_server(t5_folder, max_context=64) as server:
        yield server


@pytest.fixture(scope="module")
def bart(bart_folder: Path) -> Iterator[RunningServer]:
    with tiny_server(bart_folder, max_context=64) as server:
        yield server


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def friendli(server: RunningServer, **body: Any) -> httpx.Response:
    return post(server, "/friendli/v1/completions", **{"prompt": TEXT, "temperature": 0, "max_tokens": 12} | body)


def generated(folder: Path, text: str = TEXT, count: int = 12, **options: Any) -> list[int]:
    """The tokens behind the start token, by transformers."""
    ids = torch.tensor([TOKENIZER.encode(text, True)])
    made = reference(folder).generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, **{"num_beams": 1} | options
    )
    return [int(token) for token in made[0, 1:]]


def tokens(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["tokens"]
    return ids


# Friendli ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, {}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"no_repeat_ngram": 2}, {"no_repeat_ngram_size": 2}),
        ({"encoder_no_repeat_ngram": 1}, {}),
        ({"encoder_no_repeat_ngram": 2}, {"encoder_no_repeat_ngram_size": 2}),
        # The contract's penalty is transformers' inverse.
        ({"encoder_repetition_penalty": 2.0}, {"encoder_repetition_penalty": 0.5}),
        ({"encoder_repetition_penalty": 0.5}, {"encoder_repetition_penalty": 2.0}),
        ({"min_tokens": 12}, {"min_new_tokens": 12}),
        ({"bad_word_tokens": [{"tokens": [5]}]}, {"bad_words_ids": [[5]]}),
    ],
)
def test_the_output_is_that_of_transformers(
    t5: RunningServer, t5_folder: Path, asked: dict[str, Any], options: dict[str, Any]
) -> None:
    assert tokens(friendli(t5, max_tokens=40, **asked)) == generated(t5_folder, count=40, **options)


def test_penalties_look_at_the_output_alone(t5: RunningServer) -> None:
    """Words of the input cost nothing: only the encoder's own penalty knows them."""
    (plain,) = tokens(friendli(t5, max_tokens=1))
    own = TOKENIZER.encode(TEXT, True)
    assert tokens(friendli(t5, tokens=[*own, plain], prompt=None, max_tokens=1, repetition_penalty=1e6)) == tokens(
        friendli(t5, tokens=[*own, plain], prompt=None, max_tokens=1)
    )


def test_usage_counts_the_input_and_the_output(t5: RunningServer) -> None:
    body = friendli(t5, max_tokens=5, stop=None).json()
    made = len(body["choices"][0]["tokens"])
    asked = len(TOKENIZER.encode(TEXT, True))
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (asked, made)


def test_the_models_own_first_and_last_token_are_kept(bart: RunningServer, bart_folder: Path) -> None:
    ids = tokens(friendli(bart, max_tokens=12))
    assert ids == generated(bart_folder, count=12)
    assert (ids[0], ids[-1]) == (11, EOS)


@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_beams_find_what_transformers_finds(family: str, beams: int, request: pytest.FixtureRequest) -> None:
    server, folder = request.getfixturevalue(family), request.getfixturevalue(f"{family}_folder")
    compatible = {"beam_compat_pre_normalization": True, "beam_compat_no_post_normalization": True}
    asked = {"temperature": None, "num_beams": beams, **compatible}
    assert tokens(friendli(server, max_tokens=20, **asked)) == generated(folder, count=20, num_beams=beams)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"max_total_tokens": 30, "max_tokens": None}, "max_total_tokens"),
        ({"min_total_tokens": 30}, "min_total_tokens"),
        ({"max_tokens": 64}, "max_tokens"),
        ({"prompt": TEXT * 20}, "prompt"),
        ({"tokens": [5] * 65, "prompt": None}, "prompt"),
    ],
)
def test_lengths_are_of_input_and_output_apart(t5: RunningServer, asked: dict[str, Any], param: str) -> None:
    answer = friendli(t5, **asked)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] in (param, "tokens"), answer.text


def test_the_longest_input_leaves_room_for_the_longest_output(t5: RunningServer) -> None:
    answer = friendli(t5, tokens=[5] * 64, prompt=None, max_tokens=63, eos_token=[6])
    assert len(tokens(answer)) == 63
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert len(tokens(friendli(t5, max_tokens=None, max_total_tokens=63, eos_token=[6]))) == 63


def test_forced_tokens_are_scored_behind_the_input(t5: RunningServer, t5_folder: Path) -> None:
    forced = [5, 9, 30]
    asked = {"forced_output_tokens": forced, "max_tokens": None, "include_output_logprobs": True}
    choice = friendli(t5, **asked).json()["choices"][0]
    ids = torch.tensor([TOKENIZER.encode(TEXT, True)])
    with torch.no_grad():
        made = reference(t5_folder)(input_ids=ids, decoder_input_ids=torch.tensor([[START, *forced[:-1]]]))
    expected = torch.log_softmax(made.logits[0], -1)[range(3), forced].tolist()
    assert choice["tokens"] == forced
    assert choice["logprobs"] == pytest.approx(expected, abs=2e-4)


def test_a_seed_holds_in_any_company(t5: RunningServer) -> None:
    asked = {"temperature": 1.0, "seed": 3, "max_tokens": 30}
    alone = tokens(friendli(t5, **asked))
    crowd = friendli(t5, prompt=[TEXT, "Another", TEXT], n=3, **asked).json()["choices"]
    assert [crowd[place]["tokens"] for place in (0, 6)] == [alone, alone]


def test_an_input_may_have_embeddings_of_its_own(t5: RunningServer, t5_folder: Path) -> None:
    ids = TOKENIZER.encode(TEXT, True)
    vector = reference(t5_folder).shared.weight[20].tolist()
    given = {"token_index_to_replace": [2], "embedding_to_replace": vector}
    assert tokens(friendli(t5, **given)) == tokens(friendli(t5, tokens=[*ids[:2], 20, *ids[3:]], prompt=None))


def test_a_grammar_says_all_of_the_output(bart: RunningServer) -> None:
    asked = {"response_format": {"type": "regex", "schema": "[a-c]{3}"}, "temperature": 1.0}
    text = friendli(bart, **asked).json()["choices"][0]["text"]
    assert len(text) == 3
    assert set(text) <= set("abc")


# TGI, OpenAI ---------------------------------------------------------------------------------------------------------


def test_tgi_shows_the_start_token_as_prefill(t5: RunningServer, t5_folder: Path) -> None:
    parameters = {"max_new_tokens": 12, "details": True, "decoder_input_details": True}
    answer = post(t5, "/tgi/generate", inputs=TEXT, parameters=parameters).json()
    details = answer["details"]
    assert [(each["id"], each["logprob"]) for each in details["prefill"]] == [(START, None)]
    assert [token["id"] for token in details["tokens"]] == generated(t5_folder)


def test_tgi_streams_what_it_answers(t5: RunningServer) -> None:
    asked = {"inputs": TEXT, "parameters": {"max_new_tokens": 12, "details": True}}
    whole = post(t5, "/tgi/generate", **asked).json()["generated_text"]
    streamed = post(t5, "/tgi/generate_stream", **asked).text
    last = json.loads(streamed.strip().splitlines()[-1].removeprefix("data:"))
    assert last["generated_text"] == whole


def test_tgi_limits_input_and_total(t5: RunningServer) -> None:
    info = httpx.get(f"{t5.url}/tgi/info").json()
    assert (info["max_input_tokens"], info["max_total_tokens"]) == (64, 64 + 63)
    answer = post(t5, "/tgi/generate", inputs=TEXT * 20)
    assert answer.status_code == 422
    assert "must have less than 64 tokens" in answer.json()["error"] or "`max_new_tokens` must be" in answer.text


def test_openai_completes_and_echoes(t5: RunningServer) -> None:
    asked = {"model": "tiny", "prompt": TEXT, "temperature": 0, "max_tokens": 12}
    text = post(t5, "/openai/v1/completions", **asked).json()["choices"][0]["text"]
    assert post(t5, "/openai/v1/completions", echo=True, **asked).json()["choices"][0]["text"] == TEXT + text
    refused = post(t5, "/openai/v1/completions", echo=True, logprobs=1, **asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "echo"
    logprobs = post(t5, "/openai/v1/completions", logprobs=2, **asked).json()["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) > 0
