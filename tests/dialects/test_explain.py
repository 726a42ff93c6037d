"""``POST /explain`` says of every dialect what happens: its answers are compared with what the engine then gets.

The cases come from the registry: a dialect is here as soon as it is registered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import FOLDER, QUICK, TOKENIZER, LocalServer, local_server

from dragoman.core.errors import DragomanError
from dragoman.core.request import EngineRequest, TextPrompt
from dragoman.core.sampling import TRUNCATIONS, SamplingParams
from dragoman.core.serving import Serving
from dragoman.dialects import REGISTRY, made_dialects
from dragoman.dialects.api import Dialect, ErrorResponse, Operation, RequestContext
from dragoman.dialects.explain_translation import counterpart, generates
from dragoman.dialects.field import Field, Table, Treatment
from dragoman.dialects.field_types import Integer, String
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.dialects.octoai.settings import OctoAISettings
from dragoman.dialects.tgi.settings import TgiSettings
from dragoman.engine.explain import steps_of
from dragoman.engine.messages import EngineStats
from dragoman.engine.sampling.processors import PIPELINE, processors_for
from dragoman.server.keys import Keyring, hashed
from dragoman.text import ChatTemplate

pytestmark = pytest.mark.anyio

REQUESTS = count()
NAMES = [each.name for each in REGISTRY]
ANN, BOB = "dgm-" + "a" * 40, "dgm-" + "b" * 40
AUTO = msgspec.structs.replace(QUICK, dialect="auto")
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5, "max_tokens": 5, "seed": 3, "stop": ["x"]}
TEXT = {"prompt": "Once upon a time", "temperature": 0.5, "max_tokens": 5, "seed": 3, "repetition_penalty": 1.25}


def speak(shouts: list[str]) -> Dialect:
    """A dialect that is in no list: its one operation continues a text."""
    table = Table(
        name="speak",
        fields=(
            Field(name="words", kind=String(minimum=1), required=True, becomes="prompt"),
            Field(name="length", kind=Integer(1), becomes="ending.max_tokens"),
            Field(name="luck", kind=Integer(0), becomes="seeds", convert=lambda seed: (seed,)),
            Field(name="volume", kind=Integer(), treatment=Treatment.REPORTED),
        ),
    )

    async def handle(serving: Serving, context: RequestContext) -> None:
        core = (await context.read(table)).core
        result = await serving.generate(core.request(context.request_id, TextPrompt(text=core.get("prompt"))))
        shouts.append(result.generations[0].text)
        await context.reply({"said": result.generations[0].text})

    def render_error(error: DragomanError) -> ErrorResponse:
        return ErrorResponse(status=418, body={"squawk": error.message})

    operation = Operation(method="POST", path="/speak", summary="Go on from words.", handler=handle, table=table)
    return Dialect(name="parrot", title="Parrot", operations=(operation,), render_error=render_error)


class World:
    """A server of every dialect with settings under which an effect besides generating would show."""

    def __init__(self, house: LocalServer, dialects: tuple[Dialect, ...], log: Path) -> None:
        self.house, self.dialects, self.log = house, dialects, log

    async def explain(self, body: Any, path: str | None = None, **more: Any) -> dict[str, Any]:
        asked = {"body": body, **more} | ({} if path is None else {"path": path})
        answer = await self.house.client.post("/explain", json=asked)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def run(self, path: str, body: Any) -> tuple[httpx.Response, EngineRequest | None]:
        before = len(self.house.engine.requests)
        answer = await self.house.client.post(path, json=body)
        made = self.house.engine.requests[before:]
        return answer, made[0] if made else None


@pytest.fixture(scope="module")
async def world(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("explain")
    log = folder / "prompts"
    settings = {
        "locallab": LocalLabSettings(locallab_rate_limit=1000, locallab_folder=str(folder)),
        "octoai": OctoAISettings(octoai_prompt_log=str(log)),
        "tgi": TgiSettings(),
    }
    dialects = (*made_dialects(settings), speak([]))
    template = ChatTemplate.load(FOLDER, TOKENIZER.special_tokens)
    async with local_server(template, AUTO, dialects=dialects) as house:
        yield World(house, dialects, log)
    template.close()


async def bodies(world: World) -> dict[str, Any]:
    """Of each dialect the path and the body of one request, the same in all."""
    answer = await world.explain(TEXT, "/openai/v1/completions")
    found = {each["path"]: each["body"] for each in answer["others"]} | {"/openai/v1/completions": TEXT}
    # Where requests have ids of the client's, one that has been used goes on with what it began.
    new = f"id-{next(REQUESTS)}"
    return {path: {**body, "request_id": new} if "request_id" in body else body for path, body in found.items()}


# The truth ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [TEXT, CHAT], ids=["text", "chat"])
async def test_what_is_explained_is_what_runs(world: World, first: dict[str, Any]) -> None:
    path = "/openai/v1/chat/completions" if "messages" in first else "/openai/v1/completions"
    answer = await world.explain(first, path)
    assert [each["dialect"] for each in answer["others"]] == [each.name for each in world.dialects[1:]]
    for where, body in [(path, first), *((each["path"], each["body"]) for each in answer["others"])]:
        body = {**body, "request_id": f"id-{next(REQUESTS)}"} if "request_id" in body else body
        told = await world.explain(body, where, others=False)
        assert told["accepted"], told
        answered, engine = await world.run(where, body)
        assert answered.status_code == 200, answered.text
        assert engine is not None
        (request,) = told["requests"]
        assert request["prompt"]["token_ids"] == list(engine.prompt), where
        assert (request["max_tokens"], request["min_tokens"]) == (engine.max_tokens, engine.min_tokens), where
        sampling = SamplingParams(
            **{
                name.removeprefix("sampling."): value
                for name, value in request["parameters"].items()
                if name.startswith("sampling.")
            }
        )
        assert msgspec.structs.replace(engine.sampling, dry_breaker_ids=(), dry_sequence_breakers=()) == (
            msgspec.structs.replace(sampling, dry_breaker_ids=(), dry_sequence_breakers=())
        ), where
        if "seed" in str(body):
            assert request["seeds"] == list(engine.seeds), where


async def test_what_is_lost_elsewhere_is_lost_there(world: World) -> None:
    """Of the core's requests that both make, everything that is not named is the same."""
    answer = await world.explain(TEXT, "/openai/v1/completions")
    assert all(not each["error"] for each in answer["others"])
    for other in answer["others"]:
        told = await world.explain(other["body"], other["path"], others=False)
        lost = {each["parameter"] for each in other["lost"]}
        first, second = (each["requests"][0] for each in (answer, told))
        if "prompt" not in lost:
            assert first["prompt"]["token_ids"] == second["prompt"]["token_ids"]
        if not any(name.startswith("sampling.") for name in lost):
            assert first["steps"] == second["steps"], other["dialect"]
        if "ending.max_tokens" not in lost:
            assert first["max_tokens"] == second["max_tokens"], other["dialect"]
        if "seeds" not in lost:
            assert first["seeds"] == second["seeds"], other["dialect"]


