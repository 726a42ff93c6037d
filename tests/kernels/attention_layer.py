"""One attention layer to run in any batches and chunks, and what NumPy makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.kernels.kv_pool import KVPrecision
from dragoman.kernels.reference import attention as reference

Floats = NDArray[np.float32]
PLAIN_TILES = ["amx_plain"] if kernels.instruction_sets()[0] == "avx512" else []  # where the processor has none
BLOCKS, OWN = 200, 7  # of a pool; and so far behind a block of the first group lies the own one
Kept = KVPrecision | Literal["own"]  # int4, with each query's own block in bfloat16
PRECISIONS: tuple[Kept, ...] = ("float32", "bfloat16", "int8", "int4", "own")
MOST_PRECISIONS: tuple[Kept, ...] = ("float32", "bfloat16", "int8", "own")
LATENT_PRECISIONS: tuple[KVPrecision, ...] = ("float32", "bfloat16", "int8")
# In bfloat16 the AVX-512 kernel also rounds queries and weights: relative errors of 2⁻⁹ each. In int8 those are 2⁻¹⁶.
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "int8": 5e-4, "int4": 5e-4, "own": 2e-2}


def rounded(x: Floats) -> Floats:
    """To bfloat16 and back, to nearest even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


@dataclass(frozen=True)
class Chunk:
    """Rows ``begin : end`` of a sequence, with the blocks it lives in."""

    sequence: int
    begin: int
    end: int
    blocks: tuple[int, ...]


@dataclass
class Layer:
    """One attention layer: rows of [q | k | v] come in as embeddings (token id = table row), attention comes out.

    All sequences' rows are made in advance; sequence s has its tokens at ids ``s · length + position``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    precision: Kept
    window: int = 0
    sequences: int = 4
    length: int = 200
    seed: int = 1
    softcap: float = 0.0
    sloped: bool = False
    reach: int = -1
    causal: bool = True
    sinking: bool = False
    chunk: int = 0
    latent: int = 0
    table: Floats = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        width = (self.heads + (1 if self.latent else 2) * self.kv_heads) * self.head_dim
        self.table = rng.normal(size=(self.sequences * self.length, width)).astype(np.float32)
        self.scale = self.head_dim**-0.5
        self.terms = {
            "softcap": self.softcap,
            "slopes": 2.0 ** -np.arange(1, self.heads + 1) if self.sloped else None,
            "bias": rng.normal(size=(self.heads, 2 * self.reach + 1)) if self.reach >= 0 else None,
            "causal": self.causal,
            "sinks": rng.normal(size=self.heads) * 2 if self.sinking else None,
            "chunk": self.chunk,
        }

    def start(self, blocks: int = BLOCKS) -> tuple[kernels.KVPool, kernels.Program]:
        """A pool full of NaN, as a worst case of what others may have left there, and a program over it."""
        kv = kernels.KVPool(
            layers=2,
            blocks=blocks,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            precision="int4" if self.precision == "own" else self.precision,
            latent=self.latent,
            own_blocks=blocks if self.precision == "own" else 0,
        )
        for group in range(len(kv.blocks)):  # only the padding of the head dimension is nobody's, and stays zero
            kv.block_data(group)[:] = 0 if self.head_dim % 16 else 0xFF
        p = kernels.Program(max_tokens=700, max_sequences=16, max_logit_rows=700, kv=kv)
        mixed = self.heads * (self.latent or self.head_dim)
        qkv, out, picked = p.buffer(self.table.shape[1]), *(p.buffer(mixed) for _ in range(2))
        k = self.heads * self.head_dim
        p.embed(qkv, kernels.pack(self.table, "float32"))
        p.write_kv(qkv, k, k + self.kv_heads * self.head_dim, layer=1)
        p.attend(out, qkv, 0, self.heads, layer=1, scale=self.scale, window=self.window, **self.terms)
        p.select_rows(picked, out)
        p.logits(picked)
        return kv, p

    def run(self, program: kernels.Program, chunks: list[Chunk]) -> list[Floats]:
        """One step; each chunk's rows of the result."""
        positions = [np.arange(c.begin, c.end) for c in chunks]
        ids = [c.sequence * self.length + p for c, p in zip(chunks, positions, strict=True)]
        starts = np.cumsum([0, *(c.end - c.begin for c in chunks)])
        tables = np.full((len(chunks), max(len(c.blocks) for c in chunks)), -1)
        for i, c in enumerate(chunks):
            tables[i, : len(c.blocks)] = c.blocks
        if self.precision == "own":  # of this step's positions alone, and others than theirs in the first group
            own = np.where(tables < 0, -1, (tables + OWN) % BLOCKS)
            for i, c in enumerate(chunks):
                own[i, : c.begin // 32] = -1
            tables = np.stack([tables, own])
        result = program.run(
            np.concatenate(ids), np.concatenate(positions), starts, tables, np.arange(starts[-1])
        ).copy()
        return np.split(result, starts[1:-1])

    def alone(self, sequence: int, length: int) -> Floats:
        """The whole sequence in one chunk, by itself."""
        blocks = tuple(range(-(-length // 32)))
        _, program = self.start(len(blocks) + OWN)
        return self.run(program, [Chunk(sequence, 0, length, blocks)])[0]

    def expected(self, sequence: int, length: int) -> Floats:
        rows = self.table[sequence * self.length :][:length]
        q, k, *rest = np.split(rows, [self.heads * self.head_dim, (self.heads + self.kv_heads) * self.head_dim], axis=1)
        v, shape = k if self.latent else rest[0], (length, -1, self.head_dim)
        near = rounded(np.ascontiguousarray(k)).reshape(shape), rounded(np.ascontiguousarray(v)).reshape(shape)
        if self.precision == "bfloat16":
            k, v = near
        if self.precision == "int8":
            k, v = reference.in_int8(k.reshape(shape)), reference.in_int8(v.reshape(shape))
        if self.precision in ("int4", "own"):
            k, v = reference.int4_keys(k.reshape(shape)), reference.int4_values(v.reshape(shape))
        v = v.reshape(shape)[..., : self.latent or None]
        own = near if self.precision == "own" and self.causal else None
        return reference.attend(
            q.reshape(shape), k.reshape(shape), v, 0, self.scale, self.window, **self.terms, own=own
        )


SETS = [*kernels.instruction_sets(), *PLAIN_TILES]


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Compute with the kernels of an instruction set meanwhile."""
    before = kernels.instruction_set()
    kernels.force(name)
    try:
        yield
    finally:
        kernels.force(before)
