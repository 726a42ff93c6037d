"""Choice and limits of what drafts for a model: another model, the model's own head or an EAGLE-3 one, and what memory
it gets."""

from __future__ import annotations

import msgspec

from dragoman.core.errors import ModelError
from dragoman.models.description import ModelDescription, describe
from dragoman.models.eagle import OPTION as EAGLE_OPTION
from dragoman.models.eagle import EagleChoice, describe_eagle, find_eagle
from dragoman.models.families import FAMILIES
from dragoman.models.head_spec import HeadSpec, head_spec
from dragoman.models.hub import DownloadWatcher
from dragoman.models.kv_groups import BLOCK_TOKENS, layer_kv_bytes
from dragoman.models.layout import plan_layout
from dragoman.models.memory import MemoryPlan, plan, table_bytes_per_position
from dragoman.models.settings import KVPrecision, ModelSettings, Precision, RequestedPrecision
from dragoman.models.source import find_weights
from dragoman.models.spec import DecoderSpec
from dragoman.models.step_buffers import activation_bytes

CONTEXT = 8192
"""Tokens of the longest sequences that are drafted for, unless another number is set."""
WHOLE_CONTEXTS = 2
"""Sequences of that length whose keys and values the draft model keeps."""
HEAD_KV_PRECISION: KVPrecision = "int8"
"""Of a head's keys and values."""


def plan_draft(
    source: str,
    settings: ModelSettings,
    precision: RequestedPrecision = "auto",
    context: int | None = None,
    watcher: DownloadWatcher | None = None,
) -> tuple[ModelDescription, ModelSettings, MemoryPlan]:
    """Return a draft model's description, settings and memory. Raises ModelError for one that cannot draft, or is not
    there.

    ``settings``: of the served model, of whose folders, token and limits of a step the draft model has the same.
    ``context``: tokens of the longest sequences that it drafts for.
    """
    try:
        described = describe(source, token=settings.token, mmproj="none", watcher=watcher)
    except ModelError as error:
        raise ModelError(f"--draft-model {source}: {error.message}") from None
    refused = refusal(described)
    if refused is not None:
        raise ModelError(f"--draft-model {described.source.name}: {refused}")
    tokens = min(described.spec.context, context or settings.max_context or CONTEXT)
    draft = ModelSettings(
        mmproj="none",
        token=settings.token,
        precision=precision,
        kv_precision="int8",
        max_context=tokens,
        kv_tokens=WHOLE_CONTEXTS * tokens,
        max_tokens=settings.max_tokens,
        max_sequences=settings.max_sequences,
        max_logit_rows=settings.max_logit_rows,
        max_adapters=0,
        image_cache_bytes=0,
        weights_memory=settings.weights_memory,
        cache_folder=settings.cache_folder,
        cache_bytes=settings.cache_bytes,
    )
    planned = plan(described, draft)
    planned.require_fit()
    return described, draft, planned


def refusal(described: ModelDescription) -> str | None:
    """Return why a model cannot draft; None where it can."""
    spec = described.spec
    if spec.encoder is not None:
        return "a model with an encoder cannot draft for others"
    if not spec.causal:
        return "a model that makes no text cannot draft"
    if spec.state_parts:
        return "a model with recurrent layers cannot take back what it guessed; choose one with attention alone"
    return None


class HeadPlan(msgspec.Struct, frozen=True):
    """What a head takes: tokens of the longest sequences that it drafts for, and bytes."""

    context: int
    nbytes: int


def plan_head(
    described: ModelDescription, settings: ModelSettings, context: int | None = None, *, draft_model: str | None = None
) -> HeadPlan:
    """Return the memory of a model's head. Raises ModelError for a family whose heads are not known, and beside a draft
    model.

    ``context``: tokens of the longest sequences that it drafts for. It keeps keys and values of twice as many, and
    hidden states that it has not read yet of as many.
    """
    if draft_model is not None:
        raise ModelError("--draft-heads and --draft-model exclude each other: one of them guesses what no source does")
    spec = describe_head(described.spec, described.source.name)
    tokens = _context(described.spec, settings, context)
    inputs = 4 * spec.width  # token, hidden state, and both joined
    return _head_plan(spec, described.precision(settings.precision), settings, tokens, inputs)


def plan_eagle(
    described: ModelDescription,
    choice: EagleChoice,
    settings: ModelSettings,
    context: int | None = None,
    *,
    others: bool = False,
    watcher: DownloadWatcher | None = None,
) -> HeadPlan:
    """Return the memory of an EAGLE-3 head for a model. Raises ModelError for one that does not fit the model, or is
    not there, and where something else is to guess too.

    ``context``: as of ``plan_head``. ``others``: a draft model or the model's own head is asked for. With a
    ``watcher``, which is told of a download, its weights are downloaded too.
    """
    if others:
        raise ModelError(
            f"{EAGLE_OPTION}, --draft-heads and --draft-model exclude each other: one of them guesses what no source "
            "does"
        )
    source = find_eagle(choice, settings.token, watcher)
    spec = describe_eagle(source, described.spec, described.source.name)
    if watcher is not None and source.repository is not None:
        source = find_weights(source, token=settings.token, watcher=watcher)
        spec = describe_eagle(source, described.spec, described.source.name)
    tokens = min(spec.context, _context(described.spec, settings, context))
    precision = described.precision(settings.precision) if choice.precision == "auto" else choice.precision
    # What is read of the model, and what is made of it; token and hidden state, and both joined.
    inputs = len(spec.aux_layers) * spec.target_width + (1 + 4) * spec.width
    return _head_plan(spec, precision, settings, tokens, inputs)


def _head_plan(spec: DecoderSpec, precision: Precision, settings: ModelSettings, tokens: int, inputs: int) -> HeadPlan:
    """Return the memory of a head; ``inputs``: numbers of a row in what makes its input."""
    layout = plan_layout(spec, precision)
    nbytes = layout.nbytes + head_blocks(tokens) * BLOCK_TOKENS * layer_kv_bytes(spec, 0, HEAD_KV_PRECISION)
    nbytes += tokens * (table_bytes_per_position(spec) + 4 * spec.width)
    return HeadPlan(tokens, nbytes + activation_bytes(spec, settings) + inputs * settings.max_tokens * 4)


def describe_head(spec: DecoderSpec, name: str) -> HeadSpec:
    """Return a decoder's head. ``name``: of the model. Raises ModelError for a family whose heads are not known."""
    names = FAMILIES[spec.architecture].head
    if names is None or not spec.attention_layers:
        known = ", ".join(sorted(each for each, family in FAMILIES.items() if family.head is not None))
        raise ModelError(f"--draft-heads: {name} is {spec.architecture}, whose heads are not known; known: {known}")
    return head_spec(spec, feeds_normed=names.feeds_normed)


def _context(spec: DecoderSpec, settings: ModelSettings, context: int | None) -> int:
    return min(spec.context, context or settings.max_context or CONTEXT)


def head_blocks(context: int) -> int:
    """Return the blocks of a head that drafts for sequences of so many tokens."""
    return -(-WHOLE_CONTEXTS * context // BLOCK_TOKENS)
