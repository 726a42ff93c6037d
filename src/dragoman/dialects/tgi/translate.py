"""TGI's parameters in the core's terms, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.core.request import GenerationRequest, TokenPrompt
from dragoman.core.sampling import LogprobParams
from dragoman.dialects.field import CoreParams
from dragoman.dialects.tgi.errors import InvalidInput
from dragoman.dialects.tgi.fields import PARAMETERS
from dragoman.dialects.tgi.grammar import PARAM
from dragoman.dialects.tgi.parameters import Parameters
from dragoman.dialects.tgi.settings import Quirks, TgiSettings

_DRAWS = ("sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.typical_p")


def parameters_of(
    values: Mapping[str, Any] | None, *, full_text: bool = False, fills: bool = False, samples: bool = False
) -> Parameters:
    """The parameters of a native request; None where it has none. Raises Violation for a grammar of the wrong shape.

    ``full_text``: what an absent ``return_full_text`` means. ``fills``: ``max_new_tokens`` is there, as ``null``.
    ``samples``: tokens are drawn whatever ``do_sample`` says.
    """
    if values is None:
        return Parameters(sampling=True, return_full_text=full_text)
    core, fault = with_constraint(CoreParams(PARAMETERS, values))
    stops = tuple(stop for _, stops in core.given("ending.stop") for stop in stops)
    stated = values["return_full_text"]
    return Parameters(
        core=core.deciding({"ending.stop": stops}),
        sampling=samples or values["do_sample"] or any(core.get(target) is not None for target in _DRAWS),
        fills=fills,
        details=values["details"] or core.get("logprobs.prompt"),
        return_full_text=full_text if stated is None else stated,
        grammar_fault=fault,
    )


def with_constraint(core: CoreParams) -> tuple[CoreParams, str]:
    """The parameters with the constraint decided, and why a grammar comes to none. Raises Violation."""
    try:
        return core.deciding({"constraint": core.get("constraint")}), ""
    except InvalidInput as error:
        return core.deciding({"constraint": None}), error.rule


def generation_request(
    request_id: str,
    prompt: tuple[int, ...],
    asked: Parameters,
    budget: int,
    seed: int,
    settings: TgiSettings,
    quirks: Quirks,
) -> GenerationRequest:
    """What is generated: ``budget`` tokens at most behind these.

    Stop strings are looked for in text with its special tokens, so these are shown here; ``SequenceOutput`` hides them.
    """
    core = asked.core
    prefill = bool(core.get("logprobs.prompt")) and settings.enable_prefill_logprobs
    # The best of several is chosen by them.
    wanted = asked.logprobs or prefill or core.get("logprobs.top") or asked.sequences > 1
    decided = {
        "n": asked.sequences,
        "sampling.frequency_share": quirks.frequency_as_share,
        "sampling.watermark_gamma": settings.watermark_gamma,
        "sampling.watermark_delta": settings.watermark_delta,
        "ending.max_tokens": budget,
        "ending.length_first": True,
        "ending.stop": tuple(filter(None, core.get("ending.stop") or ())),
        "ending.include_stop": True,
        "ending.stop_at_token_ends": quirks.stop_at_token_ends,
        "ending.skip_special_tokens": False,
        "logprobs": LogprobParams() if wanted else None,
        "logprobs.ties": True,
        "logprobs.prompt": prefill,
        "logprobs.mode": "processed",
        "truncate": None,
    }
    if not asked.sampling:
        decided |= dict.fromkeys(_DRAWS) | {"sampling.temperature": 0.0}
    return core.deciding(decided).request(
        request_id, TokenPrompt(token_ids=prompt), seeds=(seed,), constraint_param=PARAM, eos_after_constraint=True
    )
