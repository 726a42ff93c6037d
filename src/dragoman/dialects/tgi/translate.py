"""Translation from wire to core: the parameters of a generation, and the rules for requests.

The rules are in the order in which TGI looks at them: the first that is broken is the one reported. All of them raise
``InvalidInput`` with TGI's own message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.core.errors import AdapterNotFound
from dragoman.core.request import GenerationRequest, Prompt
from dragoman.core.sampling import LogprobParams
from dragoman.core.serving import Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import CoreParams, Reading, Table
from dragoman.dialects.tgi.errors import InvalidInput
from dragoman.dialects.tgi.fields import PARAM, PARAMETERS
from dragoman.dialects.tgi.settings import Quirks, TgiSettings

NOTHING = CoreParams(Table(name="", fields=()), {})


class Parameters(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a request. Not validated.

    Attributes:
        core: the parameters of the core; ``ending.max_tokens`` None: ``fills``, or what the operator set for those who
            do not set it.
        sampling: whether tokens are drawn; otherwise the likeliest is taken.
        fills: as many tokens as there is room for, overriding the operator's value.
        logprobs: whether the log-probabilities of the tokens are shown; they take a pass over the vocabulary each.
        details: whether the answer shows its tokens, and how the text ended.
        any_adapter: where there is no adapter of the name that is given, none is meant.
        grammar_fault: why the grammar is invalid; reported after all other errors.
    """

    core: CoreParams = NOTHING
    sampling: bool = False
    fills: bool = False
    logprobs: bool = True
    details: bool = False
    return_full_text: bool = False
    any_adapter: bool = False
    grammar_fault: str = ""

    @property
    def sequences(self) -> int:
        """The number of sequences generated, of which the best is the answer."""
        return self.core.get("n") or 1

    def deciding(self, decided: dict[str, Any]) -> Parameters:
        """Return a copy with these parameters of the core decided."""
        return msgspec.structs.replace(self, core=self.core.deciding(decided))


_DRAWS = ("sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.typical_p")


def parameters_of(
    values: Mapping[str, Any] | None, *, full_text: bool = False, fills: bool = False, samples: bool = False
) -> Parameters:
    """Return the parameters of a native request; None where it has none. Raises FieldError for a grammar of the wrong
    shape.

    ``full_text``: the default of ``return_full_text``. ``fills``: ``max_new_tokens`` is present, as ``null``.
    ``samples``: tokens are sampled for any value of ``do_sample``.
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
    """Return the parameters with the constraint decided, and why a grammar comes to none. Raises FieldError."""
    try:
        return core.deciding({"constraint": core.get("constraint")}), ""
    except InvalidInput as error:
        return core.deciding({"constraint": None}), error.rule


def generation_request(
    request_id: str,
    prompt: Prompt,
    asked: Parameters,
    budget: int,
    seed: int,
    settings: TgiSettings,
    quirks: Quirks,
) -> GenerationRequest:
    """Return the request of the core, for at most ``budget`` tokens.

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
        request_id, prompt, seeds=(seed,), constraint_param=PARAM, eos_after_constraint=True
    )


def adapter_of(asked: Parameters, serving: Serving, quirks: Quirks) -> str | None:
    """Return the loaded adapter to run with; None: the base model.

    A ``model`` that is no adapter's name is the base model: clients send arbitrary names. So is an ``adapter_id`` while
    no adapter is loaded. Raises InvalidInput for one that names no loaded adapter.
    """
    name = asked.core.get("adapter")
    if name is None:
        return None
    try:
        return serving.adapter(name).name
    except AdapterNotFound:
        if asked.any_adapter or quirks.unknown_adapter_is_base or not has_adapters(serving):
            return None
    raise InvalidInput(f"adapter_id `{name[:256]}` is not loaded", logged="adapter_id is not loaded")


def has_adapters(serving: Serving) -> bool:
    """Return whether any adapter is loaded."""
    return any(card.base is not None for card in serving.models())


def report_adapter(context: RequestContext, reading: Reading, serving: Serving, quirks: Quirks) -> None:
    """Name ``adapter_id`` in the answer where it has no effect, and is not refused."""
    name = reading.core.get("adapter")
    if name is None or (has_adapters(serving) and not quirks.unknown_adapter_is_base):
        return
    try:
        serving.adapter(name)
    except AdapterNotFound:
        reported = (*reading.reported, "parameters.adapter_id")
        context.report(msgspec.structs.replace(reading, reported=reported))


