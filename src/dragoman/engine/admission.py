"""Checks of requests before they are queued: everything that would break a step, or never run, is refused with its
reason.

The server refuses most of it before, in its dialect's words. This is the last check: a bad number that passed it
would break a whole batch.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from dragoman.core.errors import BadRequest, ContextOverflow
from dragoman.core.request import EngineRequest, PromptEmbeddings
from dragoman.core.sampling import MAX_SEED, BeamParams
from dragoman.engine.prompt_images import check_images, cross_attention_blocks
from dragoman.engine.runner import Runner
from dragoman.models.kv_groups import blocks_per_sequence


def check(request: EngineRequest, runner: Runner, step_tokens: int, rows: int = 1) -> None:
    """Raise BadRequest or ContextOverflow where ``runner`` can never serve the request, in steps of so many tokens, of
    up to ``rows`` sequences."""
    count, total = len(request.seeds), len(request.prompt) + request.max_tokens
    if not request.prompt or not count or request.max_tokens < 0:
        raise BadRequest("a request needs a prompt, a seed for each sequence, and max_tokens of 0 or more")
    if not 0 <= min(request.seeds) <= max(request.seeds) <= MAX_SEED:
        raise BadRequest(f"seeds must be from 0 to {MAX_SEED}")
    if any(part and len(part) != count for part in (request.generated, request.finished, request.mirostat)):
        raise BadRequest("a resumed request must have a state for each of its sequences")
    if total > runner.max_context:
        raise ContextOverflow(f"prompt and output have {total} tokens, more than the context of {runner.max_context}")
    _check_encoder_input(request, runner)
    _check_pooling(request, runner)
    size = runner.block_size
    encoder_blocks = -(-len(request.encoder_input) // size) + cross_attention_blocks(request, runner.tower, size)
    for pool in runner.pools:
        if blocks_per_sequence(total, pool.window, step_tokens, size) + encoder_blocks > pool.blocks:
            total += len(request.encoder_input)
            raise ContextOverflow(
                f"prompt and output have {total} tokens, more than the {pool.blocks * size} that fit in the cache"
            )
    sampling = request.sampling
    of_sampling = (sampling.logit_bias, sampling.forced_tokens, sampling.dry_breaker_ids, *sampling.banned_phrases)
    ends = [each for each in (request.first_token_id, request.last_token_id) if each is not None]
    marks = () if request.reasoning is None else request.reasoning.closing_ids
    of_model = (request.encoder_input, request.end_token_ids, ends, marks)
    for ids in (request.prompt, request.prediction, *request.generated, *of_model, *of_sampling):
        if ids and not 0 <= min(ids) <= max(ids) < runner.vocab_size:
            raise BadRequest(f"token ids must be from 0 to {runner.vocab_size - 1}")
    if request.embeddings is not None:
        _check_embeddings(request.embeddings, request.prompt_tokens, runner.hidden_size)
    check_images(request, runner.tower, step_tokens, rows)
    if request.logprobs is not None and not 0 <= request.logprobs.top <= runner.vocab_size:
        raise BadRequest(f"top log-probabilities must be from 0 to {runner.vocab_size}, the size of the vocabulary")
    for name in sampling.out_of_range:
        raise BadRequest(f"{name} is out of its range", param=name)
    if not all(state is None or math.isfinite(state) for state in request.mirostat):
        raise BadRequest("mirostat's state must be a finite number")
    if sampling.forced_tokens and request.max_tokens != len(sampling.forced_tokens):
        raise BadRequest("max_tokens must be the number of forced tokens")
    if sampling.forced_tokens and request.grammar is not None:
        raise BadRequest("forced tokens cannot be combined with a grammar")
    if sampling.mirostat_mode and sampling.truncations:
        raise BadRequest(f"mirostat cannot be combined with {sampling.truncations[0]}", param="mirostat_mode")
    if request.reasoning is not None and (request.reasoning.tokens < 1 or not marks):
        raise BadRequest("reasoning needs a limit of at least 1 token, and a closing mark")
    if request.beams is not None:
        _check_beams(request, request.beams)


def _check_encoder_input(request: EngineRequest, runner: Runner) -> None:
    length, most = len(request.encoder_input), runner.encoder_context
    if bool(length) is not (most > 0):
        raise BadRequest("an encoder's input is needed by encoder-decoder models, and only by them")
    if length > most:
        raise ContextOverflow(f"the input has {length} tokens, more than the encoder's context of {most}")


def _check_pooling(request: EngineRequest, runner: Runner) -> None:
    pooling = request.pooling
    if pooling is None:
        if not runner.causal:
            raise BadRequest("this model makes vectors of texts, and generates none")
        return
    if runner.encoder_context:
        raise BadRequest("an encoder-decoder model makes no vectors of texts")
    if (pooling.kind is None) is not bool(pooling.token_ids) or (pooling.token_ids and not runner.causal):
        raise BadRequest("a vector is made of hidden states, or of the logits of some tokens")
    if pooling.token_ids and not 0 <= min(pooling.token_ids) <= max(pooling.token_ids) < runner.vocab_size:
        raise BadRequest(f"token ids must be from 0 to {runner.vocab_size - 1}")
    if not 0 <= pooling.segment_start < len(request.prompt) or (pooling.segment_start and runner.causal):
        raise BadRequest("a second text begins within the prompt, and is read by encoders only")
    if request.max_tokens or len(request.seeds) != 1 or request.logprobs or request.grammar or request.beams:
        raise BadRequest("a request for a vector generates nothing")


def _check_embeddings(embeddings: PromptEmbeddings, prompt_tokens: int, hidden_size: int) -> None:
    places = embeddings.token_indices
    if not places or not all(before < place for before, place in pairwise((-1, *places, prompt_tokens))):
        raise BadRequest("token indices of embeddings must be ascending and within the prompt", param="token_indices")
    if len(embeddings.values) != len(places) * hidden_size * 4:
        raise BadRequest(f"each embedding must have {hidden_size} numbers", param="embeddings")
    if not np.isfinite(np.frombuffer(embeddings.values, np.float32)).all():
        raise BadRequest("embeddings must be finite numbers", param="embeddings")


def _check_beams(request: EngineRequest, beams: BeamParams) -> None:
    excluded = beams.excludes(request.sampling)
    if excluded:
        raise BadRequest(f"a {beams.kind} beam search cannot be combined with {excluded[0]}", param=excluded[0])
    if fault := beams.fault():
        raise BadRequest(fault[1], param=fault[0])
    if len(request.seeds) > beams.num_beams:
        raise BadRequest("a beam search cannot have more results than beams", param="num_beams")
    if len(set(request.generated)) > 1 or request.max_tokens <= len(request.generated[0] if request.generated else ()):
        raise BadRequest("a beam search continues one text, by at least one token")
