"""Recording and replaying, for every dialect of the registry: what is recorded is what ran, and runs again equally."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from math import log
from typing import Any

import msgspec
import pytest
from asking import request
from stub_runtime import FOLDER, TOKENIZER, LocalServer, local_server

from dragoman.core import capsule as capsules
from dragoman.core.capsule import Capsule, Environment
from dragoman.core.events import FinishReason
from dragoman.dialects import REGISTRY, made_dialects
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.server.keys import Keyring, hashed
from dragoman.serving.recorder import HEADER, Recorder
from dragoman.serving.replay import UNEXPLAINED, differences, divergence
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

NAMES = [each.name for each in REGISTRY]
KEY = "dgm-" + "a" * 40
TEXT = {
    "prompt": "Once upon a time",
    "temperature": 0.8,
    "top_k": 40,
    "max_tokens": 12,
    "seed": 3,
    "repetition_penalty": 1.25,
    "stop": ["\N{SNOWMAN}"],
}


class Kept:
    """Keeps all capsules, as their files would have them."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, name: str, make: Callable[[], Capsule]) -> None:
        self.files[name] = capsules.encode(make())

    def taken(self) -> list[tuple[str, Capsule]]:
        found = [(name, capsules.decode(data)) for name, data in self.files.items()]
        self.files.clear()
        return found


@pytest.fixture(scope="module")
def template() -> Iterator[ChatTemplate]:
    template = ChatTemplate.load(FOLDER, TOKENIZER.special_tokens)
    yield template
    template.close()


@pytest.fixture(scope="module")
async def server(anyio_backend: str, template: ChatTemplate) -> AsyncIterator[LocalServer]:
    dialects = made_dialects({"locallab": LocalLabSettings(locallab_rate_limit=0, locallab_folder="/nonexistent")})
    async with local_server(template, dialects=dialects) as server:
        yield server


@pytest.fixture
def kept(server: LocalServer) -> Iterator[Kept]:
    kept = Kept()
    server.serving._recorder = Recorder(kept)
    yield kept
    server.serving._recorder = Recorder()