SLICE_TOKENS = 1024
"""Most tokens of ``max_new_tokens`` that TGI 3 counts, because it generates in slices of this size."""


def check_choice(asked: Parameters, settings: TgiSettings) -> None:
    """Check from how many sequences the best is chosen, which comes even before the server's load."""
    best_of, most = asked.core.get("n"), settings.max_best_of
    if best_of is None or best_of == 1:
        return
    if most == 1:
        raise InvalidInput("`best_of` != 1 is not allowed for this endpoint")
    if not 0 < best_of <= most:
        raise InvalidInput(f"`best_of` must be > 0 and <= {most}. Given: {best_of}")


def check_streamable(asked: Parameters) -> None:
    """Check that the request can be streamed."""
    if asked.core.get("n") not in (None, 1):
        raise InvalidInput("`best_of` != 1 is not supported when streaming tokens")
    if asked.core.get("logprobs.prompt"):
        raise InvalidInput("`decoder_input_details` == true is not supported when streaming tokens")


def check_parameters(
    asked: Parameters, settings: TgiSettings, quirks: Quirks, max_input_tokens: int, *, is_empty: bool
) -> None:
    """Check every rule that needs no tokens. ``is_empty``: the inputs are."""
    get, chooses = asked.core.get, asked.sequences > 1
    if chooses and not asked.sampling:
        raise InvalidInput("you must use sampling when `best_of` is > 1")
    for name in ("temperature", "repetition_penalty"):
        value = get(f"sampling.{name}")
        if value is not None and value <= 0:
            raise InvalidInput(f"`{name}` must be strictly positive")
    for name in ("frequency_penalty", "presence_penalty"):
        value = get(f"sampling.{name}")
        if value is not None and not -2 <= value <= 2:
            raise InvalidInput(f"`{name}` must be >= -2.0 and <= 2.0")
    for name in ("top_p", "typical_p"):
        share = get(f"sampling.{name}")
        if share is not None and not (0 < share < 1 or (share == 1 and not quirks.one_is_no_probability)):
            raise InvalidInput(f"`{name}` must be > 0.0 and < 1.0")
    top_k = get("sampling.top_k")
    if top_k is not None and top_k <= 0:
        raise InvalidInput("`top_k` must be strictly positive")
    if get("ending.max_tokens") == 0:
        raise InvalidInput("`max_new_tokens` must be strictly positive")
    stops, most = len(get("ending.stop") or ()), settings.max_stop_sequences
    if stops > most:
        raise InvalidInput(f"`stop` supports up to {most} stop sequences. Given: {stops}")
    if get("seeds") is not None and chooses:
        raise InvalidInput("`seed` must not be set when `best_of` > 1")
    top, most = get("logprobs.top") or 0, settings.max_top_n_tokens
    if top > most:
        raise InvalidInput(f"`top_n_tokens` must be >= 0 and <= {most}. Given: {top}")
    if is_empty:
        raise InvalidInput("`inputs` cannot be empty")
    truncate = get("truncate")
    if truncate is not None and not 0 < truncate <= max_input_tokens:
        message = f"`truncate` must be strictly positive and less than {max_input_tokens}. Given: {truncate}"
        raise InvalidInput(message)


def token_budget(asked: Parameters, input_tokens: int, settings: TgiSettings, limits: tuple[int, int]) -> int:
    """Return how many tokens to generate after a prompt of so many; ``limits`` are those of ``TgiSettings.limits``."""
    max_input, max_total = limits
    room, new = max_total - input_tokens, asked.core.get("ending.max_tokens")
    if new is not None:
        seen = min(new, SLICE_TOKENS) if settings.lenient_token_budget else new
        if seen > room:
            raise InvalidInput(
                f"`inputs` tokens + `max_new_tokens` must be <= {max_total}. "
                f"Given: {input_tokens} `inputs` tokens and {seen} `max_new_tokens`"
            )
    if input_tokens > max_input:
        raise InvalidInput(f"`inputs` must have less than {max_input} tokens. Given: {input_tokens}")
    if new is None and not asked.fills:
        new = settings.default_max_new_tokens
    return room if new is None else min(new, room)


def check_grammar(asked: Parameters, settings: TgiSettings) -> None:
    """Check a grammar as far as possible without compiling it."""
    if asked.grammar_fault:
        raise InvalidInput(asked.grammar_fault)
    if asked.core.get("constraint") is not None and settings.disable_grammar_support:
        raise InvalidInput("grammar is not supported")
