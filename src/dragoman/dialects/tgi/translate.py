"""TGI's parameters in the core's terms, as pure functions."""

from __future__ import annotations

from typing import Any

from dragoman.core.constraint import Constraint
from dragoman.core.request import GenerationRequest, TokenPrompt
from dragoman.core.sampling import EndingParams, LogprobParams, SamplingParams
from dragoman.dialects.tgi.errors import InvalidInput
from dragoman.dialects.tgi.grammar import PARAM, constraint_of
from dragoman.dialects.tgi.parameters import Parameters
from dragoman.dialects.tgi.settings import Quirks, TgiSettings

_DRAWS = ("temperature", "top_k", "top_p", "typical_p")


def parameters_of(values: dict[str, Any] | None, *, full_text: bool = False, fills: bool = False) -> Parameters:
    """The parameters of a native request; None where it has none. Raises Violation for a grammar of the wrong shape.

    ``full_text``: what an absent ``return_full_text`` means. ``fills``: ``max_new_tokens`` is there, as ``null``.
    """
    if values is None:
        return Parameters(sampling=True, return_full_text=full_text)
    stated = values["return_full_text"]
    constraint, fault = _grammar(values["grammar"])
    same = {name: values[name] for name in Parameters.__struct_fields__ if name in values}
    return Parameters(
        **same
        | {
            "sampling": values["do_sample"] or any(values[name] is not None for name in _DRAWS),
            "stop": (*values["stop"], *values["stop_sequences"]),
            "fills": fills,
            "return_full_text": full_text if stated is None else stated,
            "details": values["details"] or values["decoder_input_details"],
            "constraint": constraint,
            "grammar_fault": fault,
        }
    )


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

    Stop strings are looked for in the text with its special tokens, so these are shown here; ``Passage`` hides them.
    """
    prefill = asked.decoder_input_details and settings.enable_prefill_logprobs
    top = asked.top_n_tokens or 0
    # The best of several is chosen by them.
    wanted = asked.logprobs or prefill or top or asked.sequences > 1
    return GenerationRequest(
        request_id=request_id,
        prompt=TokenPrompt(token_ids=prompt),
        n=asked.sequences,
        seeds=(seed,),
        sampling=_sampling(asked, settings, quirks),
        ending=EndingParams(
            max_tokens=budget,
            length_first=True,
            stop=tuple(stop for stop in asked.stop if stop),
            include_stop=True,
            stop_at_token_ends=quirks.stop_at_token_ends,
            skip_special_tokens=False,
        ),
        logprobs=LogprobParams(top=top, ties=True, prompt=prefill, mode="processed") if wanted else None,
        constraint=asked.constraint,
        constraint_param=PARAM,
        eos_after_constraint=True,
    )


def _grammar(values: dict[str, Any] | None) -> tuple[Constraint | None, str]:
    try:
        return constraint_of(values, "parameters.grammar"), ""
    except InvalidInput as error:
        return None, error.rule


def _sampling(asked: Parameters, settings: TgiSettings, quirks: Quirks) -> SamplingParams:
    drawn = {
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "top_k": asked.top_k or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "typical_p": 1.0 if asked.typical_p is None else asked.typical_p,
    }
    return SamplingParams(
        **(drawn if asked.sampling else {"temperature": 0.0}),  # type: ignore[arg-type]
        repetition_penalty=1.0 if asked.repetition_penalty is None else asked.repetition_penalty,
        frequency_penalty=asked.frequency_penalty or 0.0,
        frequency_share=quirks.frequency_as_share,
        presence_penalty=asked.presence_penalty or 0.0,
        logit_bias=asked.logit_bias,
        watermark=asked.watermark,
        watermark_gamma=settings.watermark_gamma,
        watermark_delta=settings.watermark_delta,
    )
