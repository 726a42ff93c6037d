"""Memory plan of a model on this machine, made before anything is loaded: whether it fits, and its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import psutil
from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models import cgroups
from dragoman.models.calibration_plan import calibrated_formats
from dragoman.models.description import ModelDescription
from dragoman.models.kv_groups import (
    BLOCK_TOKENS,
    KVGroup,
    bytes_per_token,
    divide_blocks,
    group_layers,
    image_rows,
    longest_within,
    requested_kv_bytes,
    sequence_bytes,
)
from dragoman.models.layout import mapped_bytes, plan_layout
from dragoman.models.parameter import Parameter
from dragoman.models.parameters import LAYER_TABLE, is_of_images, uses
from dragoman.models.settings import PRECISIONS, KVPrecision, ModelSettings, Precision, RequestedPrecision
from dragoman.models.spec import DecoderSpec
from dragoman.models.step_buffers import activation_bytes
from dragoman.models.tensors import Format
from dragoman.models.vision.cost import least_step_tokens
from dragoman.models.vision.geometry import buffer_bytes
from dragoman.models.vision.parameters import is_vision

MEASURED_BYTES = 512 << 20
"""Memory that has to be available to measure its speed: 256 MiB are read, and there is room for the process."""

_SHORTEST_CONTEXT = 1024  # a context is never reduced below this unasked; the model is refused instead
_MOST_KV_BYTES = 8 << 30  # default limit: more would keep more prefixes, not serve more requests
_MOST_STATE_BYTES = 4 << 30  # default limit
_MOST_RESERVE_BYTES = 1 << 30
_MOST_EMPTY_BLOCKS = 1 << 17  # default limit of blocks without keys and values, which name prefixes and take no memory
_SPARE_STATES = 12 + 64  # by default, in addition to running sequences: rows of drafts, and snapshots of prefixes


class ModelTooLarge(ModelError):
    """A model does not fit in the memory that there is now."""


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a model takes, in bytes, and the limits that follow.

    Attributes:
        formats: of single matrices, in place of the precision's.
        available_bytes: what this process may still take. reserve_bytes: of these, what is left to the rest of the
            machine. weight_bytes: packed. mapped_bytes: of these, those that stay
            in the packed cache's file, since steps read single rows of them. loading_bytes: in addition to what is
            in memory while serving, only while weights are packed. table_bytes: rotary tables. activation_bytes:
            buffers of one step, of the vision tower, and what is kept of images.
        groups: the layers that share blocks, and their blocks: that which keeps most positions is first, own blocks are
            last.
            encoder_tokens: maximum of an encoder's input, which is kept in addition; 0: there is no encoder.
            image_rows: the same for positions of an image that layers look at.
        state_slots: states of recurrent layers: of running sequences, drafts and snapshots of prefixes; 0: the model
            has no such layers. bytes_per_state: of one. first_adapters_bytes: of adapters that are loaded at the start.
            adapter_room_bytes: maximum of all adapters: what is left, or the limit that was set.
        bytes_per_decoded_token: weights read to decode one token alone; memory bandwidth over this is the limit of
            tokens per second. bytes_before_logits: of these, those read by a step that needs no logits. encoder_bytes:
            weights read to encode an input. vision_bytes: of the vision tower. refusal: why the model does not fit;
            None when it does.
    """

    precision: Precision
    formats: Mapping[str, Format]
    kv_precision: KVPrecision
    available_bytes: int
    reserve_bytes: int
    weight_bytes: int
    mapped_bytes: int
    loading_bytes: int
    table_bytes: int
    activation_bytes: int
    groups: tuple[KVGroup, ...]
    context_tokens: int
    encoder_tokens: int
    image_rows: int
    state_slots: int
    bytes_per_state: int
    first_adapters_bytes: int
    adapter_room_bytes: int
    bytes_per_decoded_token: int
    bytes_before_logits: int
    encoder_bytes: int
    vision_bytes: int
    refusal: str | None

    @property
    def resident_bytes(self) -> int:
        """Weights in memory while serving."""
        return self.weight_bytes - self.mapped_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Memory of the keys and values of one token in all layers, without own blocks."""
        return bytes_per_token(self.groups)

    @property
    def kv_blocks(self) -> int:
        """Blocks of the first group."""
        return self.groups[0].blocks

    @property
    def kv_bytes(self) -> int:
        """Memory of all keys and values."""
        return sum(group.nbytes for group in self.groups)

    @property
    def sequence_kv_bytes(self) -> int:
        """Memory of the keys and values of one sequence of the whole context."""
        return sequence_bytes(self.groups) + self._encoder_blocks * self.groups[0].bytes_per_block

    def _kept_tokens(self, group: KVGroup) -> int:
        """Return the positions of one sequence of the whole context that a group keeps: fewer than the context where
        all its layers have a window."""
        tokens = (group.sequence_blocks + self._encoder_blocks) * BLOCK_TOKENS
        return tokens if self._encoder_blocks else min(self.context_tokens, tokens)

    @property
    def _encoder_blocks(self) -> int:
        return math.ceil((self.encoder_tokens + self.image_rows) / BLOCK_TOKENS)

    @property
    def total_bytes(self) -> int:
        """All memory in use while serving."""
        working = self.table_bytes + self.activation_bytes
        return self.resident_bytes + working + self.kv_bytes + self.state_bytes + self.first_adapters_bytes

    @property
    def left_bytes(self) -> int:
        """Memory that the model leaves, beside the reserve."""
        return max(0, self.available_bytes - self.reserve_bytes - self.total_bytes)

    @property
    def state_bytes(self) -> int:
        """Memory of all states of recurrent layers."""
        return self.state_slots * self.bytes_per_state

    @property
    def concurrency(self) -> float:
        """Number of sequences of the whole context that fit at once."""
        return min(group.blocks * BLOCK_TOKENS / self._kept_tokens(group) for group in self.groups if not group.own)

    def tokens_per_second(self, bandwidth_bytes_per_s: float) -> float:
        """Return the expected speed of one stream when it is limited by reading the weights."""
        return bandwidth_bytes_per_s / self.bytes_per_decoded_token

    def require_fit(self) -> None:
        """Raise ModelTooLarge with the numbers when the model does not fit."""
        if self.refusal is not None:
            raise ModelTooLarge(self.refusal)


def plan(
    description: ModelDescription,
    settings: ModelSettings | None = None,
    *,
    available_bytes: int | None = None,
    first_adapters_bytes: int = 0,
    is_restart: bool = False,
) -> MemoryPlan:
    """Plan a model's memory. Raises ModelError on impossible settings; ``refusal`` says why a model does not fit.

    ``first_adapters_bytes``: of adapters that are loaded at the start. They get what keys and values leave.
    ``is_restart``: the model was in memory just before. It may take what a first start leaves free, for the server has
    grown since then.
    """
    spec = description.spec
    settings = with_whole_images(spec, settings or ModelSettings())
    precision = description.precision(settings.precision)
    kv_precision = _kv_precision(spec, settings, precision)
    available = available_memory() if available_bytes is None else available_bytes
    formats = chosen_formats(description, settings.precision) | calibrated_formats(description, settings)
    layout = plan_layout(spec, precision, formats)
    requested = _requested_context(spec, settings)
    table = table_bytes_per_position(spec)
    activations = activation_bytes(spec, settings)
    activations += buffer_bytes(spec.vision) + settings.image_cache_bytes if spec.vision else 0
    loading = max(_loading_bytes(entry.parameter, entry.nbytes, description.stored_dtype) for entry in layout.entries)

    mapped = mapped_bytes(layout, settings)
    reserve = 0 if is_restart else reserve_bytes(available)
    usable = available - reserve - (layout.nbytes - mapped)
    room = usable - max(activations, loading)
    state = state_bytes(spec)
    states = _state_slots(settings, state, room)
    room -= states * state
    context = _fitting_context(spec, requested, room, table, settings, kv_precision)
    room -= context * table
    groups = group_layers(spec, context, settings.max_tokens, kv_precision)
    in_addition = _encoder_tokens(spec, context) + image_rows(spec)
    groups = _with_blocks(settings, groups, context, in_addition, room)
    found = MemoryPlan(
        precision=precision,
        formats=formats,
        kv_precision=kv_precision,
        available_bytes=available,
        reserve_bytes=reserve,
        weight_bytes=layout.nbytes,
        mapped_bytes=mapped,
        loading_bytes=loading + mapped,
        table_bytes=context * table,
        activation_bytes=activations,
        groups=groups,
        context_tokens=context,
        encoder_tokens=_encoder_tokens(spec, context),
        image_rows=image_rows(spec),
        state_slots=states,
        bytes_per_state=state,
        first_adapters_bytes=first_adapters_bytes,
        adapter_room_bytes=_adapter_room(settings, room - sum(group.nbytes for group in groups)),
        bytes_per_decoded_token=int(sum(entry.nbytes * _share_read(entry.parameter, spec) for entry in layout.entries)),
        bytes_before_logits=int(
            sum(
                entry.nbytes * _share_read(entry.parameter, spec)
                for entry in layout.entries
                if not _is_for_logits(entry.parameter, spec)
            )
        ),
        encoder_bytes=sum(entry.nbytes for entry in layout.entries if _is_of_encoder(entry.parameter)),
        vision_bytes=sum(entry.nbytes for entry in layout.entries if is_vision(entry.parameter)),
        refusal=None,
    )
    if found.concurrency < 1 or found.kv_bytes > room or found.loading_bytes > usable:
        return replace(found, refusal=_refusal(found, description.source.name))
    if first_adapters_bytes > found.adapter_room_bytes:
        return replace(found, refusal=_adapter_refusal(found, description.source.name))
    return found


def with_whole_images(spec: DecoderSpec, settings: ModelSettings) -> ModelSettings:
    """Return the settings with steps that have room for an image whose tokens see each other both ways."""
    least = least_step_tokens(spec.vision, settings.max_sequences)
    return replace(settings, max_tokens=max(settings.max_tokens, least))


def chosen_formats(description: ModelDescription, requested: RequestedPrecision) -> dict[str, Format]:
    """Return the formats of already quantized matrices: their own, or groups of int8, which hold all integers of files,
    or, of a type of ggml that has such groups, int4 with minimums. MXFP4 stays at int8 too: its products have the bits
    that its numbers have in int8, of twice the bytes."""
    own = ("int8", "mxfp4") if requested == "int8" else (requested,)
    kept = {name: form for name, form in description.formats.items() if requested == "auto" or form.precision in own}
    if requested == "int8":
        smaller = ((name, form) for name, form in description.formats.items() if form.precision not in PRECISIONS[:3])
        kept |= {name: Format("int8", order=form.order) for name, form in smaller if name not in kept}
    if requested == "int4":
        q4_k = (name for name, form in description.formats.items() if form.precision == "q4_k")
        kept |= {name: Format("int4", minimum=True) for name in q4_k}
    return kept


def state_bytes(spec: DecoderSpec) -> int:
    """Return the bytes of one sequence's state: float32, each part in whole cache lines. 0: no layer has a state."""
    return sum(-(-size // 16) * 64 for size in spec.state_parts)


def reserve_bytes(available: int) -> int:
    """Return how much of the memory stays free."""
    return min(available // 10, _MOST_RESERVE_BYTES)


def available_memory() -> int:
    """Return the bytes this process may still take: what the system gives without swapping, within its cgroups'
    limits."""
    return min([int(psutil.virtual_memory().available), *cgroups.memory_left()])


def _kv_precision(spec: DecoderSpec, settings: ModelSettings, precision: Precision) -> KVPrecision:
    if settings.kv_precision == "int4" and spec.latent is not None:
        raise ModelError("latent attention cannot keep its keys in int4; choose a --kv-precision of int8 or bfloat16")
    if settings.kv_precision != "auto":
        return settings.kv_precision
    return "float32" if precision == "float32" else "bfloat16"


def _requested_context(spec: DecoderSpec, settings: ModelSettings) -> int:
    if settings.max_context is None:
        return spec.context
    if not 0 < settings.max_context <= spec.context:
        raise ModelError(
            f"a context of {settings.max_context} was requested; this model allows 1 to {spec.context} tokens"
        )
    return settings.max_context


def _fitting_context(
    spec: DecoderSpec, requested: int, room: int, table: int, settings: ModelSettings, kv_precision: KVPrecision
) -> int:
    """Return the requested context, or, without a request, the longest that fits."""
    if settings.max_context is not None:
        return requested
    groups = group_layers(spec, requested, settings.max_tokens, kv_precision)
    per_token = bytes_per_token(groups)
    if not per_token + table:  # only the blocks that name prefixes have a limit
        if settings.kv_bytes is not None or settings.kv_tokens is None:
            return requested
        return min(requested, max(math.ceil(settings.kv_tokens / BLOCK_TOKENS) * BLOCK_TOKENS, _SHORTEST_CONTEXT))
    kv_bytes = requested_kv_bytes(settings, groups)
    most = max(room, 0) if kv_bytes is None else kv_bytes
    one = sequence_bytes(groups)
    if one < requested * per_token and one <= min(room - requested * table, most):
        return requested  # it fits because of the windows
    if len(groups) > 1:
        fits = longest_within(spec, settings.max_tokens, kv_precision, table=table, most=room, most_kv=most)
    else:
        per_position = per_token if spec.encoder is None else 2 * per_token  # an input of the same length is kept too
        images = image_rows(spec) * per_token
        fits = max(room - images, 0) // (per_position + table)
        if kv_bytes is not None:
            fits = min(fits, max(kv_bytes - images, 0) // per_position)
    fits = fits // BLOCK_TOKENS * BLOCK_TOKENS
    return requested if fits >= requested else max(fits, min(requested, _SHORTEST_CONTEXT))


def _encoder_tokens(spec: DecoderSpec, context: int) -> int:
    """Return the maximum number of tokens of an input: no more than of an output, where anything sets a limit."""
    return 0 if spec.encoder is None else min(spec.encoder.context, context)


def _with_blocks(
    settings: ModelSettings, groups: tuple[KVGroup, ...], context: int, encoder_tokens: int, room: int
) -> tuple[KVGroup, ...]:
    """Return the groups with their blocks. Where no layer has attention they only name prefixes: by default as many as
    all sequences need, within a limit."""
    encoder_blocks = math.ceil(encoder_tokens / BLOCK_TOKENS)
    one = sequence_bytes(groups) + encoder_blocks * groups[0].bytes_per_block
    if one:
        nbytes = _kv_bytes(settings, context, one, groups, room)
        sizes = {"step_tokens": settings.max_tokens, "max_sequences": settings.max_sequences}
        return divide_blocks(groups, nbytes, context=context, **sizes)
    needed = groups[0].sequence_blocks
    if settings.kv_bytes is not None or settings.kv_tokens is None:
        return (replace(groups[0], blocks=max(needed, min(settings.max_sequences * needed, _MOST_EMPTY_BLOCKS))),)
    blocks = math.ceil(settings.kv_tokens / BLOCK_TOKENS)
    if blocks < needed:
        raise ModelError(f"blocks for {settings.kv_tokens} tokens cannot hold one context of {context} tokens")
    return (replace(groups[0], blocks=blocks),)


def _kv_bytes(settings: ModelSettings, context: int, one: int, groups: tuple[KVGroup, ...], room: int) -> int:
    """Return the requested bytes; by default enough for all sequences, at most half the room and 8 GiB, at least one
    context, which takes ``one`` bytes."""
    kv_bytes = requested_kv_bytes(settings, groups)
    if kv_bytes is None:
        return max(min(settings.max_sequences * one, room // 2, _MOST_KV_BYTES), min(one, max(room, 0)))
    if kv_bytes < one:
        raise ModelError(
            f"{_gib(kv_bytes)} for keys and values cannot hold one context of {context} tokens, which takes {_gib(one)}"
        )
    return kv_bytes


def _state_slots(settings: ModelSettings, state: int, room: int) -> int:
    """Return the number of states: as many as the requested bytes hold; by default enough for all sequences, drafts
    and some snapshots, at most a quarter of the room and 4 GiB. At least one."""
    if not state:
        return 0
    if settings.state_bytes is not None:
        if settings.state_bytes < state:
            raise ModelError(f"{_gib(settings.state_bytes)} for states cannot hold one, which takes {_gib(state)}")
        return settings.state_bytes // state
    return max(1, min(settings.max_sequences + _SPARE_STATES, min(room // 4, _MOST_STATE_BYTES) // state))


def table_bytes_per_position(spec: DecoderSpec) -> int:
    return sum(4 * rope.dim for rope in set(spec.ropes) if rope is not None)  # a cosine and a sine for each pair


def _loading_bytes(parameter: Parameter, packed: int, stored_dtype: str) -> int:
    """Return the bytes of the packed matrix before it is copied, and of its stored parts and their stack."""
    stacked = math.prod(parameter.shape) * (4 if stored_dtype == "float32" else 2)
    return packed + (2 * stacked if len(parameter.parts) > 1 else 0)


def _share_read(parameter: Parameter, spec: DecoderSpec) -> float:
    """Return the share of a parameter that is read for each token.

    Of tables only rows, unless the table is also the output projection; of experts the active ones; of an encoder and
    of what is for images nothing: they run once for each input, or not at all.
    """
    if _is_of_encoder(parameter) or is_of_images(parameter, spec):
        return 0.0
    if parameter.expert is not None and spec.experts is not None:
        return spec.experts.active / spec.experts.count
    if parameter.module == "embedding":
        return float(spec.tied and spec.causal)
    return float(parameter.module not in ("positions", "types", LAYER_TABLE)) * uses(parameter, spec)


def _is_of_encoder(parameter: Parameter) -> bool:
    """Return whether a parameter is read only when an input is encoded."""
    return parameter.module.startswith("encoder_") or parameter.module == "cross_key_value"


def _is_for_logits(parameter: Parameter, spec: DecoderSpec) -> bool:
    """Return whether a parameter is read only for rows whose logits are needed: all after the last keys and values, and
    after the last attention."""
    if parameter.layer is not None and spec.encoder is None and parameter.layer >= spec.written_layers:
        return True
    if parameter.layer is None:
        return parameter.module in ("embedding", "head", "final_norm", "embedding_out", "part_out")
    before = ["attention_norm", "qkv", "query", "query_key", "query_norm", "key_norm", "relative_bias"]
    if spec.encoder is not None:
        before += ["attention_out", "attention_out_norm", "cross_norm", "cross_query"]
    before += ["latent_query_in", "latent_query_norm", "latent_query", "latent_in", "latent_norm", "latent_key"]
    before.append("latent_value")
    apart = parameter.module.startswith(("mixer_", "image_", "block_")) and parameter.module != "mixer_out"
    return parameter.layer == spec.layers - 1 and not (apart or is_vision(parameter)) and parameter.module not in before


def _adapter_room(settings: ModelSettings, left: int) -> int:
    most = left if settings.adapter_bytes is None else min(left, settings.adapter_bytes)
    return max(most, 0) if settings.max_adapters else 0


def _refusal(found: MemoryPlan, name: str) -> str:
    kv = max(found.sequence_kv_bytes, found.kv_bytes)
    working = found.table_bytes + max(found.activation_bytes, found.loading_bytes)
    states = f"states {_gib(found.state_bytes)} for {found.state_slots}, " if found.state_slots else ""
    return (
        f"{name} at {found.precision} does not fit in memory: it needs "
        f"{_gib(found.resident_bytes + working + kv + found.state_bytes)} "
        f"(weights {_gib(found.resident_bytes)}, keys and values {_gib(kv)} for {found.context_tokens} tokens, "
        f"{states}working memory {_gib(working)}), and {_gib(found.available_bytes)} is available, of which "
        f"{_gib(found.reserve_bytes)} stays free. A lower precision or a smaller --max-context may fit"
    )


def _adapter_refusal(found: MemoryPlan, name: str) -> str:
    return (
        f"{name} at {found.precision} fits in memory, but its adapters do not: they need "
        f"{_gib(found.first_adapters_bytes)}, and {_gib(found.adapter_room_bytes)} are left for them after keys and "
        f"values of {_gib(found.kv_bytes)}. A smaller --kv-bytes or a larger --adapter-bytes may fit"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**27 else f"{size / 2**20:.1f} MiB"
