"""Python interface of the native kernels: one thin function per kernel that checks shapes and dtypes.

Built from ``csrc/``. The instruction set is chosen at import; ``DRAGOMAN_KERNELS`` in the environment forces one:
``amx|avx512|avx512_vnni|avx_vnni|avx2|portable``, on ARM ``neon_i8mm|neon|armv8|portable`` (ImportError where this
processor does not have it).
``kernels.reference`` defines each kernel again in NumPy, for tests.
"""

from dragoman.kernels._native import (
    FileMemory,
    Interrupted,
    PackedMatrix,
    force,
    instruction_set,
    instruction_sets,
    set_memory_nodes,
    set_threads,
    threads,
)
from dragoman.kernels.gguf import dequantize_gguf, gguf_block, gguf_codes, gguf_scales_are_finite
from dragoman.kernels.kv_pool import BLOCK_TOKENS, KVPool, KVPrecision, multiplies_bfloat16
from dragoman.kernels.lora import MOST_RANK, LowRank, LowRankPrecision
from dragoman.kernels.matrix import (
    BLOCK_PRECISIONS,
    BlockPrecision,
    Precision,
    checksum,
    empty,
    gather_rows,
    linear,
    memory_bandwidth,
    memory_passes,
    multiply_peak,
    pack,
    pack_blocks,
    pack_codes,
    packed_bytes,
    quantize_blocks,
    round_with_feedback,
)
from dragoman.kernels.program import Activation, Norm, Program, SharedExpert
from dragoman.kernels.recurrences import Factor
from dragoman.kernels.sampling import (
    TRUNCATIONS,
    Mirostat,
    add_bias,
    add_to_green_list,
    apply_penalties,
    green_list,
    log_softmax_at,
    philox_uniform,
    sample,
    top_logprobs,
)
from dragoman.kernels.states import StatePool

__all__ = [
    "BLOCK_PRECISIONS",
    "BLOCK_TOKENS",
    "MOST_RANK",
    "TRUNCATIONS",
    "Activation",
    "BlockPrecision",
    "Factor",
    "FileMemory",
    "Interrupted",
    "KVPool",
    "KVPrecision",
    "LowRank",
    "LowRankPrecision",
    "Mirostat",
    "Norm",
    "PackedMatrix",
    "Precision",
    "Program",
    "SharedExpert",
    "StatePool",
    "add_bias",
    "add_to_green_list",
    "apply_penalties",
    "checksum",
    "dequantize_gguf",
    "empty",
    "force",
    "gather_rows",
    "gguf_block",
    "gguf_codes",
    "gguf_scales_are_finite",
    "green_list",
    "instruction_set",
    "instruction_sets",
    "linear",
    "log_softmax_at",
    "memory_bandwidth",
    "memory_passes",
    "multiplies_bfloat16",
    "multiply_peak",
    "pack",
    "pack_blocks",
    "pack_codes",
    "packed_bytes",
    "philox_uniform",
    "quantize_blocks",
    "round_with_feedback",
    "sample",
    "set_memory_nodes",
    "set_threads",
    "threads",
    "top_logprobs",
]
