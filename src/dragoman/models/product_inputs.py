"""Inputs of a decoder's products: text that the model itself writes, and what reaches each matrix as it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman import kernels
from dragoman.models.batch import Batch, Int32s
from dragoman.models.decoder import Recorder
from dragoman.models.kv_groups import BLOCK_TOKENS
from dragoman.models.packing import Weights
from dragoman.models.progress import CALIBRATING, Progress
from dragoman.models.spec import DecoderSpec

SEQUENCE_TOKENS = 256
"""Length of a text: long enough for attention to matter, short enough that many are written in one batch."""
_SEED, _DRAW = 0x63616C69, 7  # of the random numbers; no sampler draws with this purpose


class ProductInput(msgspec.Struct, frozen=True):
    """Where a program can be halted to see the input of a product.

    Attributes:
        operation: number of operations before the product. buffer: has its input then.
        matrices: all that are multiplied with that input.
    """

    operation: int
    buffer: int
    matrices: tuple[kernels.PackedMatrix, ...]


class ObservedProgram(kernels.Program):
    """A program that keeps the input of each product with a packed matrix until its run goes on.

    Products of single heads, and the second ones of experts, have inputs that are not rows of a buffer: they are not
    observed.
    """

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.inputs: list[ProductInput] = []
        self._kept: dict[int, int] = {}
        self._has_all_rows = True

    def select_rows(self, out: int, x: int) -> None:
        """Record the choice of rows; products that follow, which only logits need, are not observed."""
        self._has_all_rows = False
        super().select_rows(out, x)

    def linear(
        self, out: int, x: int, w: kernels.PackedMatrix, bias: ArrayLike | None = None, accumulate: bool = False
    ) -> None:
        """Record the input's copy, and the product."""
        self._observe(x, (w,))
        super().linear(out, x, w, bias, accumulate)

    def experts(
        self, out: int, x: int, router: kernels.PackedMatrix, inward: Any, outward: Any, **options: Any
    ) -> None:
        """Record a copy of what all experts may get, and the experts."""
        self._observe(x, tuple(inward))
        super().experts(out, x, router, inward, outward, **options)

    def _observe(self, x: int, matrices: tuple[kernels.PackedMatrix, ...]) -> None:
        if not self._has_all_rows:
            return
        width = self.width(x)
        if width not in self._kept:  # in memory of its own: what else a buffer holds later does not matter
            self._kept[width] = self.buffer(width)
        self.copy_columns(self._kept[width], x, 0)
        self.inputs.append(ProductInput(self.operation_count, self._kept[width], matrices))


class TextWriter:
    """A decoder that writes texts in one batch, and then shows what its products get of all their tokens."""

    def __init__(self, spec: DecoderSpec, weights: Weights, tokens: int, first_token: int) -> None:
        """``tokens``: of all texts together. ``first_token``: what each begins with, and does not count."""
        length = min(SEQUENCE_TOKENS, tokens, spec.context)
        self.sequences = -(-tokens // length)
        self.length, self.first_token = length, first_token
        blocks = -(-length // BLOCK_TOKENS)
        kept = spec.kept_layers
        kv = kernels.KVPool(
            layers=len(kept),
            blocks=self.sequences * blocks,
            kv_heads=[spec.of_layer(layer).kv_heads for layer in kept],
            head_dim=[spec.of_layer(layer).head_dim for layer in kept],
            precision="float32",
            latent=spec.latent.rank if spec.latent else 0,
        )
        states = kernels.StatePool(slots=self.sequences, floats=spec.state_parts) if spec.state_parts else None
        self._has_states = states is not None
        self._tables = np.arange(self.sequences * blocks, dtype=np.int32).reshape(1, self.sequences, blocks)
        self.program = ObservedProgram(
            max_tokens=self.sequences * length,  # all at once: every layer is computed once
            max_sequences=self.sequences,
            max_logit_rows=self.sequences,
            kv=kv,
            states=states,
        )
        Recorder(spec.served_within(length), weights, self.program, length, keeps_rows=True).record_with_hidden()

    def write(self, progress: Progress) -> Int32s:
        """Return texts ``[sequences, length]``: each token drawn as likely as the model says."""
        texts = np.full((self.sequences, self.length), self.first_token, np.int32)
        seeds = np.arange(self.sequences, dtype=np.uint64) + np.uint64(_SEED)
        for place in range(1, self.length):
            logits = self.program.run(*self._batch(texts, place - 1, place)).astype(np.float64)
            likely = np.exp(logits - logits.max(1, keepdims=True)).cumsum(1)
            drawn = kernels.philox_uniform(seeds, np.full(self.sequences, place, np.uint64), _DRAW)
            for row, (upto, at) in enumerate(zip(likely, drawn, strict=True)):
                texts[row, place] = min(np.searchsorted(upto, at * upto[-1], side="right"), len(upto) - 1)
            progress(CALIBRATING, place / (self.length - 1))
        return texts

    def inputs(self, texts: Int32s) -> Iterator[tuple[tuple[kernels.PackedMatrix, ...], NDArray[np.float32]]]:
        """Yield what matrices are multiplied with, ``[tokens, K]``, in the order of the program; overwritten by what
        comes next."""
        batch, before = self._batch(texts, 0, texts.shape[1]), 0
        for product in self.program.inputs:
            self.program.run(*batch, operations=(before, product.operation))
            before = product.operation
            yield product.matrices, self.program.rows(product.buffer, texts.size)

    def _batch(self, texts: Int32s, start: int, stop: int) -> Batch:
        count, width = len(texts), stop - start
        ends = np.arange(1, count + 1, dtype=np.int32) * width
        state_rows = np.full(count * width, -1, np.int32)
        state_rows[ends - 1] = np.arange(count, dtype=np.int32)
        return Batch(
            token_ids=texts[:, start:stop].reshape(-1),
            positions=np.tile(np.arange(start, stop, dtype=np.int32), count),
            row_starts=np.concatenate([[0], ends]).astype(np.int32),
            block_tables=self._tables,
            logit_rows=ends - 1,
            state_slots=np.arange(count, dtype=np.int32) if self._has_states else None,
            state_rows=state_rows if self._has_states else None,
        )
