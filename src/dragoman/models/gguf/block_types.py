"""Types of tensors in GGUF files, and the format each is packed in."""

from __future__ import annotations

import msgspec

from dragoman.models.tensors import Format

_INT8, _INT4, _INT4_MINIMUM = Format("int8"), Format("int4"), Format("int4", minimum=True)


class BlockType(msgspec.Struct, frozen=True):
    """Storage of a row: blocks of ``values`` numbers, each of ``size`` bytes.

    Attributes:
        form: the packed format for the precision ``auto``; None: the numbers are not quantized.
        exact: whether ``form`` holds each number as it is stored.
        divided: the packed format where columns are reordered within blocks, if ``form`` is such blocks.
    """

    name: str
    values: int
    size: int
    form: Format | None = None
    exact: bool = True
    divided: Format = _INT8

    def nbytes(self, count: int) -> int:
        """Return the bytes of so many numbers, which must be whole blocks."""
        return count // self.values * self.size


# By their numbers in the file. TQ1_0 and TQ2_0 are -1, 0 and 1 times a scale, which is that of all groups of a block.
# Q5_0 is integers times a float16 scale of 32, as our int8 groups are. docs/gguf.md lists
# the errors of Q5_1 and Q2_K.
BLOCK_TYPES: dict[int, BlockType] = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18, _INT4),
    3: BlockType("Q4_1", 32, 20, _INT4_MINIMUM),
    6: BlockType("Q5_0", 32, 22, _INT8),
    7: BlockType("Q5_1", 32, 24, _INT8, exact=False),
    8: BlockType("Q8_0", 32, 34, _INT8),
    10: BlockType("Q2_K", 256, 84, _INT8, exact=False),
    11: BlockType("Q3_K", 256, 110, Format("q3_k")),
    12: BlockType("Q4_K", 256, 144, Format("q4_k"), divided=_INT4_MINIMUM),
    13: BlockType("Q5_K", 256, 176, Format("q5_k")),
    14: BlockType("Q6_K", 256, 210, Format("q6_k")),
    20: BlockType("IQ4_NL", 32, 18, Format("iq4_nl")),
    23: BlockType("IQ4_XS", 256, 136, Format("iq4_xs")),
    30: BlockType("BF16", 1, 2),
    34: BlockType("TQ1_0", 256, 54, _INT4),
    35: BlockType("TQ2_0", 256, 66, _INT4),
    39: BlockType("MXFP4", 32, 17, Format("mxfp4")),
}

INTEGERS, INTEGERS_NAME = 27, "d2t"
"""The type of integers, and the one tensor that has it: the model's token for each of an EAGLE-3 head's."""

# Other known types, which are refused by name.
_OTHER_NAMES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip


def type_name(kind: int) -> str:
    """Return the name of a type's number, supported or not."""
    return BLOCK_TYPES[kind].name if kind in BLOCK_TYPES else _OTHER_NAMES.get(kind, f"number {kind}")
