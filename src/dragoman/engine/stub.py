"""Stub model: only arithmetic, with the interface of a real one.

The logits after a token are a hash of the whole history, read through the block table from what earlier steps wrote
into the blocks. A wrong table, a missing copy-on-write, or a stale cached block therefore changes the tokens. With
an encoder, its encoded input is part of the history; with states, so is a second hash in their slots.
"""

from __future__ import annotations

import hashlib
import os
import select
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.core.errors import ModelError
from dragoman.core.pooling import PoolingInfo
from dragoman.engine.arrays import Float32, Int32
from dragoman.engine.messages import StubModel
from dragoman.models import AdapterInfo, ModelInfo
from dragoman.models.batch import Batch, PoolSize

_MASK = 2**64 - 1
_EMPTY = 0x9E3779B97F4A7C15
LOGIT_RANGE = 6.0
"""Logits are in [-LOGIT_RANGE, LOGIT_RANGE): peaked enough that penalties, top-p and min-p all matter.

That of the token a period back is raised by twice as much: always the likeliest, and often but not always drawn.
"""


class StubRunner:
    """``Runner`` without weights. Every cell of its cache holds a hash of the history up to that position.

    ``sleep`` is called with ``settings.step_s`` once per step: pass the sleep of a fake clock in simulations.
    ``seen`` is called with each batch before it runs: tests inspect it, or raise from it.
    """

    block_size = 32
    read_bytes = 0
    causal = True

    def __init__(
        self,
        settings: StubModel | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
        seen: Callable[[Batch], None] | None = None,
    ) -> None:
        self.settings = settings = settings or StubModel()
        self.vocab_size = settings.vocab_size
        self.hidden_size = settings.hidden_size
        self.num_blocks = settings.num_blocks
        self.max_context = settings.max_context
        self.encoder_context = settings.encoder_context
        self.pools = (
            PoolSize(settings.window, settings.num_blocks),
            *(PoolSize(window, blocks) for window, blocks in settings.more_pools),
            *([PoolSize(1, settings.own_blocks, own=True)] if settings.own_blocks else []),
        )
        self.num_states = settings.num_states
        self.max_tokens = settings.max_tokens
        self.max_sequences = settings.max_sequences
        self.max_logit_rows = settings.max_logit_rows
        self.max_adapters = settings.max_adapters
        self.tower, self.image_cache_bytes = None, 0
        self._adapters: dict[int, int] = {}
        """By slot: a number that the adapter mixes into every cell."""
        self.steps = 0
        self._sleep = sleep
        self._seen = seen
        self.block_data = [np.zeros((pool.blocks, 12 * self.block_size), np.uint8) for pool in self.pools]
        self.state_data = np.zeros((settings.num_states, 8), np.uint8)
        self._states = self.state_data.view(np.uint64)[:, 0]
        self._cells = [data[:, : 8 * self.block_size].view(np.uint64) for data in self.block_data]
        self._tokens = [data[:, 8 * self.block_size :].view(np.int32) for data in self.block_data]
        self._vocabulary = np.arange(settings.vocab_size, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)

    @property
    def card(self) -> ModelInfo:
        return ModelInfo(
            name="stub",
            architecture="stub",
            precision="float32",
            kv_precision="float32",
            context_tokens=self.max_context,
            vocab_size=self.vocab_size,
            hidden_size=self.hidden_size,
            eos_token_ids=(),
            bos_token_id=None,
            parameter_count=0,
            weight_bytes=0,
            fingerprint=f"stub-{self.vocab_size}",
            tokenizer_folder="",
            pooling=PoolingInfo(kind="last", width=self.hidden_size),
        )

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None, interrupt: int | None = None) -> Float32:
        if meanwhile is not None:
            meanwhile()
        self.steps += 1
        if self._seen is not None:
            self._seen(batch)
        if self.settings.step_s:
            self._sleep(self.settings.step_s)
        logits = np.empty((len(batch.logit_rows), self.vocab_size), np.float32)
        wanted = {int(row): place for place, row in enumerate(batch.logit_rows)}
        given = _given(batch)
        by_pool = batch.block_tables if batch.block_tables.ndim == 3 else batch.block_tables[None]
        for index, tables in enumerate(by_pool.swapaxes(0, 1)):
            adapter = 0 if batch.adapters is None else self._adapter(int(batch.adapters[index]))
            seen = self._encoded(batch, index)
            state = self._state_before(batch, index)
            for row in range(batch.row_starts[index], batch.row_starts[index + 1]):
                position = int(batch.positions[row])
                self._write(tables, position, int(batch.token_ids[row]), given.get(row, 0) ^ adapter)
                state = self._step_state(batch, row, state)
                if row in wanted:
                    self._read(tables, position, logits[wanted[row]], seen ^ state)
        if interrupt is not None and select.select([interrupt], [], [], 0)[0]:
            raise kernels.Interrupted
        return logits

    def pool(self, batch: Batch, second_text: Int32, interrupt: int | None = None) -> Float32:
        """Return the first numbers of the logits of the rows, in place of hidden states."""
        return self.run(batch, interrupt=interrupt)[:, : self.hidden_size]

    def project(self, vector: Float32) -> Float32:
        return vector

    def encode(self, batch: Batch) -> None:
        """Write cells that depend on the whole input, as with attention to both sides."""
        given = _given(batch)
        if self._seen is not None:
            self._seen(batch)
        for index, table in enumerate(batch.block_tables):
            first, end = int(batch.row_starts[index]), int(batch.row_starts[index + 1])
            self._apply_faults(batch.token_ids[first:end])
            state = _EMPTY
            for row in range(first, end):
                state = _mix(state ^ (int(batch.token_ids[row]) * _MASK // 5) ^ (given.get(row, 0) << 32))
            for position in range(end - first):
                self._cells[0][table[position // self.block_size], position % self.block_size] = _mix(state ^ position)

    def _encoded(self, batch: Batch, index: int) -> int:
        """Return a hash of a sequence's encoder input."""
        if batch.encoder_tables is None or batch.encoder_lengths is None:
            return 0
        length = int(batch.encoder_lengths[index])
        blocks = batch.encoder_tables[index][: -(-length // self.block_size)]
        return int(self._cells[0][blocks].ravel()[:length].sum() & np.uint64(_MASK))

    def _state_before(self, batch: Batch, index: int) -> int:
        """Return the state in a sequence's slot; 0 at position 0, and without states."""
        if batch.state_slots is None or not batch.positions[batch.row_starts[index]]:
            return 0
        return int(self._states[batch.state_slots[index]])

    def _step_state(self, batch: Batch, row: int, state: int) -> int:
        """Return the state after a row, which also goes into the row's slot."""
        if batch.state_rows is None:
            return 0
        state = _mix(state ^ (int(batch.token_ids[row]) + 1))
        if batch.state_rows[row] >= 0:
            self._states[batch.state_rows[row]] = state
        return state

    def copy_states(self, sources: Int32, targets: Int32) -> None:
        for source, target in zip(sources, targets, strict=True):
            self.state_data[target] = self.state_data[source]

    def write_image(self, values: Float32, blocks: Int32) -> None:
        """It looks at no images."""
        raise NotImplementedError

    def copy_blocks(self, sources: Int32, targets: Int32, group: int = 0) -> None:
        data = self.block_data[group]
        for source, target in zip(sources, targets, strict=True):
            data[target] = data[source]

    def load_adapter(self, slot: int, name: str, source: str) -> AdapterInfo:
        """Load any source as an adapter: equal sources are equal adapters, and folders with equal configurations.
        A source that begins with ``missing`` raises ModelError."""
        if source.startswith("missing"):
            raise ModelError(f"{source}: there is no such adapter")
        config = Path(source, "adapter_config.json")
        known_by = config.read_bytes() if config.is_file() else source.encode()
        digest = hashlib.blake2b(known_by, digest_size=16).hexdigest()
        self._adapters[slot] = int(digest[:8], 16) | 1
        return AdapterInfo(
            name=name,
            source=source,
            rank=8,
            scaling=2.0,
            target_modules=("stub",),
            nbytes=len(source),
            digest=digest,
            fingerprint=f"{self.card.fingerprint}-{digest[:8]}",
        )

    def unload_adapter(self, slot: int) -> None:
        del self._adapters[slot]

    def _adapter(self, slot: int) -> int:
        return 0 if slot < 0 else self._adapters[slot]

    def _write(self, tables: Int32, position: int, token_id: int, given: int) -> None:
        block, offset = divmod(position, self.block_size)
        for pool, (size, table) in enumerate(zip(self.pools, tables, strict=True)):
            cells, before = self._cells[pool], _EMPTY
            if size.own:  # the block before is gone; all pools have the same cells
                cells[table[block], offset] = self._cells[0][tables[0][block], offset]
            else:
                if position:
                    before = int(cells[table[(position - 1) // self.block_size], (position - 1) % self.block_size])
                cells[table[block], offset] = _mix(before ^ (token_id * _MASK // 3) ^ position ^ (given << 32))
            self._tokens[pool][table[block], offset] = token_id

    def _read(self, tables: Int32, position: int, logits: Float32, seen: int) -> None:
        """Compute logits from every visible cell of the history, as in attention, not only the last."""
        history, total = self._visible(0, tables[0], position, self.pools[0].window)
        for pool, size in enumerate(self.pools[1:], 1):
            window = position % self.block_size + 1 if size.own else size.window
            differs = self._visible(pool, tables[pool], position, window)[1]
            differs ^= self._visible(0, tables[0], position, window)[1]
            total += _mix(differs) if differs else 0
        self._apply_faults(history)
        state = np.uint64(_mix(seen ^ (total & _MASK)))
        bits = (self._vocabulary + state) * np.uint64(0xFF51AFD7ED558CCD)
        bits ^= bits >> np.uint64(32)
        bits *= np.uint64(0xC4CEB9FE1A85EC53)
        logits[:] = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2 * LOGIT_RANGE / 2**24) - LOGIT_RANGE
        if 0 < self.settings.period <= len(history):
            logits[history[-self.settings.period]] += np.float32(2 * LOGIT_RANGE)
        if self._has(self.settings.nan_token, history):
            logits[7 % self.vocab_size] = np.nan

    def _visible(self, pool: int, table: Int32, position: int, window: int) -> tuple[NDArray[np.int32], int]:
        """Return the tokens that a position sees in a pool, and a hash of their cells."""
        first = max(0, position - window + 1) if window else 0
        blocks = table[first // self.block_size : position // self.block_size + 1]
        seen = slice(first % self.block_size, first % self.block_size + position + 1 - first)
        cells = self._cells[pool][blocks].ravel()[seen]
        places = np.arange(1, len(cells) + 1, dtype=np.uint64)
        total = int((cells * (places * np.uint64(2) + np.uint64(1))).sum() & np.uint64(_MASK))
        return self._tokens[pool][blocks].ravel()[seen], total

    def _apply_faults(self, history: NDArray[np.int32]) -> None:
        if self._has(self.settings.crash_token, history):
            os._exit(66)
        if self._has(self.settings.raise_token, history):
            raise RuntimeError("the stub is set to raise")

    @staticmethod
    def _has(token_id: int | None, history: NDArray[np.int32]) -> bool:
        return token_id is not None and bool((history == token_id).any())


def _given(batch: Batch) -> dict[int, int]:
    """Return a number for each row with a given embedding."""
    if batch.embedding_rows is None or batch.embedding_values is None:
        return {}
    rows = zip(batch.embedding_rows.tolist(), batch.embedding_values, strict=True)
    return {row: zlib.crc32(vector.tobytes()) for row, vector in rows}


def _mix(value: int) -> int:
    """Return splitmix64 (Steele 2014) of a value: a bijection that spreads every bit over all others."""
    value = (value + _EMPTY) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