async def bodies(server: LocalServer, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The same request in a dialect, by its path."""
    if name == "openai":
        return [("/openai/v1/completions", TEXT)]
    answer = await server.client.post("/explain", json={"body": TEXT, "path": "/openai/v1/completions"})
    return [(each["path"], each["body"]) for each in answer.json()["others"] if each["dialect"] == name]


def unnumbered(text: str) -> str:
    """An answer without what is another one each time."""
    return re.sub(
        r'"(id|responseId|created|request_id|created_at|\w+_duration)":("[^"]*"|\d+)', "", re.sub(r"\d+\.\d+", "", text)
    )


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_answer_is_the_same_and_replays_equal(server: LocalServer, kept: Kept, name: str) -> None:
    ((path, body),) = await bodies(server, name)
    server.serving._recorder = Recorder()
    seeded = body if name not in ("locallab", "alexandria") else None
    plain = await server.client.post(path, json={**body, "request_id": "plain"} if "request_id" in body else body)
    server.serving._recorder = Recorder(kept)
    answer = await server.client.post(path, json={**body, "request_id": "kept"} if "request_id" in body else body)
    assert answer.status_code == plain.status_code == 200, answer.text
    assert HEADER not in plain.headers
    if seeded:
        assert unnumbered(answer.text) == unnumbered(plain.text)
    ((file, capsule),) = kept.taken()
    assert answer.headers[HEADER] == file
    ran = server.engine.requests[-1]
    assert (capsule.dialect, capsule.request.prompt, capsule.request.seeds) == (name, ran.prompt, ran.seeds)
    assert capsule.request.sampling == ran.sampling
    assert all(len(output.logprobs) == len(output.token_ids) > 0 for output in capsule.outputs)
    outcome = await server.serving.replayer().replay(file, capsule)
    assert outcome.equal, outcome
    assert outcome.same == outcome.tokens > 0
    assert outcome.logprob_difference == 0
    assert max(outcome.kl) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {"stream": True},
        {"n": 2},
        {"n": 2, "best_of": 3},
        {"logprobs": 3},
        {"use_beam_search": True, "n": 2, "temperature": 1.0, "stop": []},
        {"response_format": {"type": "json_object"}},
        {"mirostat_mode": 2},
        {"prompt": ["one", "two"]},
        {"echo": True, "logprobs": 1},
        {"dry_multiplier": 0.8, "bad_words": ["cat"], "logit_bias": {"5": 2.0}},
        {"forced_output_tokens": [5, 6, 7]},
    ],
    ids=lambda more: "-".join(more),
)
async def test_every_way_to_generate_replays_equal(server: LocalServer, kept: Kept, more: dict[str, Any]) -> None:
    body = {**TEXT, **more}
    if "mirostat_mode" in more or "use_beam_search" in more:
        del body["top_k"]
    answer = await server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = kept.taken()
    assert len(found) == (2 if isinstance(body["prompt"], list) else 1)
    assert answer.headers[HEADER].split(", ")[0] in dict(found)
    for name, capsule in found:
        outcome = await server.serving.replayer().replay(name, capsule)
        assert outcome.equal, outcome
        assert outcome.tokens > 0


async def test_a_client_that_asks_for_no_log_probabilities_gets_none(server: LocalServer, kept: Kept) -> None:
    answer = await server.client.post("/v1/completions", json=TEXT)
    assert answer.json()["choices"][0]["logprobs"] is None
    ((_, capsule),) = kept.taken()
    assert capsule.request.reported is False
    (output,) = capsule.outputs
    assert None not in output.logprobs


async def test_a_stop_string_ends_the_recording_where_it_ends_the_answer(server: LocalServer, kept: Kept) -> None:
    whole = (await server.client.post("/v1/completions", json=TEXT)).json()["choices"][0]["text"]
    kept.taken()
    await server.client.post("/v1/completions", json={**TEXT, "stop": [whole[6:9]]})
    ((name, capsule),) = kept.taken()
    assert capsule.outputs[0].finish is FinishReason.STOP_STRING
    assert capsule.request.stop == (whole[6:9],)
    assert (await server.serving.replayer().replay(name, capsule)).equal


# The rule -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorder", "sent", "told"),
    [
        (lambda kept: Recorder(), None, None),
        (lambda kept: Recorder(), "1", "off"),
        (lambda kept: Recorder(), "0", "off"),
        (lambda kept: Recorder(kept), None, "name"),
        (lambda kept: Recorder(kept), "1", "name"),
        (lambda kept: Recorder(kept, only_asked=True), None, None),
        (lambda kept: Recorder(kept, only_asked=True), "1", "name"),
        (lambda kept: Recorder(kept, only_asked=True), "0", "off"),
        (lambda kept: Recorder(kept, only_asked=True), "yes", "off"),
    ],
)
async def test_the_operator_decides(
    server: LocalServer, kept: Kept, recorder: Any, sent: str | None, told: str
) -> None:
    server.serving._recorder = recorder(kept)
    headers = {} if sent is None else {HEADER: sent}
    answer = await server.client.post("/v1/completions", json=TEXT, headers=headers)
    found = kept.taken()
    assert len(found) == (told == "name")
    assert answer.headers.get(HEADER) == (found[0][0] if found else told)


async def test_texts_are_recorded_only_where_the_operator_says_so(server: LocalServer, kept: Kept) -> None:
    answer = (await server.client.post("/v1/completions", json={**TEXT, "stop": None})).json()["choices"][0]["text"]
    ((_, data),) = kept.files.items()
    assert b"Once upon" not in data
    assert answer.encode() not in data
    assert len(data) < 1500
    kept.files.clear()
    server.serving._recorder = Recorder(kept, with_text=True)
    await server.client.post("/v1/completions", json=TEXT)
    ((_, capsule),) = kept.taken()
    assert capsule.text is not None
    assert capsule.text.prompt == TEXT["prompt"]
    assert capsule.text.outputs[0].startswith(answer)


async def test_a_capsule_has_nothing_of_the_caller(template: ChatTemplate) -> None:
    key = hashed(KEY, "ann-the-holder")
    async with local_server(template, keys=Keyring([key])) as server:
        kept = Kept()
        server.serving._recorder = Recorder(kept)
        headers = {"authorization": f"Bearer {KEY}", "x-request-id": "named-by-the-client"}
        answer = await server.client.post("/v1/completions", json={**TEXT, "cache_salt": "salty"}, headers=headers)
        assert answer.status_code == 200
        ((_, data),) = kept.files.items()
        for secret in (KEY, "ann-the-holder", key.digest, key.digest[:16], "salty", "named-by-the-client", "127.0.0.1"):
            assert secret.encode() not in data


# Differences ----------------------------------------------------------------------------------------------------------


async def one(server: LocalServer, kept: Kept, **more: Any) -> Capsule:
    answer = await server.client.post("/v1/completions", json={**TEXT, "stop": None, "ignore_eos": True, **more})
    assert answer.status_code == 200, answer.text
    ((_, capsule),) = kept.taken()
    return capsule


def with_token(capsule: Capsule, place: int, token_id: int) -> Capsule:
    (output,) = capsule.outputs
    ids = (*output.token_ids[:place], token_id, *output.token_ids[place + 1 :])
    return msgspec.structs.replace(capsule, outputs=(msgspec.structs.replace(output, token_ids=ids),))


async def test_the_first_difference_is_told_with_both_candidates(server: LocalServer, kept: Kept) -> None:
    capsule = await one(server, kept)
    right = capsule.outputs[0].token_ids[5]
    outcome = await server.serving.replayer().replay("a", with_token(capsule, 5, 77))
    assert not outcome.equal
    found = outcome.difference
    assert found is not None
    assert (found.position, found.recorded.token_id, found.now.token_id) == (5, 77, right)
    assert found.recorded.text == TOKENIZER.token_text(77)
    assert found.now.logprob == pytest.approx(capsule.outputs[0].logprobs[5])
    assert found.gap == pytest.approx(found.now.logprob - found.recorded.logprob)
    assert outcome.same == 5
    assert outcome.reasons == (UNEXPLAINED,)


async def test_an_answer_that_ended_is_not_one_that_goes_on(server: LocalServer, kept: Kept) -> None:
    capsule = await one(server, kept)
    (output,) = capsule.outputs
    ended = msgspec.structs.replace(
        output, token_ids=output.token_ids[:4], logprobs=output.logprobs[:4], finish=FinishReason.EOS
    )
    outcome = await server.serving.replayer().replay("a", msgspec.structs.replace(capsule, outputs=(ended,)))
    assert outcome.difference is not None
    assert (outcome.difference.position, outcome.difference.now.text) == (4, "(goes on)")


async def test_what_computed_it_otherwise_is_named(server: LocalServer, kept: Kept) -> None:
    now = Environment(model="a", fingerprint="f", weights="w", kernels="avx2", version="1", precision="int8")
    then = msgspec.structs.replace(now, fingerprint="g", weights="v", kernels="avx512")
    assert list(differences(then, now)) == [
        "weights: v then, w now",
        "kernels: avx512 then, avx2 now",
        "fingerprint: g then, f now",
    ]
    capsule = await one(server, kept)
    other = msgspec.structs.replace(with_token(capsule, 2, 77), environment=then)
    outcome = await server.serving.replayer().replay("a", other)
    assert UNEXPLAINED not in outcome.reasons
    assert any(reason.startswith("kernels: avx512 then") for reason in outcome.reasons)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": (2**31 - 1,)}, "token ids must be from 0"),
        ({"adapter": "a"}, "adapter"),
        ({"grammar": "start: (((("}, "grammar"),
        ({"prompt": (5,) * 300}, "context"),
        ({"encoder_input": (5,)}, "encoder"),
    ],
    ids=["vocabulary", "adapter", "grammar", "context", "encoder"],
)
async def test_what_cannot_run_here_is_told(
    server: LocalServer, kept: Kept, change: dict[str, Any], reason: str
) -> None:
    capsule = await one(server, kept)
    changed = msgspec.structs.replace(capsule, request=msgspec.structs.replace(capsule.request, **change))
    outcome = await server.serving.replayer().replay("a", changed)
    assert not outcome.equal
    assert reason in outcome.error


async def test_what_ran_with_an_adapter_runs_with_it_again(server: LocalServer, kept: Kept) -> None:
    """With the same one, whatever its name is now; or with another one of its name, which is then a reason."""
    engine = server.engine
    await engine.load_adapter("red", "folder of red")
    await server.serving.generate(request(adapter="red", max_tokens=20))
    ((name, capsule),) = kept.taken()
    assert (capsule.request.adapter, capsule.environment.adapter) == ("red", engine.adapters["red"].fingerprint)
    outcome = await server.serving.replayer().replay(name, capsule)
    assert outcome.equal, outcome
    assert outcome.logprob_difference == 0
    assert max(outcome.kl) == pytest.approx(0, abs=1e-6)
    changed = await server.serving.replayer().replay(name, with_token(capsule, 2, 77))
    assert changed.difference is not None
    assert changed.difference.gap is not None, "both candidates are seen with the adapter"
    await engine.unload_adapter("red")
    gone = await server.serving.replayer().replay(name, capsule)
    assert "--lora-adapters" in gone.error
    await engine.load_adapter("crimson", "folder of red")
    await engine.load_adapter("red", "folder of blue")
    renamed = await server.serving.replayer().replay(name, capsule)
    assert (renamed.equal, renamed.reasons) == (True, ())
    await engine.unload_adapter("crimson")
    other = await server.serving.replayer().replay(name, capsule)
    assert not other.equal
    assert other.reasons[0].startswith(f"adapter: {capsule.environment.adapter} then, ")
    await engine.unload_adapter("red")


async def test_a_length_for_a_larger_context_is_fitted_and_told(server: LocalServer, kept: Kept) -> None:
    capsule = await one(server, kept)
    longer = msgspec.structs.replace(capsule, request=msgspec.structs.replace(capsule.request, max_tokens=100_000))
    (output,) = longer.outputs
    cut = msgspec.structs.replace(output, finish=None)
    outcome = await server.serving.replayer().replay("a", msgspec.structs.replace(longer, outputs=(cut,)))
    assert outcome.equal
    assert outcome.reasons[0].startswith("parameters: max_tokens was 100000")


def test_the_divergence_is_a_lower_bound() -> None:
    p, q = {1: 0.5, 2: 0.3, 3: 0.2}, {1: 0.25, 2: 0.25, 3: 0.5}
    exact = sum(value * log(value / q[key]) for key, value in p.items())
    logs = [{key: log(value) for key, value in each.items()} for each in (p, q)]
    assert divergence(*logs) == pytest.approx(exact)
    for known in ({1}, {2}, {1, 2}):
        part = [{key: value for key, value in each.items() if key in known} for each in logs]
        assert 0 <= divergence(*part) <= exact + 1e-12
    assert divergence(logs[0], logs[0]) == pytest.approx(0, abs=1e-12)