async def test_a_dialect_that_is_in_no_list_is_explained_and_offered(world: World) -> None:
    told = await world.explain({"words": "Once upon a time", "length": 5, "luck": 3, "volume": 9}, "/speak")
    assert (told["dialect"], told["why"]) == ("parrot", ["Only parrot has POST /speak."])
    by_name = {field["name"]: field for field in told["fields"]}
    assert by_name["length"]["becomes"] == {"ending.max_tokens": 5}
    assert by_name["volume"]["fate"] == "reported"
    other = next(
        each for each in (await world.explain(TEXT, "/v1/completions"))["others"] if each["dialect"] == "parrot"
    )
    assert other["body"] == {"words": "Once upon a time", "length": 5, "luck": 3}
    assert {each["parameter"] for each in other["lost"]} == {"sampling.repetition_penalty", "sampling.temperature"}


async def test_the_grammar_is_the_engines_in_every_dialect_that_has_one(world: World) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    body = {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    path = "/openai/v1/chat/completions"
    told = await world.explain(body, path)
    _, engine = await world.run(path, body)
    assert engine is not None
    assert told["requests"][0]["grammar"] == engine.grammar
    assert engine.grammar
    for other in told["others"]:
        if other["error"]:
            continue
        there = await world.explain(other["body"], other["path"], others=False)
        lost = {each["parameter"] for each in other["lost"]}
        same = there["requests"][0]["grammar"] == engine.grammar
        assert same or any("constraint" in name for name in lost), other["dialect"]


async def test_time_and_cost_follow_from_what_was_measured(template: ChatTemplate) -> None:
    async with local_server(template, AUTO) as house:

        async def estimate() -> dict[str, Any]:
            answer = await house.client.post("/explain", json={"body": TEXT, "path": "/openai/v1/completions"})
            (request,) = answer.json()["requests"]
            found: dict[str, Any] = request["estimate"] | {"prompt": request["prompt"]["tokens"]}
            return found

        first = await estimate()
        assert first["tokens_per_s"] is first["wait_s"] is first["compute_s"] is None, "nothing is measured"
        assert first["quota_tokens"] == first["prompt"] + 5
        assert (first["expected_tokens"], first["most_tokens"]) == (5, 5)
        assert first["service"] == first["most_service"] == first["prompt"] + 2 * 5
        rate = house.serving.admission.rate
        rate.observe(EngineStats(), EngineStats(prompt_tokens=100, busy_s=1.0))
        rate.finish(3)
        second = await estimate()
        assert (second["expected_tokens"], second["most_tokens"]) == (3, 5)
        assert second["service"] == second["prompt"] + 2 * 3
        assert second["compute_s"] == pytest.approx(second["service"] / 100, rel=0.01)
        assert second["wait_s"] == 0.0


# Fields ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
async def test_fields_without_effect_are_told_as_the_server_tells_them(world: World, name: str) -> None:
    dialect = next(each for each in world.dialects if each.name == name)
    for path, body in (await bodies(world)).items():
        if not path.startswith(f"/{name}/"):
            continue
        operation = next(
            each for each in dialect.operations if generates(each) and f"/{name}{each.for_model('stub')[0]}" == path
        )
        assert operation.table is not None
        for field in operation.table.fields:
            if field.treatment is Treatment.HONOURED:
                continue
            told = await world.explain({**body, field.name: "sent"}, path, others=False)
            answered, engine = await world.run(path, {**body, field.name: "sent"})
            (fate,) = [each["fate"] for each in told["fields"] if each["name"] == field.name]
            if field.treatment is Treatment.REFUSED:
                assert (fate, told["accepted"], engine) == ("refused", False, None), field.name
                said = answered.json()
                if name == "anthropic":
                    assert said.pop("request_id") == answered.headers["request-id"]
                assert (told["error"]["status"], told["error"]["body"]) == (answered.status_code, said)
            else:
                assert (fate, told["accepted"]) == ("reported", True), field.name
                assert field.name in answered.headers["x-dragoman-warnings"]


@pytest.mark.parametrize("name", NAMES)
async def test_errors_are_those_of_the_dialect(world: World, name: str) -> None:
    path, body = next((path, body) for path, body in (await bodies(world)).items() if path.startswith(f"/{name}/"))
    nothing = {"model": ""} if name == "ollama" else {}  # an empty body has its model loaded
    for wrong in (nothing, {**body, "prompt": 7, "inputs": 7}, {key: [[{}]] for key in body}):
        told = await world.explain(wrong, path)
        answered, engine = await world.run(path, wrong)
        assert told["accepted"] is (answered.status_code < 400) is (engine is not None)
        if not told["accepted"]:
            assert told["error"]["status"] == answered.status_code
            assert told["requests"] == told["others"] == []


async def test_defaults_are_told_with_their_values(world: World) -> None:
    told = await world.explain({"prompt": "a", "n": None}, "/v1/completions")
    fields = {field["name"]: field for field in told["fields"]}
    assert fields["n"]["fate"] == "default"
    assert fields["n"]["becomes"] == {"n": 1}
    assert fields["temperature"] | {"note": ""} == {
        "name": "temperature",
        "fate": "default",
        "value": 1.0,
        "becomes": {"sampling.temperature": 1.0},
        "model_default": True,
        "note": "",
    }


# Which operation ------------------------------------------------------------------------------------------------------


async def test_a_shared_path_is_told_as_routing_chooses_it(world: World) -> None:
    shared = await world.explain({"prompt": "a"}, "/v1/completions")
    assert shared["dialect"] == "openai"
    assert "None of them claims the call, and openai comes first." in shared["why"]
    claimed = await world.explain({"prompt": "a", "bad_words": ["b"]}, "/v1/completions")
    assert claimed["dialect"] == "friendli"
    assert "for its field 'bad_words'" in claimed["why"][1]
    by_header = await world.explain({"prompt": "a"}, "/v1/completions", headers={"User-Agent": "octoai-0.1"})
    assert by_header["dialect"] == "octoai"
    assert "for its header 'user-agent'" in by_header["why"][1]
    said = await world.explain({"prompt": "a"}, "/v1/completions", dialect="tgi")
    assert said["dialect"] == "tgi"


@pytest.mark.parametrize("name", NAMES)
async def test_without_a_path_the_body_tells(world: World, name: str) -> None:
    dialect = next(each for each in world.dialects if each.name == name)
    for path, body in (await bodies(world)).items():
        if path.startswith(f"/{name}/"):
            told = await world.explain(body, dialect=name, others=False)
            assert told["accepted"]
            assert f"/{name}{told['path']}".replace("{model:path}", "stub") == path
    assert counterpart(dialect, ("prompt",)) in filter(generates, dialect.operations)
    guessed = await world.explain({"inputs": "a", "parameters": {"do_sample": True}}, others=False)
    assert guessed["dialect"] == "tgi"
    assert guessed["why"][0].startswith("No path was given.")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"body": {}, "path": "/nothing"}, 404),
        ({"body": {}, "path": "/v1/models"}, 404),
        ({"body": {}, "path": "/models/load"}, 400),
        ({"body": {}, "path": "/explain"}, 400),
        ({"body": {"bogus": 1}}, 400),
        ({"body": {}, "dialect": "klingon"}, 400),
        ({"body": {}, "path": "/v1/completions", "headers": {"a": 1}}, 400),
        ({"path": "/v1/completions"}, 400),
        ([], 400),
    ],
)
async def test_what_cannot_be_explained_is_refused(world: World, asked: Any, status: int) -> None:
    answer = await world.house.client.post("/explain", json=asked)
    assert (answer.status_code, "error" in answer.json()) == (status, True), answer.text


