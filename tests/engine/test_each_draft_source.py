"""Each source of drafts that needs no weights, alone and all together, at every temperature: the same tokens and
log-probabilities, in company, after preemptions and after deaths of the process."""

from __future__ import annotations

import json

import msgspec
import pytest
from test_grammar_mask import END, SIZE, VOCABULARY

from dragoman.core.constraint import JsonSchema
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import LogprobParams, SamplingParams
from dragoman.engine.engine import Engine
from dragoman.engine.runner import Runner
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.speculation.drafter import DraftSource
from dragoman.grammar.lark import grammar_of
from simulation import Limited, run, stub, through_preemptions_and_deaths

NAMES = ("first_name", "last_name", "address", "birthday")
SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 6} for name in NAMES},
    "required": NAMES,
    "additionalProperties": False,
}
WITHOUT_WEIGHTS = (DraftSource.PREDICTION, DraftSource.GRAMMAR, DraftSource.LOOKUP, DraftSource.RECENT)
CASES = [*((each,) for each in WITHOUT_WEIGHTS), tuple(DraftSource)]


def drafting(runner: Runner, sources: tuple[DraftSource, ...], **settings: object) -> Engine:
    engine = Engine(runner, SchedulerSettings(draft_sources=sources, **settings))  # type: ignore[arg-type]
    engine.set_vocabulary(VOCABULARY)
    return engine


def asking(temperature: float) -> EngineRequest:
    return EngineRequest(
        request_id="ours",
        prompt=tuple(b'{"first_name": "last_name": "address": "birthday": '),
        seeds=(5,),
        max_tokens=150,
        end_token_ids=(END,),
        sampling=SamplingParams(temperature=temperature, top_k=20),
        logprobs=LogprobParams(top=2),
        grammar=grammar_of(JsonSchema(json.dumps(SCHEMA))),
    )


@pytest.mark.parametrize("sources", CASES, ids=" ".join)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_no_token_changes(sources: tuple[DraftSource, ...], temperature: float) -> None:
    runner, request = stub(vocab_size=SIZE, num_blocks=256, max_tokens=256), asking(temperature)
    alone = run(drafting(runner, (), speculation=0, prefix_cache=False), [request])["ours"]
    output = alone.ids()
    assert len(output) > 50
    output[len(output) // 2 : len(output) // 2 + 3] = [7]  # a prediction that is wrong in one place
    request = msgspec.structs.replace(request, prediction=tuple(output))
    engine = drafting(runner, sources)
    for names in (("first",), ("ours", "second", "third")):
        crowd = [msgspec.structs.replace(request, request_id=name) for name in names]
        assert run(engine, crowd) == dict.fromkeys(names, alone)

    accepted = engine.output().stats.accepted

    def start() -> Engine:
        """A process that has said the same before, with memory for one long text at most."""
        begun = drafting(Limited(runner, num_blocks=8), sources, speculation=5)
        assert run(begun, [msgspec.structs.replace(request, request_id="first")])["first"] == alone
        return begun

    told, preemptions = through_preemptions_and_deaths(request, start)
    assert told == alone
    assert preemptions > 0
    assert set(accepted) == set(sources) if len(sources) < 2 else accepted["prediction"] > 0
