from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

class PackedMatrix:
    def __init__(
        self,
        data: NDArray[np.uint8],
        n: int,
        k: int,
        precision: str,
        minimum: bool = False,
        wide: bool = False,
        ordered: bool = False,
    ) -> None: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def precision(self) -> str: ...
    @property
    def minimum(self) -> bool: ...
    @property
    def wide(self) -> bool: ...
    @property
    def ordered(self) -> bool: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def data(self) -> NDArray[np.uint8]: ...
    def dequantize(self) -> NDArray[np.float32]: ...

def packed_bytes(
    n: int, k: int, precision: str, minimum: bool = False, wide: bool = False, ordered: bool = False
) -> int: ...
def pack(
    weight: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16], precision: str, minimum: bool, wide: bool
) -> PackedMatrix: ...
def pack_codes(
    values: NDArray[np.int8],
    scales: NDArray[np.uint16],
    minimums: NDArray[np.uint16] | None,
    precision: str,
    wide: bool,
    order: NDArray[np.int32] | None,
) -> PackedMatrix: ...
def quantize_blocks(weight: NDArray[np.float32] | NDArray[np.float16] | NDArray[np.uint16]) -> NDArray[np.uint8]: ...
def round_with_feedback(
    values: NDArray[np.float32], factor: NDArray[np.float32], blocks: NDArray[np.uint8], errors: NDArray[np.float32]
) -> None: ...
def pack_blocks(blocks: NDArray[np.uint8], k: int, precision: str) -> PackedMatrix: ...
def gguf_block(type: int) -> tuple[int, int]: ...
def gguf_has_codes(type: int, int8: bool, minimum: bool) -> bool: ...
def dequantize_gguf(blocks: NDArray[np.uint8], type: int, out: NDArray[np.float32]) -> None: ...
def gguf_scales_are_finite(blocks: NDArray[np.uint8], type: int) -> bool: ...
def gguf_codes(
    blocks: NDArray[np.uint8],
    type: int,
    values: NDArray[np.int8],
    scales: NDArray[np.uint16],
    minimums: NDArray[np.uint16] | None,
    int8: bool,
) -> bool: ...
def gather_rows(w: PackedMatrix, ids: NDArray[np.int32], out: NDArray[np.float32]) -> None: ...
def linear(
    x: NDArray[np.float32],
    w: PackedMatrix,
    bias: NDArray[np.float32] | None,
    out: NDArray[np.float32],
    accumulate: bool,
) -> None: ...

class FileMemory:
    def __init__(self, file: int, nbytes: int) -> None: ...
    @property
    def data(self) -> NDArray[np.uint8]: ...
    def settle(self, delay_s: float = 0.0, mappings: str = "/proc/self/smaps") -> None: ...
    def settled(self) -> bool: ...

def empty(nbytes: int) -> NDArray[np.uint8]: ...
def instruction_set() -> str: ...
def instruction_sets() -> list[str]: ...
def force(name: str) -> None: ...
def set_memory_nodes(nodes: list[int] | tuple[int, ...]) -> bool: ...
def set_threads(threads: int) -> None: ...
def threads() -> int: ...
def checksum(bytes: NDArray[np.uint8]) -> int: ...
def memory_passes(seconds: float) -> list[float]: ...
def multiply_peak(precision: str) -> float: ...