# Nothing happens ------------------------------------------------------------------------------------------------------


async def test_nothing_runs_and_nothing_is_written(world: World) -> None:
    ran = len(world.house.engine.requests)
    for path, body in (await bodies(world)).items():
        await world.explain({**body, "log_prompt": True}, path)
    assert len(world.house.engine.requests) == ran
    assert not world.log.exists()
    assert world.house.serving.admission.waiting == world.house.serving.admission.running == 0
    logged, _ = await world.run("/octoai/v1/completions", {"model": "stub", "prompt": "a", "log_prompt": True})
    assert (logged.status_code, world.log.exists()) == (200, True), "the log is written where a request runs"
    world.log.unlink()


async def test_a_generation_that_could_be_continued_is_left_as_it_is(world: World) -> None:
    body = {"prompt": "Once upon", "max_tokens": 3, "seed": 1, "ignore_eos": True}
    headers = {"X-Request-Continue": "key"}
    await world.explain(body, "/openai/v1/completions", headers=headers)
    first = await world.house.client.post("/openai/v1/completions", json=body, headers=headers)
    assert first.headers["x-dragoman-continued"] == "0"
    told = await world.explain(body, "/openai/v1/completions", headers=headers)
    assert told["requests"][0]["max_tokens"] == 3
    second = await world.house.client.post("/openai/v1/completions", json=body, headers=headers)
    assert second.headers["x-dragoman-continued"] == "3"


