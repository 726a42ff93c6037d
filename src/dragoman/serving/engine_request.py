"""Requests for the engine: token ids, seeds, and a length that fits the context, all checked against the model."""

from __future__ import annotations

import itertools

import msgspec

from dragoman.core.caller import DEFERRABLE_PRIORITY, NO_CALLER, Caller, current_caller, is_deferrable
from dragoman.core.entropy import named_bits
from dragoman.core.errors import BadRequest, ContextOverflow
from dragoman.core.images import PlacedImage
from dragoman.core.request import ChatPrompt, EngineRequest, FillPrompt, GenerationRequest
from dragoman.core.sampling import MAX_SEED, EndingParams, LogprobParams
from dragoman.models import EncoderInfo
from dragoman.serving.checks import (
    check_embeddings,
    check_encoder_options,
    check_ids,
    check_logprobs,
    check_placed_images,
)
from dragoman.serving.model import ServedModel
from dragoman.serving.prompts import overflow

_numbers = itertools.count(1)


def engine_request(
    model: ServedModel,
    request: GenerationRequest,
    prompt: tuple[int, ...],
    count: int,
    logprobs: LogprobParams | None,
    images: tuple[PlacedImage, ...] = (),
) -> EngineRequest:
    """Return the request in token ids, its length fitted to the context, under an id of the server's: two clients
    may send the same. Raises BadRequest or ContextOverflow."""
    ending, vocab_size = request.ending, model.vocab_size
    sampling = request.sampling
    check_encoder_options(request, model.encoder, model.context_tokens)
    check_ids(model, "logit_bias", sampling.logit_bias)
    check_ids(model, "forced_output_tokens", sampling.forced_tokens)
    check_ids(model, "dry_sequence_breaker_ids", sampling.dry_breaker_ids)
    for phrase in sampling.banned_phrases:
        check_ids(model, "bad_word_token_ids", phrase)
    check_ids(model, "stop_token_ids", ending.stop_token_ids)
    check_ids(model, "end_token_ids", ending.end_token_ids or ())
    if request.embeddings is not None:
        check_embeddings(request.embeddings, len(prompt), model.card.hidden_size)
    check_placed_images(model, request, images, len(prompt))
    resumed, before = request.resumed, tokens_before(request, prompt)
    earlier = before - len(prompt)
    max_tokens = _max_tokens(model, request, len(prompt), earlier)
    min_tokens = max(ending.min_tokens, ending.min_total_tokens - len(prompt))
    if min_tokens > max_tokens and not request.resumable:
        name = "min_total_tokens" if ending.min_total_tokens else "min_tokens"
        message = f"'{name}' ({ending.min_total_tokens or ending.min_tokens}) is more than there is room for: "
        raise BadRequest(f"{message}{len(prompt)} in the prompt and {max_tokens} to generate.", param=name)
    if logprobs is not None:
        # A step of a beam search follows up to num_beams sequences, and ends as many.
        computed = count if request.beams is None else 2 * request.beams.num_beams
        check_logprobs(logprobs, computed * max_tokens, vocab_size)
    caller = current_caller.get()
    return EngineRequest(
        request_id=f"{request.request_id}.{next(_numbers)}",
        prompt=prompt,
        seeds=_seeds(request, count) if request.beams is None else _seeds(request, 1) * count,
        max_tokens=earlier + max_tokens,
        generated=(resumed.output,) if resumed else (),
        mirostat=(resumed.mirostat,) if resumed and sampling.mirostat_mode else (),
        sampling=sampling,
        min_tokens=min_tokens,
        length_first=ending.length_first,
        eos_after_grammar=request.eos_after_constraint,
        end_token_ids=_end_token_ids(model, ending, fills=isinstance(request.prompt, FillPrompt)),
        stop_token_ids=ending.stop_token_ids,
        logprobs=logprobs,
        priority=request.priority,
        embeddings=request.embeddings,
        images=images,
        pooling=request.pooling,
        beams=request.beams,
        adapter=request.adapter,
        tenant=caller.share_key if caller is not NO_CALLER else "",
        weight=caller.limits.weight,
        max_running=caller.limits.max_running,
        deferrable=is_deferrable.get(),
        seeded=request.seeds is not None,
        resumable=request.resumable,
    )


def with_priority(request: GenerationRequest, caller: Caller) -> GenerationRequest:
    """Return the request with the priority that it has in the engine: at most that of its caller, and below those of
    all others where it is deferrable."""
    priority = min(request.priority, caller.limits.max_priority)
    if is_deferrable.get():
        priority = DEFERRABLE_PRIORITY + min(max(priority, DEFERRABLE_PRIORITY + 1), -DEFERRABLE_PRIORITY - 1)
    return request if priority == request.priority else msgspec.structs.replace(request, priority=priority)