class KVPool:
    def __init__(
        self,
        *,
        blocks: list[int],
        kv_heads: list[int],
        head_dims: list[int],
        groups: list[int],
        precision: str,
        latent: int,
        own_blocks: int,
    ) -> None: ...
    @property
    def layers(self) -> int: ...
    @property
    def precision(self) -> str: ...
    def bytes_per_block(self, group: int) -> int: ...
    def data(self, group: int) -> NDArray[np.uint8]: ...
    def copy_blocks(self, group: int, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None: ...

class StatePool:
    def __init__(self, *, slots: int, floats: list[int]) -> None: ...
    @property
    def slots(self) -> int: ...
    @property
    def slot_bytes(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def data(self) -> NDArray[np.uint8]: ...
    def copy_slots(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None: ...

class LowRank:
    def __init__(self, k: int, precision: str) -> None: ...
    def add(
        self,
        offset: int,
        a: NDArray[np.float32],
        b: NDArray[np.float32],
        factor: float,
        column_scale: NDArray[np.float32] | None,
    ) -> None: ...
    def apply(self, w: PackedMatrix, x: NDArray[np.float32], y: NDArray[np.float32]) -> None: ...
    @property
    def k(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Interrupted(Exception): ...

class Program:
    def __init__(
        self, *, max_tokens: int, max_sequences: int, max_logit_rows: int, kv: KVPool, states: StatePool | None
    ) -> None: ...
    def buffer(self, width: int, over: int) -> int: ...
    def width(self, x: int, /) -> int: ...
    def embed(self, x: int, table: PackedMatrix, scale: float, /) -> None: ...
    def add_embeddings(self, x: int, table: PackedMatrix, factor: float, /) -> None: ...
    def clip_columns(self, x: int, offset: int, width: int, low: float, high: float, /) -> None: ...
    def add_given(self, x: int, part: int, /) -> None: ...
    def add_positions(self, x: int, table: NDArray[np.float32], /) -> None: ...
    def norm(
        self,
        out: int,
        x: int,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        eps: float,
        kind: str,
    ) -> None: ...
    def linear(self, out: int, x: int, w: PackedMatrix, bias: NDArray[np.float32] | None, accumulate: bool) -> None: ...
    def head_linear(self, out: int, x: int, w: PackedMatrix, heads: int, /) -> None: ...
    def head_norm(
        self,
        x: int,
        offset: int,
        heads: int,
        head_dim: int,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        eps: float,
        kind: str,
    ) -> None: ...
    def rotate(
        self,
        x: int,
        offset: int,
        heads: int,
        head_dim: int,
        cos: NDArray[np.float32],
        sin: NDArray[np.float32],
        interleaved: bool,
        axes: NDArray[np.int32] | None,
    ) -> None: ...
    def write_kv(self, x: int, k_offset: int, v_offset: int, layer: int, /) -> None: ...
    def attend(
        self,
        out: int,
        x: int,
        q_offset: int,
        heads: int,
        layer: int,
        scale: float,
        window: int,
        softcap: float,
        slopes: NDArray[np.float32] | None,
        bias: NDArray[np.float32] | None,
        causal: bool,
        sinks: NDArray[np.float32] | None,
        chunk: int,
        both_ways: bool,
    ) -> None: ...
    def cross_attend(
        self, out: int, x: int, q_offset: int, heads: int, layer: int, scale: float, of_step: bool, /
    ) -> None: ...
    def begin_optional(self) -> None: ...
    def end_optional(self) -> None: ...
    def clear_without_text(self, x: int, /) -> None: ...
    def convolve(
        self,
        x: int,
        offset: int,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        part: int,
        activated: bool,
    ) -> None: ...
    def recur(
        self,
        out: int,
        x: int,
        gates: int,
        q_offset: int,
        k_offset: int,
        v_offset: int,
        heads: int,
        group: int,
        key_dim: int,
        value_dim: int,
        part: int,
        skip: NDArray[np.float32] | None,
        delta: bool,
        key_decays: bool,
    ) -> None: ...
    def scan(
        self,
        out: int,
        x: int,
        steps: int,
        bc: int,
        b_offset: int,
        c_offset: int,
        rate: NDArray[np.float32],
        bias: NDArray[np.float32],
        skip: NDArray[np.float32],
        part: int,
    ) -> None: ...
    def unit(
        self,
        x: int,
        input: int,
        decay: int,
        rate: NDArray[np.float32],
        input_bias: NDArray[np.float32],
        decay_bias: NDArray[np.float32],
        part: int,
    ) -> None: ...
    def recurrence_gates(
        self,
        out: int,
        x: int,
        step_offset: int,
        factor_offset: int,
        rate: NDArray[np.float32],
        bias: NDArray[np.float32],
        least: float,
        most: float,
    ) -> None: ...
    def multiply(
        self,
        out: int,
        out_offset: int,
        x: int,
        x_offset: int,
        y: int,
        y_offset: int,
        width: int,
        factor: str,
        /,
    ) -> None: ...
    def gate(self, out: int, x: int, activation: str, /) -> None: ...
    def activate(self, x: int, activation: str, /) -> None: ...
    def xielu(self, x: int, positive: float, negative: float, linear: float, least: float, /) -> None: ...
    def clip(self, x: int, limit: float, /) -> None: ...
    def scale_by_position(self, x: int, offset: int, width: int, factors: NDArray[np.float32], /) -> None: ...
    def experts(
        self,
        out: int,
        x: int,
        router: PackedMatrix,
        inward: list[PackedMatrix],
        outward: list[PackedMatrix],
        active: int,
        over_all: bool,
        shared: str | None,
        gated: bool,
        activation: str,
        factor: float,
        accumulate: bool,
        scores: str,
        choice_bias: NDArray[np.float32] | None,
        groups: int,
        active_groups: int,
        group_top: int,
        least: float,
        weight_factor: float,
        margin: float,
        scale_inputs: bool,
        router_bias: NDArray[np.float32] | None,
        in_biases: list[NDArray[np.float32]] | None,
        out_biases: list[NDArray[np.float32]] | None,
        routed: int,
        expert_scales: NDArray[np.float32] | None,
        identities: int,
    ) -> None: ...
    def join(self, out: int, x: int, y: int, offset: int, /) -> None: ...
    def add_to_parts(self, x: int, value: int, first: int, /) -> None: ...
    def scale_columns(self, x: int, factors: NDArray[np.float32], /) -> None: ...
    def predict_parts(self, out: int, x: int, factors: int, /) -> None: ...
    def correct_parts(self, x: int, computed: int, factors: int, active: int, /) -> None: ...
    def match_magnitude(self, out: int, x: int, least: float, /) -> None: ...
    def keep_largest(self, x: int, width: int, deviations: float, /) -> None: ...
    def add(self, out: int, x: int, factor: float, /) -> None: ...
    def scale(self, x: int, factor: float, offset: int, width: int, /) -> None: ...
    def copy_columns(self, out: int, x: int, offset: int, /) -> None: ...
    def soft_cap(self, x: int, cap: float, /) -> None: ...
    def select_rows(self, out: int, x: int, /) -> None: ...
    def logits(self, x: int, /) -> None: ...
    def adapt(self, out: int, x: int, w: PackedMatrix, /) -> int: ...
    def set_adapter(self, slot: int, changes: list[LowRank | None], /) -> None: ...
    def remove_adapter(self, slot: int, /) -> None: ...
    def run(
        self,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        row_starts: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        logit_rows: NDArray[np.int32],
        embedding_rows: NDArray[np.int32] | None,
        embedding_values: NDArray[np.float32] | None,
        adapters: NDArray[np.int32] | None,
        cross_tables: NDArray[np.int32] | None,
        cross_lengths: NDArray[np.int32] | None,
        state_slots: NDArray[np.int32] | None,
        state_rows: NDArray[np.int32] | None,
        seen_ends: NDArray[np.int32] | None,
        rotary_positions: NDArray[np.int32] | None,
        meanwhile: Callable[[], None] | None,
        interrupt: int,
        operations: tuple[int, int],
    ) -> NDArray[np.float32]: ...
    def rows(self, x: int, rows: int) -> NDArray[np.float32]: ...
    def operations(self) -> int: ...
    def profile(self, by_shape: bool) -> dict[str, float]: ...

def truncations() -> tuple[str, ...]: ...
def sample(
    logits: NDArray[np.float32],
    temperature: NDArray[np.float32],
    uniform: NDArray[np.float32],
    token_ids: NDArray[np.int32],
    truncations: dict[str, NDArray[np.float32]],
    logprobs: NDArray[np.float32] | None,
    mirostat: NDArray[np.int32] | None,
    mirostat_limit: NDArray[np.float32] | None,
    mirostat_surprise: NDArray[np.float32] | None,
    overwrite: NDArray[np.uint8] | None,
) -> None: ...
def add_to_green_list(row: NDArray[np.float32], key: int, previous: int, share: float, delta: float, /) -> None: ...
def green_list(key: int, previous: int, share: float, out: NDArray[np.uint8], /) -> None: ...
def log_softmax_at(
    logits: NDArray[np.float32], rows: NDArray[np.int32], ids: NDArray[np.int32], out: NDArray[np.float32], /
) -> None: ...
def top_logprobs(
    logits: NDArray[np.float32],
    rows: NDArray[np.int32],
    ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    /,
) -> None: ...
def apply_penalties(
    row: NDArray[np.float32],
    ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    repetition: float,
    frequency: float,
    presence: float,
    /,
) -> None: ...
def add_bias(row: NDArray[np.float32], ids: NDArray[np.int32], bias: NDArray[np.float32], /) -> None: ...
def philox_uniform(
    seeds: NDArray[np.uint64], positions: NDArray[np.uint64], purpose: int, out: NDArray[np.float32], /
) -> None: ...
