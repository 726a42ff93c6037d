"""The rules of a request, in the order in which TGI looks at them: the first that is broken is the one reported.

Everything here raises ``InvalidInput`` with TGI's own message.
"""

from __future__ import annotations

from dragoman.dialects.tgi.errors import InvalidInput
from dragoman.dialects.tgi.parameters import Parameters
from dragoman.dialects.tgi.settings import Quirks, TgiSettings

SLICE_TOKENS = 1024
"""TGI 3 looks at no more of ``max_new_tokens`` than this, because it generates in slices of so many."""


def check_choice(asked: Parameters, settings: TgiSettings) -> None:
    """What is looked at even before the server's load: from how many sequences the best may be chosen."""
    best_of, most = asked.core.get("n"), settings.max_best_of
    if best_of is None or best_of == 1:
        return
    if most == 1:
        raise InvalidInput("`best_of` != 1 is not allowed for this endpoint")
    if not 0 < best_of <= most:
        raise InvalidInput(f"`best_of` must be > 0 and <= {most}. Given: {best_of}")


def check_streamable(asked: Parameters) -> None:
    """What cannot be streamed."""
    if asked.core.get("n") not in (None, 1):
        raise InvalidInput("`best_of` != 1 is not supported when streaming tokens")
    if asked.core.get("logprobs.prompt"):
        raise InvalidInput("`decoder_input_details` == true is not supported when streaming tokens")


def check_parameters(
    asked: Parameters, inputs: str, settings: TgiSettings, quirks: Quirks, max_input_tokens: int
) -> None:
    """Every rule that needs no tokens."""
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
    if not inputs:
        raise InvalidInput("`inputs` cannot be empty")
    truncate = get("truncate")
    if truncate is not None and not 0 < truncate <= max_input_tokens:
        message = f"`truncate` must be strictly positive and less than {max_input_tokens}. Given: {truncate}"
        raise InvalidInput(message)


def token_budget(asked: Parameters, input_tokens: int, settings: TgiSettings, limits: tuple[int, int]) -> int:
    """How many tokens to generate behind a prompt of so many; ``limits`` are those of ``TgiSettings.limits``."""
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
    """What can be said of a grammar before it is compiled."""
    if asked.grammar_fault:
        raise InvalidInput(asked.grammar_fault)
    if asked.core.get("constraint") is not None and settings.disable_grammar_support:
        raise InvalidInput("grammar is not supported")
