"""Layout of packed weights: precision and position of each parameter. Pure arithmetic on the spec."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from dragoman.models.parameter import Parameter
from dragoman.models.parameters import LAYER_TABLE, parameters
from dragoman.models.settings import ModelSettings, Precision
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import Format
from dragoman.models.vision.parameters import is_vision

_ALIGNMENT = 64  # a cache line: the kernels read whole lines
# A packed matrix is a row of blocks of 32 outputs, each a row of groups of 32 inputs. A quantized group has float16
# scales for its outputs, or shares them with three neighbours. Of ggml's types four or eight groups are a chunk.
_BLOCK, _GROUP, _WEIGHT_GROUPS = 32, 32, 4
_GROUP_BYTES: dict[str, int] = {
    "float32": 4 * _BLOCK * _GROUP,
    "bfloat16": 2 * _BLOCK * _GROUP,
    "int8": _BLOCK * _GROUP + 2 * _BLOCK,
    "int4": _BLOCK * _GROUP // 2 + 2 * _BLOCK,
}


class _Chunk(msgspec.Struct, frozen=True):
    """Bits of a number in the chunks of a type of ggml, and what is stored beside the numbers of 32 outputs.

    Attributes:
        groups: in a whole chunk.
        per_group: bytes of the scales and minimums of a group.
        head: bytes of their factors.
    """

    bits: int
    groups: int
    per_group: int
    head: int = 0

    def nbytes(self, groups: int) -> int:
        """Return the bytes of one chunk of so many groups: what scales it fills whole cache lines."""
        return groups * self.bits * _BLOCK * _GROUP // 8 + _aligned(self.head + groups * self.per_group)


_CHUNKS: dict[str, _Chunk] = {
    "mxfp4": _Chunk(4, 4, _BLOCK),
    "iq4_nl": _Chunk(4, 4, 2 * _BLOCK),
    "iq4_xs": _Chunk(4, 8, _BLOCK, 2 * _BLOCK),
    "q3_k": _Chunk(3, 8, 2 * _BLOCK, 2 * _BLOCK),
    "q4_k": _Chunk(4, 8, 2 * _BLOCK, 4 * _BLOCK),
    "q5_k": _Chunk(5, 8, 2 * _BLOCK, 4 * _BLOCK),
    "q6_k": _Chunk(6, 8, 2 * _BLOCK, 2 * _BLOCK),
}

_STREAM_FACTORS = ("part_router", "part_prediction", "part_correction")
_RECURRENCE_GATES = ("mixer_gates", "mixer_decays", "mixer_input_gate", "mixer_decay_gate")
LEAST_LAYERS = 6
"""Layers from which on the first and the last have a finer matrix in four bits."""
EXACT = frozenset(("router", *_STREAM_FACTORS, *_RECURRENCE_GATES))
"""Modules whose matrices are float32 at every precision."""


SMALLEST_CACHED_BYTES = 64 << 20
"""Smaller models are packed at each start, and not cached: that takes less than a tenth of a second."""


class Entry(msgspec.Struct, frozen=True):
    """Position of one parameter among the packed bytes. ``form`` is None for float32 vectors and tables."""

    parameter: Parameter
    form: Format | None
    offset: int
    nbytes: int


class Layout(msgspec.Struct, frozen=True):
    """Positions of all parameters of a decoder at a precision: the same on every machine and instruction set."""

    entries: tuple[Entry, ...]
    nbytes: int


def matrix_precision(parameter: Parameter, precision: Precision) -> Precision:
    """Return the precision of one matrix in a model of ``precision``.

    Routers are always float32: they are small, and the choice of a wrong expert is a large error. So are the gates of
    recurrences, whose errors add up along a text, and the factors between the parts of a stream.
    The embedding and output tables stay at int8 in an int4 model: their errors reach every logit directly, and the
    embedding of a rare token has no other tokens to average them out. So does a vision tower: all tokens see its
    embeddings.
    """
    if parameter.module in EXACT:
        return "float32"
    finer = parameter.module in ("embedding", "head") or is_vision(parameter)
    return "int8" if precision == "int4" and finer else precision


def _own_format(parameter: Parameter, precision: Precision, layers: int) -> Format:
    """Return the format for weights that are quantized here. Those of a file keep their own.

    Of int8 128 share a scale. In four bits they are numbers of a table, IQ4_NL's, which take the same time and space
    as evenly spaced ones and err less; where rows are not whole groups they are spaced evenly. The second matrix of a
    feed-forward network stays at int8 in the first layer and in the last: what they lose costs most, and of six layers
    or more they add less than a twentieth to the weights (docs/performance.md has the figures).
    """
    chosen = matrix_precision(parameter, precision)
    is_outer = parameter.module == "feed_forward_out" and parameter.layer in (0, layers - 1)
    if chosen == "int4" and is_outer and layers >= LEAST_LAYERS:
        chosen = "int8"
    if chosen == "int4" and parameter.shape[1] % _GROUP == 0:
        return Format("iq4_nl")
    return Format(chosen, wide=chosen == "int8")


def packed_bytes(outputs: int, inputs: int, form: Format) -> int:
    """Return the size of a packed matrix ``[outputs, inputs]``."""
    blocks, groups = -(-outputs // _BLOCK), -(-inputs // _GROUP)
    if (chunk := _CHUNKS.get(form.precision)) is not None:
        whole, rest = divmod(groups, chunk.groups)
        return blocks * (whole * chunk.nbytes(chunk.groups) + (chunk.nbytes(rest) if rest else 0))
    order = 4 * inputs * (form.order != 0)
    if form.wide:
        return blocks * (groups * _BLOCK * _GROUP + 2 * _BLOCK * -(-groups // _WEIGHT_GROUPS)) + order
    return blocks * groups * (_GROUP_BYTES[form.precision] + 2 * _BLOCK * form.minimum) + order


def plan_layout(spec: DecoderSpec, precision: Precision, formats: Mapping[str, Format] | None = None) -> Layout:
    """Place all parameters one after the other, each aligned to a cache line.

    ``formats``: those of single matrices, by name, in place of the model's precision.
    """
    entries, offset = [], 0
    for parameter in parameters(spec):
        if parameter.matrix:
            form = _own_format(parameter, precision, spec.layers)
            if parameter.module not in EXACT:
                form = (formats or {}).get(parameter.name, form)
            outputs, inputs = parameter.shape
            entries.append(Entry(parameter, form, offset, packed_bytes(outputs, inputs, form)))
        else:
            entries.append(Entry(parameter, None, offset, 4 * math.prod(parameter.shape)))
        offset += _aligned(entries[-1].nbytes)
    return Layout(tuple(entries), offset)


def resident_bytes(layout: Layout) -> int:
    """Return the bytes of what steps read as a whole. A table of layers' inputs, of which they read the rows of their
    tokens, is the last entry, and may stay in its file."""
    last = layout.entries[-1]
    return last.offset if last.parameter.module == LAYER_TABLE else layout.nbytes


def mapped_bytes(layout: Layout, settings: ModelSettings) -> int:
    """Return the bytes that stay in the packed cache's file while the model serves: where the file is kept, those of
    which steps read single rows."""
    kept = SMALLEST_CACHED_BYTES <= layout.nbytes <= settings.kept_bytes
    return layout.nbytes - resident_bytes(layout) if kept and settings.weights_memory != "copy" else 0


def format_shares(layout: Layout) -> dict[str, float]:
    """Return the share of all matrix elements that is packed in each format, by the format's name, the largest
    first."""
    counted: Counter[str] = Counter()
    for entry in layout.entries:
        if entry.form is not None:
            name = f"{entry.form.precision} with minimums" if entry.form.minimum else entry.form.precision
            counted[name] += math.prod(entry.parameter.shape)
    return {name: count / counted.total() for name, count in counted.most_common()}


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
