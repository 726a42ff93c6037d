"""Decoders recorded as programs that C++ runs in one call per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman.kernels import _native
from dragoman.kernels._native import PackedMatrix
from dragoman.kernels.kv_pool import BLOCK_TOKENS, KVPool
from dragoman.kernels.lora import LowRank
from dragoman.kernels.recurrences import RecurrenceOperations
from dragoman.kernels.states import StatePool
from dragoman.kernels.streams import StreamOperations

Norm = Literal["rms", "layer"]
Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"]
Scores = Literal["softmax", "sigmoid", "sparse_mixer"]
SharedExpert = Literal["added", "gated"]


class Program(StreamOperations, RecurrenceOperations):
    """A decoder as a list of operations over float32 buffers.

    Record the operations once, in order, then ``run`` a batch per step. Recording raises ValueError on anything that
    could not run: widths that do not fit, a buffer read before it is written, rows of different kinds. A buffer has
    one row per token of the batch or, from ``select_rows`` on, one per logits row; a result has the same rows as its
    inputs.
    """

    def __init__(
        self, *, max_tokens: int, max_sequences: int, max_logit_rows: int, kv: KVPool, states: StatePool | None = None
    ) -> None:
        self._native = _native.Program(
            max_tokens=max_tokens,
            max_sequences=max_sequences,
            max_logit_rows=max_logit_rows,
            kv=kv.native,
            states=None if states is None else states.native,
        )
        self.max_tokens = max_tokens
        self.max_sequences = max_sequences
        self.max_logit_rows = max_logit_rows
        self.kv = kv
        self.states = states
        self.products: dict[str, tuple[int, PackedMatrix]] = {}
        """Products that adapters can change, by name: their numbers and matrices."""
        self._before_positions: list[Callable[[int], None]] = []
        self._positions = 0  # reported to the callbacks so far

    def buffer(self, width: int, over: int | None = None) -> int:
        """Return the number of a new buffer ``[rows, width]``, which names it in the operations.

        ``over``: in the memory of that buffer, which is at least as wide, for values that are not needed at the same
        time: writing one of the two invalidates the other. ``gate`` and ``norm`` may read one and write the other.
        """
        return self._native.buffer(width, -1 if over is None else over)

    @property
    def operation_count(self) -> int:
        """Number of operations that are recorded so far."""
        return self._native.operations()

    def width(self, x: int) -> int:
        """Return the width of a buffer."""
        return self._native.width(x)

    def embed(self, x: int, table: PackedMatrix, scale: float = 1.0) -> None:
        """Record ``x = table[token] · scale``; table ``[vocab, width]`` of any precision."""
        self._native.embed(x, table, scale)

    def add_positions(self, x: int, table: ArrayLike) -> None:
        """Record ``x += table[position]``; table float32 ``[positions, width]``."""
        self._native.add_positions(x, _float32(table))

    def norm(
        self, out: int, x: int, weight: ArrayLike, bias: ArrayLike | None = None, eps: float = 1e-5, kind: Norm = "rms"
    ) -> None:
        """Record ``out = x / sqrt(mean(x²) + eps) · weight (+ bias)`` ("rms"), or ``(x − mean) / sqrt(variance + eps) ·
        weight (+ bias)`` ("layer"). ``out`` may be ``x``."""
        self._native.norm(out, x, _float32(weight), _float32_or_none(bias), eps, kind)

    def linear(
        self, out: int, x: int, w: PackedMatrix, bias: ArrayLike | None = None, accumulate: bool = False
    ) -> None:
        """Record ``out = x · Wᵀ (+ bias)``, or ``out += …`` where ``accumulate``."""
        self._native.linear(out, x, w, _float32_or_none(bias), accumulate)

    def head_linear(self, out: int, x: int, w: PackedMatrix, heads: int) -> None:
        """Record ``out_h = [x_h[:k] · W_hᵀ, x_h[k:]]`` for each of the heads of x, to each of which W ``[n, k]`` has
        ``n / heads`` rows, a multiple of 32."""
        self._native.head_linear(out, x, w, heads)

    def head_norm(
        self,
        x: int,
        offset: int,
        heads: int,
        head_dim: int,
        weight: ArrayLike,
        eps: float,
        bias: ArrayLike | None = None,
        kind: Norm = "rms",
    ) -> None:
        """Record ``norm`` of each head of ``x[:, offset : offset + heads · head_dim]``, in place.

        weight and bias: ``[head_dim]`` for all heads, or ``[heads · head_dim]``, separate for each head.
        """
        self._native.head_norm(x, offset, heads, head_dim, _float32(weight), _float32_or_none(bias), eps, kind)

    def rotate(
        self,
        x: int,
        offset: int,
        heads: int,
        head_dim: int,
        cos: ArrayLike,
        sin: ArrayLike,
        interleaved: bool = False,
        axes: ArrayLike | None = None,
    ) -> None:
        """Record the rotary embedding of each head, in place: elements i and i + r/2 are a pair (r the rotary
        dimension, at most ``head_dim``), or, where ``interleaved``, 2i and 2i + 1; cos and sin float32 ``[positions,
        r/2]``.

        ``axes``: int32 ``[r/2]``, 0, 1 or 2: of each pair the row of a run's ``rotary_positions`` that it is rotated
        by, where the run has any.
        """
        self._native.rotate(
            x,
            offset,
            heads,
            head_dim,
            _float32(cos),
            _float32(sin),
            interleaved,
            None if axes is None else _int32(axes),
        )

    def before_positions(self, reach: Callable[[int], None]) -> None:
        """Register ``reach(n)`` to be called before the first run that may use positions up to n - 1 in a table."""
        self._before_positions.append(reach)

    def write_kv(self, x: int, k_offset: int, v_offset: int, layer: int) -> None:
        """Record the write of the keys and values of all rows, KV head by KV head, into their sequence's blocks. A
        latent pool has no values: ``v_offset`` has no effect."""
        self._native.write_kv(x, k_offset, v_offset, layer)

    def attend(
        self,
        out: int,
        x: int,
        q_offset: int,
        heads: int,
        layer: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        slopes: ArrayLike | None = None,
        bias: ArrayLike | None = None,
        causal: bool = True,
        sinks: ArrayLike | None = None,
        chunk: int = 0,
        both_ways: bool = True,
    ) -> None:
        """Record ``out[:, h] = softmax(scale · q_h · K) · V`` over the positions up to the row's own.

        ``heads`` is a multiple of the pool's KV heads; neighbouring query heads share one. ``out`` is
        as wide as the values of ``heads`` heads.

        Args:
            window: how many positions a row sees to each side that it sees, its own included; 0: all.
            softcap: a scaled score s becomes ``softcap · tanh(s / softcap)`` (Gemma 2); 0: unchanged.
            slopes: float32 ``[heads]``; ``slope · (key position - query position)`` is then added (ALiBi).
            bias: float32 ``[heads, 2 · D + 1]``; entry D + (key position - query position), that distance clipped to
                ±D, is added (T5).
            causal: False: a row sees all positions of its sequence up to the last of this step, which must contain the
                whole text.
            sinks: float32 ``[heads]``: one more score in each softmax, which weighs no value (gpt-oss).
            chunk: a row sees only positions of its own chunk of so many (Llama 4); not with a window. 0: no chunks.
            both_ways: a run's ``seen_ends`` hold here; else a row sees none after it.
        """
        self._native.attend(
            out,
            x,
            q_offset,
            heads,
            layer,
            scale,
            window,
            softcap,
            _float32_or_none(slopes),
            _float32_or_none(bias),
            causal,
            _float32_or_none(sinks),
            chunk,
            both_ways,
        )

    def cross_attend(
        self, out: int, x: int, q_offset: int, heads: int, layer: int, scale: float, *, of_step: bool = False
    ) -> None:
        """Record attention over all positions of the row's encoder input, whose blocks are in ``cross_tables``.

        ``of_step``: a run may write what it looks at, and its sequences may share blocks: no two rows may then be
        written to one place.
        """
        self._native.cross_attend(out, x, q_offset, heads, layer, scale, of_step)

    @contextmanager
    def optional(self) -> Iterator[None]:
        """Record operations that a run leaves out where no sequence has an encoder input. Those that have none have a
        length of 0 then, and ``cross_attend`` leaves their rows as they are."""
        self._native.begin_optional()
        yield
        self._native.end_optional()

    def clear_without_text(self, x: int) -> None:
        """Record ``x = 0`` of the rows of sequences without an encoder input; among optional operations."""
        self._native.clear_without_text(x)

    def gate(self, out: int, x: int, activation: Activation) -> None:
        """Record ``out = act(x[:, :F]) · x[:, F:]``, F the width of ``out``."""
        self._native.gate(out, x, activation)

    def activate(self, x: int, activation: Activation) -> None:
        """Record ``x = act(x)``."""
        self._native.activate(x, activation)

    def xielu(self, x: int, positive: float, negative: float, linear: float, least: float) -> None:
        """Record ``x = positive · x² + linear · x`` where x > 0, elsewhere ``(exp(min(x, least)) - 1 - x) · negative +
        linear · x``."""
        self._native.xielu(x, positive, negative, linear, least)

    def clip(self, x: int, limit: float) -> None:
        """Record ``x = min(max(x, -limit), limit)``."""
        self._native.clip(x, limit)

    def experts(
        self,
        out: int,
        x: int,
        router: PackedMatrix,
        inward: Sequence[PackedMatrix],
        outward: Sequence[PackedMatrix],
        *,
        active: int,
        over_all: bool = False,
        shared: SharedExpert | None = None,
        gated: bool = True,
        activation: Activation = "silu",
        factor: float = 1.0,
        accumulate: bool = False,
        scores: Scores = "softmax",
        choice_bias: ArrayLike | None = None,
        groups: int = 1,
        active_groups: int = 1,
        group_top: int = 1,
        least: float = 0.0,
        weight_factor: float = 1.0,
        margin: float = 0.0,
        scale_inputs: bool = False,
        router_bias: ArrayLike | None = None,
        biases: tuple[Sequence[ArrayLike], Sequence[ArrayLike]] | None = None,
        routed: int | None = None,
        expert_scales: ArrayLike | None = None,
        identities: int = 0,
    ) -> None:
        """Record ``out = factor · Σ weight_e · expert_e(x)`` over the ``active`` experts that each row's router logits
        choose, or ``out += …`` where ``accumulate``.

        Args:
            router: ``[experts, width]``, of a gated shared expert ``[experts + 1, width]``. At most 1,024 experts.
            inward, outward: of each expert ``[2 · hidden, width]`` (gate above up; not ``gated``: ``[hidden, width]``)
                and ``[width, hidden]``. That of the shared expert is the last, and its hidden width may differ.
            active: number of chosen experts: those of the largest scores, the lower number where they are equal.
            over_all: weights are the scores over all experts, so that the chosen ones do not add up to 1;
                otherwise the same divided by their sum, or by ``least`` where that is larger.
            scores: of the logits: softmax; sigmoid; or two experts, each by a softmax over those whose logits are less
                than ``margin`` (relative) below the largest (Phi-3.5-MoE).
            choice_bias: float32 ``[experts]``, added to the scores for the choice, not for the weights.
            groups, active_groups, group_top: experts of the groups are chosen whose ``group_top`` best add up to most.
            weight_factor: of the weights of the chosen experts.
            scale_inputs: the weights multiply what goes into the experts (Llama 4).
            routed: the router's input, where it is not x. expert_scales: float32 ``[experts]``, factors of the weights.
            router_bias, biases: of the router, and of ``inward`` and ``outward``, one vector for each expert.
            identities: so many further experts, after the others, have no matrices: their result is x (LongCat-Flash).
            shared: an expert that every row passes: with weight 1, or with the sigmoid of the router's last row.

        Sums are taken in ascending order of experts, the shared one last: a row has the same bits in any batch.
        """
        self._native.experts(
            out,
            x,
            router,
            list(inward),
            list(outward),
            active,
            over_all,
            shared,
            gated,
            activation,
            factor,
            accumulate,
            scores,
            _float32_or_none(choice_bias),
            groups,
            active_groups,
            group_top,
            least,
            weight_factor,
            margin,
            scale_inputs,
            _float32_or_none(router_bias),
            None if biases is None else [_float32(bias) for bias in biases[0]],
            None if biases is None else [_float32(bias) for bias in biases[1]],
            x if routed is None else routed,
            _float32_or_none(expert_scales),
            identities,
        )

    def add(self, out: int, x: int, factor: float = 1.0) -> None:
        """Record ``out += factor · x``."""
        self._native.add(out, x, factor)

    def scale(self, x: int, factor: float, offset: int = 0, width: int | None = None) -> None:
        """Record ``x[:, offset : offset + width] *= factor``; by default of all columns from ``offset``."""
        self._native.scale(x, factor, offset, self.width(x) - offset if width is None else width)

    def soft_cap(self, x: int, cap: float) -> None:
        """Record ``x = cap · tanh(x / cap)``: nearly x where it is small, never beyond ±cap."""
        self._native.soft_cap(x, cap)

    def select_rows(self, out: int, x: int) -> None:
        """Record ``out[i] = x[logit_rows[i]]``; from here on ``out`` has one row per logits row."""
        self._native.select_rows(out, x)

    def adapt(self, out: int, x: int, w: PackedMatrix, name: str) -> None:
        """Record the adapters' changes of the product ``name``, after ``linear(out, x, w, …)``."""
        self.products[name] = (self._native.adapt(out, x, w), w)

    def set_adapter(self, slot: int, changes: Mapping[str, LowRank]) -> None:
        """Set the changes by product for the rows of the slot's sequences; from any thread, between two runs.

        ValueError on a product that is not adapted, and on changes that do not fit theirs.
        """
        ordered: list[_native.LowRank | None] = [None] * len(self.products)
        for name, change in changes.items():
            if name not in self.products:
                raise ValueError(f"there is no product {name} that adapters can change")
            ordered[self.products[name][0]] = change.native
        self._native.set_adapter(slot, ordered)

    def remove_adapter(self, slot: int) -> None:
        """Empty a slot."""
        self._native.remove_adapter(slot)

    def logits(self, x: int) -> None:
        """Name the buffer that ``run`` returns; its width is the vocabulary."""
        self._native.logits(x)

    def run(
        self,
        token_ids: ArrayLike,
        positions: ArrayLike,
        row_starts: ArrayLike,
        block_tables: ArrayLike,
        logit_rows: ArrayLike,
        embedding_rows: ArrayLike | None = None,
        embedding_values: ArrayLike | None = None,
        adapters: ArrayLike | None = None,
        cross_tables: ArrayLike | None = None,
        cross_lengths: ArrayLike | None = None,
        state_slots: ArrayLike | None = None,
        state_rows: ArrayLike | None = None,
        seen_ends: ArrayLike | None = None,
        rotary_positions: ArrayLike | None = None,
        meanwhile: Callable[[], None] | None = None,
        interrupt: int | None = None,
        operations: tuple[int, int] | None = None,
    ) -> NDArray[np.float32]:
        """Run one batch; returns logits ``[len(logit_rows), vocab]``, a view that the next run overwrites.

        Args:
            token_ids, positions: int32 ``[T]``, all sequences' rows one after the other.
            row_starts: int32 ``[S + 1]``; sequence i owns rows ``row_starts[i] : row_starts[i + 1]``, at least one, at
                consecutive positions.
            block_tables: int32 ``[G, S, M]``, or ``[S, M]`` of a pool with one group of layers: position p of sequence
                i is in block ``block_tables[g][i][p // 32]`` of the pool's group g; entries that no operation uses may
                have any value.
            logit_rows: int32, ascending.
            embedding_rows, embedding_values: int32 ``[E]`` and float32 ``[E, width]``: rows with a given embedding
                instead of a lookup (before positions are added); ``[E, parts · width]`` where ``add_given`` adds parts.
            adapters: int32 ``[S]``: the slot of each sequence's adapter, -1 without one; None: no adapters.
            cross_tables, cross_lengths: int32 ``[S, N]`` and ``[S]``: the blocks of sequence i's encoder input for
                cross-attention, and its number of positions.
            state_slots: int32 ``[S]``: the slot with each sequence's state before its first row here; at position 0 the
                state is zero, whatever the slot.
            state_rows: int32 ``[T]``: the slot that gets the state after each row, -1 for none; the last row of every
                sequence has one.
            seen_ends: int32 ``[T]``: of each row the position before which it sees all of its sequence, from the one
                after its own up to the sequence's end in this step, ascending; None: a row sees nothing after it. A
                window still ends what it sees before it.
            rotary_positions: int32 ``[3, T]``: of each row the positions that pairs with axes are rotated by; None: its
                own.
            meanwhile: called once, at the beginning of the computation, by another thread of the pool if there are
                several. Its exception is raised after the computation.
            interrupt: a file descriptor. When it is readable between two operations, the rest is not computed:
                Interrupted. The blocks, states and logits of the batch's own rows may then be anything.
            operations: run those from the first to before the second of these ``operation_count``s alone. Those before
                must have run on the same rows, whose buffers are kept between such runs.

        A program without ``logits`` runs to write blocks, and returns no rows.

        ValueError, with nothing computed, when the batch does not fit the program, its tables or the KV pool. The GIL
        is released meanwhile.
        """
        tables = _int32(block_tables)
        tables = tables[None] if tables.ndim == 2 else tables
        if tables.shape[-1] * BLOCK_TOKENS > self._positions:
            self._reach(tables.shape[-1] * BLOCK_TOKENS)
        return self._native.run(
            _int32(token_ids),
            _int32(positions),
            _int32(row_starts),
            tables,
            _int32(logit_rows),
            None if embedding_rows is None else _int32(embedding_rows),
            _float32_or_none(embedding_values),
            None if adapters is None else _int32(adapters),
            None if cross_tables is None else _int32(cross_tables),
            None if cross_lengths is None else _int32(cross_lengths),
            None if state_slots is None else _int32(state_slots),
            None if state_rows is None else _int32(state_rows),
            None if seen_ends is None else _int32(seen_ends),
            None if rotary_positions is None else _int32(rotary_positions),
            meanwhile,
            -1 if interrupt is None else interrupt,
            (0, -1) if operations is None else operations,
        )

    def _reach(self, positions: int) -> None:
        for reach in self._before_positions:
            reach(positions)
        self._positions = positions

    def rows(self, x: int, rows: int) -> NDArray[np.float32]:
        """Return the first rows of a buffer after a run, ``[rows, width]``: a view that the next run overwrites.

        Rows are those of the batch's tokens, or of its logits, as the buffer's last operation left them. Raises
        ValueError for a buffer that no longer holds values at the end of a run.
        """
        return self._native.rows(x, rows)

    def profile(self, *, by_shape: bool = False) -> dict[str, float]:
        """Return the seconds spent by kind of operation since the last call; ``by_shape`` separates matrix products."""
        return self._native.profile(by_shape)


def _int32(values: ArrayLike) -> NDArray[np.int32]:
    return np.ascontiguousarray(values, dtype=np.int32)


def _float32(values: ArrayLike) -> NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)


def _float32_or_none(values: ArrayLike | None) -> NDArray[np.float32] | None:
    return None if values is None else _float32(values)