def sequences_of(request: GenerationRequest) -> tuple[int, LogprobParams | None]:
    """Return how many sequences a request makes, and their log-probabilities: the best of several is chosen by them,
    whether or not the client wants to see any."""
    count = request.best_of or request.n
    choosing = request.best_of is not None and count > 1
    return count, request.logprobs or (LogprobParams() if choosing else None)


def tokens_before(request: GenerationRequest, prompt: tuple[int, ...]) -> int:
    """Return how many tokens precede the first new one: the prompt's, and those of earlier calls."""
    return len(prompt) + (len(request.resumed.output) if request.resumed else 0)


def with_forced_length(request: GenerationRequest) -> GenerationRequest:
    """Return the request; where its output is given, with its length as the only end."""
    forced, ending = request.sampling.forced_tokens, request.ending
    if not forced:
        return request
    shown = EndingParams(
        max_tokens=len(forced), end_token_ids=ending.end_token_ids, skip_special_tokens=ending.skip_special_tokens
    )
    return msgspec.structs.replace(request, ending=shown)


def _end_token_ids(model: ServedModel, ending: EndingParams, *, fills: bool) -> tuple[int, ...]:
    """``fills``: the text fills a gap, so that the marks of gaps and files end it too."""
    if ending.ignore_eos:
        return ()
    if fills and ending.end_token_ids is None and model.tokenizer.fill is not None:
        return tuple(dict.fromkeys((*model.eos_ids, *model.tokenizer.fill.ends)))
    return model.eos_ids if ending.end_token_ids is None else ending.end_token_ids


def _max_tokens(model: ServedModel, request: GenerationRequest, prompt_tokens: int, earlier: int) -> int:
    """``earlier``: tokens of the output that earlier calls have generated."""
    ending, context = request.ending, model.context_tokens
    asked, encoder = ending.max_tokens, model.encoder
    if encoder is not None and prompt_tokens > encoder.context_tokens:
        raise overflow(model, f"the prompt has {prompt_tokens}", "prompt", prompt_tokens=prompt_tokens)
    prompt_tokens = earlier if encoder is not None else prompt_tokens + earlier
    room = context - prompt_tokens
    if ending.max_total_tokens is not None and room > 0 and encoder is None:
        left = min(ending.max_total_tokens, context) - prompt_tokens
        if left <= 0:
            message = f"'max_total_tokens' ({ending.max_total_tokens}) leaves no room behind a prompt of "
            raise BadRequest(f"{message}{prompt_tokens} tokens.", param="max_total_tokens")
        asked = left if asked is None else min(asked, left)
    if asked is not None and ending.clamp_to_context and room > 0:
        asked = min(asked, room)
    if asked is None and room > 0:
        return room
    if encoder is not None and (asked is None or asked > room):
        wanted = earlier + (asked or 1)
        message = f"This model generates at most {context} tokens. However, {wanted} were requested."
        raise ContextOverflow(message, param="max_tokens", max_tokens=asked, context_tokens=context)
    if asked is None or asked > room:
        is_chat = isinstance(request.prompt, ChatPrompt)
        parts = f"{prompt_tokens} in the {'messages' if is_chat else 'prompt'}, {asked or 1} to generate"
        raise ContextOverflow(
            f"This model's maximum context length is {context} tokens. "
            f"However, {prompt_tokens + (asked or 1)} tokens were requested: {parts}.",
            param="messages" if is_chat else "prompt",
            prompt_tokens=prompt_tokens,
            max_tokens=asked,
            context_tokens=context,
        )
    return asked


def _seeds(request: GenerationRequest, count: int) -> tuple[int, ...]:
    """Return one seed for each sequence: as given, counted up from a single one, or drawn for the request's id."""
    given = request.seeds
    if given is not None and len(given) == count > 1:
        return given
    if given is not None and len(given) != 1:
        raise BadRequest(f"{len(given)} seeds were given for {count} sequences.", param="seed")
    first = named_bits(request.request_id, 64) if given is None else given[0]
    return tuple((first + i) & MAX_SEED for i in range(count))


def for_encoder(request: EngineRequest, encoder: EncoderInfo | None, *, resumable: bool) -> EngineRequest:
    """Return the request with its prompt as the encoder's input; as it is where the model has no encoder.

    A grammar covers the whole output. The token that begins every output then precedes it, and none is forced at the
    end; nor at the cut of a ``resumable`` text, which continues later.
    """
    if encoder is None:
        return request
    start: tuple[int, ...] = (encoder.start_token_id,)
    first, last = encoder.first_token_id, encoder.last_token_id
    if request.grammar is not None:
        start += () if first is None else (first,)
        first = last = None
    return msgspec.structs.replace(
        request,
        encoder_input=request.prompt,
        prompt=start,
        first_token_id=first,
        last_token_id=None if resumable else last,
    )


def output_tokens(encoder: EncoderInfo, context_tokens: int) -> int:
    """Return how many tokens an output may have at most, where the decoder holds so many."""
    return context_tokens - 1 - (encoder.first_token_id is not None)