# Callers --------------------------------------------------------------------------------------------------------------


async def test_cached_tokens_are_those_of_the_caller_alone(template: ChatTemplate) -> None:
    keys = Keyring([hashed(ANN, "ann"), hashed(BOB, "bob")])
    body = {
        "prompt": "The merger of the two companies will be announced in May, and nobody knows. " * 3,
        "max_tokens": 1,
    }
    async with local_server(template, keys=keys) as house:

        async def cached(key: str, **more: Any) -> int:
            asked = {"body": {**body, **more}, "path": "/v1/completions"}
            answer = await house.client.post("/explain", json=asked, headers={"authorization": f"Bearer {key}"})
            tokens: int = answer.json()["requests"][0]["prompt"]["cached_tokens"]
            return tokens

        assert await cached(ANN) == 0
        ran = await house.client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {ANN}"})
        assert ran.status_code == 200
        assert await cached(ANN) >= 32
        assert await cached(BOB) == 0
        assert await cached(ANN, cache_salt="another") == 0
        free = house.engine.free_blocks
        assert await cached(ANN) >= 32
        assert house.engine.free_blocks == free


async def test_the_wall_of_keys_and_the_limits_hold(template: ChatTemplate) -> None:
    keys = Keyring([hashed(ANN, "ann", limits={"requests_per_minute": 2})])
    asked = {"body": {"prompt": "a"}, "path": "/v1/completions"}
    async with local_server(template, keys=keys) as house:
        assert (await house.client.post("/explain", json=asked)).status_code == 401
        headers = {"authorization": f"Bearer {ANN}"}
        statuses = [(await house.client.post("/explain", json=asked, headers=headers)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]


async def test_pages_of_other_origins_are_refused_as_for_tokenizing(world: World) -> None:
    page = {"origin": "https://evil.example"}
    statuses = [
        (await world.house.client.post(path, json=body, headers=page)).status_code
        for path, body in (("/explain", {"body": {"prompt": "a"}}), ("/friendli/v1/tokenize", {"prompt": "a"}))
    ]
    assert statuses == [403, 403]


async def test_it_is_in_the_document(world: World) -> None:
    document = (await world.house.client.get("/openapi.json")).json()
    body = document["paths"]["/explain"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert set(schema["properties"]) == {"body", "path", "dialect", "headers", "tokens", "others"}


# Steps ----------------------------------------------------------------------------------------------------------------


def engine_request(**sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id="a",
        prompt=(5, 6, 7),
        seeds=(1,),
        max_tokens=4,
        min_tokens=sampling.pop("min_tokens", 0),
        end_token_ids=(2,),
        sampling=SamplingParams(**sampling),
    )


def test_the_steps_are_those_of_the_engine_in_their_order() -> None:
    everything: dict[str, Any] = {
        "min_tokens": 1,
        "banned_phrases": ((3, 4),),
        "no_repeat_ngram_size": 3,
        "repetition_penalty": 1.5,
        "frequency_penalty": 0.5,
        "dry_multiplier": 0.5,
        "logit_bias": {5: 1.0},
        "watermark": True,
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.5,
        "xtc_probability": 0.5,
    }
    request = engine_request(**everything)
    steps = list(steps_of(request))
    names = [step.name for step in steps]
    acting = [make.__name__ for make in PIPELINE if make(request) is not None]
    assert names[: len(acting)] == acting
    assert len(acting) == len(processors_for(request))
    assert names[len(acting) :] == ["temperature", *TRUNCATIONS, "draw"]
    assert all(step.does for step in steps)
    shown = {name: value for step in steps for name, value in step.parameters.items()}
    given = {name: value for name, value in everything.items() if name != "min_tokens"}
    assert {name: shown[name] for name in given} == given


def test_greedy_and_forced_tokens_leave_steps_out() -> None:
    assert [step.name for step in steps_of(engine_request(temperature=0.0, top_k=5))] == ["greedy"]
    assert [step.name for step in steps_of(engine_request(forced_tokens=(5,), top_k=5))] == ["forced_tokens"]
    assert [step.name for step in steps_of(engine_request())] == ["draw"]
