"""Which precision each parameter gets when packed, and where its bytes lie. Pure arithmetic on the spec."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dragoman.models.settings import Precision
from dragoman.models.spec import DecoderSpec, Parameter, parameters

_ALIGNMENT = 64  # a cache line: the kernels read whole ones
_COLUMNS, _GROUP = 16, 32  # a packed matrix is padded to whole blocks of columns and groups of inputs
_BYTES_PER_GROUP: dict[Precision, int] = {
    "float32": 4 * _GROUP,
    "bfloat16": 2 * _GROUP,
    "int8": _GROUP + 2,  # and an fp16 scale
    "int4": _GROUP // 2 + 2,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one parameter lies among the packed bytes. ``precision`` is None for float32 vectors and tables."""

    parameter: Parameter
    precision: Precision | None
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every parameter of a decoder lies at a precision: the same on every machine and instruction set."""

    entries: tuple[Entry, ...]
    nbytes: int


def matrix_precision(parameter: Parameter, precision: Precision) -> Precision:
    """The precision of one matrix in a model of ``precision``.

    The tables between tokens and vectors stay at int8 in an int4 model: their errors reach every logit directly, and
    the embedding of a rare token has no other tokens to average them out.
    """
    return "int8" if precision == "int4" and parameter.module in ("embedding", "head") else precision


def packed_bytes(outputs: int, inputs: int, precision: Precision) -> int:
    """Size of a packed matrix ``[outputs, inputs]``."""
    blocks, groups = -(-outputs // _COLUMNS), -(-inputs // _GROUP)
    return blocks * _COLUMNS * groups * _BYTES_PER_GROUP[precision]


def plan_layout(spec: DecoderSpec, precision: Precision) -> Layout:
    """Lay all parameters out one after the other, each on a cache line of its own."""
    entries, offset = [], 0
    for parameter in parameters(spec):
        if parameter.matrix:
            of_matrix = matrix_precision(parameter, precision)
            outputs, inputs = parameter.shape
            entries.append(Entry(parameter, of_matrix, offset, packed_bytes(outputs, inputs, of_matrix)))
        else:
            entries.append(Entry(parameter, None, offset, 4 * math.prod(parameter.shape)))
        offset += -(-entries[-1].nbytes // _ALIGNMENT) * _ALIGNMENT
    return Layout(tuple(entries), offset)
