"""The reasoning of a model in a request's terms: whether its prompt has opened the block, its limit, and the
constraint and the stop strings after it."""

from __future__ import annotations

from copy import copy

from dragoman.core.constraint import AfterReasoning, Constraint
from dragoman.core.errors import UnsupportedFeature
from dragoman.core.request import ChatPrompt, GenerationRequest, ReasoningLimit
from dragoman.core.serving import ReasoningBlocks
from dragoman.serving.model import ServedModel
from dragoman.serving.worker_pool import WorkerPools
from dragoman.text import StopMatcher
from dragoman.text.call_grammar import final_lead
from dragoman.text.reasoning import FrameParser, ReasoningMarks, ReasoningParser
from dragoman.text.stop import AnswerStopMatcher, Matcher
from dragoman.text.tool_calls import CALL_FORMATS


def reasoning_begun(model: ServedModel, request: GenerationRequest, token_ids: tuple[int, ...]) -> bool:
    """Return whether the prompt, here in tokens, ends with the mark that opens a reasoning block."""
    blocks = model.card.reasoning
    if blocks is None or not isinstance(request.prompt, ChatPrompt):
        return False
    # Far more tokens than the mark and the line end after it have.
    end = model.tokenizer.decode(token_ids[-32:], skip_special_tokens=False)
    return end.rstrip().endswith(blocks.opening)


def stop_matcher(
    model: ServedModel, request: GenerationRequest, token_ids: tuple[int, ...], stops: StopMatcher
) -> Matcher:
    """Return the matcher of one sequence's stop strings: in all of its text, or in the answer only.

    ``token_ids``: the prompt.
    """
    blocks, calls = model.card.reasoning, model.card.tool_calls
    frame = None if calls is None else CALL_FORMATS[calls.format].frame
    if frame is not None and isinstance(request.prompt, ChatPrompt):
        return AnswerStopMatcher(stops, FrameParser(frame, begun=reasoning_begun(model, request, token_ids)))
    if not request.ending.stop_in_answer:
        return copy(stops)
    reasoning = None
    if blocks is not None:
        marks = ReasoningMarks(blocks.opening, blocks.closing)
        reasoning = ReasoningParser(marks, begun=reasoning_begun(model, request, token_ids))
    if calls is None or not isinstance(request.prompt, ChatPrompt) or not request.prompt.tools:
        return AnswerStopMatcher(stops, reasoning)
    format = CALL_FORMATS[calls.format]
    return AnswerStopMatcher(stops, reasoning, format.marks[0], format.leads)


def constraint_of(
    model: ServedModel, request: GenerationRequest, token_ids: tuple[int, ...]
) -> Constraint | AfterReasoning | None:
    """Return the constraint of the whole text: the request's, after a reasoning block where one may precede it."""
    blocks, constraint = model.card.reasoning, request.constraint
    if blocks is None or constraint is None or not request.constraint_behind_reasoning:
        return constraint
    calls = model.card.tool_calls
    frame = None if calls is None else CALL_FORMATS[calls.format].frame
    lead: tuple[str | int, ...] = ()
    if calls is not None and frame is not None and not _has_tools(request):
        lead = final_lead(calls)
    return AfterReasoning(
        answer=constraint,
        opening=blocks.opening,
        closing=blocks.closing,
        opening_parts=blocks.opening_parts,
        closing_id=blocks.special_ids.get(blocks.closing),
        lead=lead,
        lead_alone=lead[frame.written :] if frame is not None else (),
        begun=reasoning_begun(model, request, token_ids),
    )


def _has_tools(request: GenerationRequest) -> bool:
    return isinstance(request.prompt, ChatPrompt) and bool(request.prompt.tools)


async def reasoning_limit(
    model: ServedModel, request: GenerationRequest, token_ids: tuple[int, ...], pools: WorkerPools
) -> ReasoningLimit | None:
    """Return the request's ``reasoning_budget`` in tokens of the model; None without one, and where there is nothing to
    count.

    Raises UnsupportedFeature where the model has no token for the mark that ends the block.
    """
    blocks = model.card.reasoning
    if request.reasoning_budget is None or blocks is None:
        return None
    closing_ids = _closing_ids(model, blocks)
    return ReasoningLimit(
        tokens=request.reasoning_budget,
        opening=blocks.opening.lstrip(),
        closing=blocks.closing,
        closing_ids=closing_ids,
        # The first time this reads the whole vocabulary.
        texts=await pools.text.run(lambda: model.mark_texts),
        begun=reasoning_begun(model, request, token_ids),
    )


def _closing_ids(model: ServedModel, blocks: ReasoningBlocks) -> tuple[int, ...]:
    whole = model.tokenizer.token_id(blocks.closing)
    ids = model.tokenizer.encode_inside(blocks.closing) if whole is None else (whole,)
    if not ids or max(ids) >= model.vocab_size:
        message = f"the model '{model.card.name}' has no token for '{blocks.closing}'."
        raise UnsupportedFeature(f"'reasoning_budget' is not supported: {message}", param="reasoning_budget")
    return ids
