"""Capsules: what a file may hold, whoever has made it."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.core import capsule as capsules
from dragoman.core.capsule import VERSION, Capsule, Environment, RecordedRequest, RecordedSequence
from dragoman.core.errors import BadRequest
from dragoman.core.events import TokenLogprob
from dragoman.core.request import EngineRequest
from dragoman.core.sampling import BeamParams, LogprobParams, SamplingParams

CAPSULE = Capsule(
    version=VERSION,
    created="2026-11-23T08:25:00+00:00",
    environment=Environment(model="embedded", fingerprint="fp_1", weights="a", kernels="avx512"),
    request=RecordedRequest(
        prompt=(1, 2, 3),
        seeds=(7, 2**64 - 1),
        max_tokens=5,
        sampling=SamplingParams(temperature=0.5, logit_bias={5: -1.0}),
        logprobs=LogprobParams(top=2),
    ),
    outputs=(
        RecordedSequence(
            token_ids=(4, 5), logprobs=(-0.5, -1.25), top=((TokenLogprob(4, -0.5),), (TokenLogprob(6, -1.0),))
        ),
        RecordedSequence(),
    ),
)


def changed(**fields: Any) -> bytes:
    """The capsule's JSON with values in place of those at dotted names; None removes one."""
    value = json.loads(capsules.encode(CAPSULE))
    for name, given_value in fields.items():
        *path, last = name.split("__")
        place = value
        for part in path:
            place = place[int(part) if part.isdigit() else part]
        if given_value is None:
            del place[last]
        else:
            place[last] = given_value
    return json.dumps(value).encode()


def test_a_capsule_survives_its_file() -> None:
    again = capsules.decode(capsules.encode(CAPSULE))
    assert again == CAPSULE
    request = capsules.engine_request("a", again.request)
    assert (request.prompt, request.seeds, request.sampling.logit_bias) == ((1, 2, 3), (7, 2**64 - 1), {5: -1.0})


def test_a_banned_token_survives_its_file() -> None:
    biases = {5: -math.inf, 6: -1.0}
    asked = EngineRequest(
        request_id="a", prompt=(1,), seeds=(1,), max_tokens=1, sampling=SamplingParams(logit_bias=biases)
    )
    request = capsules.recorded(asked, reported=False, stop=(), adapter=None)
    capsule = msgspec.structs.replace(CAPSULE, request=request, outputs=(RecordedSequence(),))
    again = capsules.decode(capsules.encode(capsule))
    assert capsules.engine_request("a", again.request) == asked


def test_a_recorded_request_has_no_caller() -> None:
    secret = EngineRequest(
        request_id="client-id",
        prompt=(1,),
        seeds=(1,),
        max_tokens=1,
        tenant="holder:ann",
        cache_salt="digest-of-the-key:salt",
        priority=3,
        weight=2.0,
    )
    kept = msgspec.json.encode(capsules.recorded(secret, reported=False, stop=(), adapter=None))
    for word in (b"ann", b"digest", b"salt", b"client-id", b"tenant"):
        assert word not in kept


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default


def test_the_defaults_are_those_of_the_version() -> None:
    """A file leaves out what is at its default: another default is another version of the format."""
    assert msgspec.to_builtins(SamplingParams()) == {}
    found = {
        struct.__name__: {
            field.name: json.loads(msgspec.json.encode(default_of(field)))
            for field in msgspec.structs.fields(struct)
            if not field.required
        }
        for struct in (SamplingParams, LogprobParams, BeamParams, RecordedRequest, RecordedSequence)
    }
    assert VERSION == 1
    assert found == VERSION_1


VERSION_1: dict[str, Any] = {
    "SamplingParams": {
        "temperature": 1.0,
        "temperature_last": False,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "frequency_share": False,
        "presence_penalty": 0.0,
        "penalty_last_n": -1,
        "logit_bias": {},
        "typical_p": 1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "mirostat_mode": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "bad_words": [],
        "banned_phrases": [],
        "no_repeat_ngram_size": 0,
        "encoder_repetition_penalty": 1.0,
        "encoder_no_repeat_ngram_size": 0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "dry_breaker_ids": [],
        "watermark": False,
        "watermark_gamma": 0.5,
        "watermark_delta": 2.0,
        "forced_tokens": [],
    },
    "LogprobParams": {"top": 0, "ties": False, "prompt": False, "mode": "raw"},
    "BeamParams": {
        "kind": "deterministic",
        "length_penalty": 1.0,
        "early_stopping": False,
        "pre_normalization": True,
        "post_normalization": False,
    },
    "RecordedRequest": {
        "sampling": {},
        "min_tokens": 0,
        "length_first": False,
        "eos_after_grammar": False,
        "end_token_ids": [],
        "stop_token_ids": [],
        "logprobs": None,
        "generated": [],
        "mirostat": [],
        "grammar": None,
        "reasoning": None,
        "beams": None,
        "embeddings": None,
        "images": [],
        "adapter": None,
        "encoder_input": [],
        "first_token_id": None,
        "last_token_id": None,
        "reported": False,
        "stop": [],
        "banned_token_ids": [],
    },
    "RecordedSequence": {"token_ids": [], "logprobs": [], "top": [], "finish": None},
}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no capsule"),
        (b"[]", "no capsule"),
        (b"\xff", "no capsule"),
        (b"{" * 100_000, "no capsule"),
        (b'{"version": 1}', "no capsule"),
        (changed(version=2), "of version 2; this program reads version 1"),
        (changed(version="1"), "no capsule"),
        (changed(more=1), "unknown field `more`"),
        (changed(request__more=1), "unknown field `more`"),
        (changed(request__sampling__more=1), "unknown field 'more'"),
        (changed(request__logprobs__more=1), "unknown field 'more'"),
        (changed(environment__key="secret"), "unknown field `key`"),
        (changed(request__prompt=[-1]), "no capsule"),
        (changed(request__prompt=[2**31]), "no capsule"),
        (changed(request__prompt=["1"]), "no capsule"),
        (changed(request__seeds=[]), "no capsule"),
        (changed(request__seeds=[2**64, 1]), "2\\^64|no capsule"),
        (changed(request__seeds=[1]), "2 outputs for 1 seeds"),
        (changed(request__max_tokens=-1), "no capsule"),
        (changed(request__sampling__temperature=-1.0), "temperature is out of its range"),
        (changed(request__sampling__top_k=-5), "top_k is out of its range"),
        (changed(outputs__0__logprobs=[0.5, -1.0]), "above 0"),
        (changed(outputs__0__logprobs=[-1.0]), "1 log-probabilities for 2 tokens"),
        (changed(outputs__0__top=[[[4, 1.0]], []]), "alternative"),
        (changed(outputs__0__finish="never"), "no capsule"),
        (changed(created="x" * 10_000), "no capsule"),
        (changed(request__prompt=None), "no capsule"),
    ],
)
def test_what_a_stranger_sends_is_checked(data: bytes, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        capsules.decode(data)


def test_a_file_that_is_too_large_is_not_decoded() -> None:
    with pytest.raises(BadRequest, match="more than"):
        capsules.decode(b" " * (capsules.MOST_BYTES + 1))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_damage_is_more_than_an_error(data: st.DataObject) -> None:
    file = bytearray(capsules.encode(CAPSULE))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(file) - 1))
        file[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(BadRequest):
        capsules.decode(bytes(file))
