"""Bytes of weights, cached keys and values and states that the steps of a model read: a lower bound, by arithmetic."""

from __future__ import annotations

from collections import Counter

from dragoman.models.batch import Batch
from dragoman.models.kv_groups import layer_kv_bytes
from dragoman.models.memory import MemoryPlan
from dragoman.models.spec import DecoderSpec


class ReadCounter:
    """Counts what steps have to read from memory, each byte once in a step.

    Kernels may read more: keys and values once for each tile of queries, and more experts than one token needs. What a
    processor's cache still holds from the step before is counted too: so a small model may seem to read faster than
    memory allows. Adapters are not counted.

    Attributes:
        total: bytes of all steps so far.
    """

    def __init__(self, spec: DecoderSpec, plan: MemoryPlan) -> None:
        self.total = 0
        self._plan = plan
        self._position_bytes = plan.kv_bytes_per_token
        if spec.vision is not None and spec.vision.cross_attention_layers:
            looking = range(len(spec.vision.cross_attention_layers))
            self._position_bytes = sum(layer_kv_bytes(spec, layer, plan.kv_precision) for layer in looking)
        windows: Counter[int] = Counter()
        for layer in spec.kv_layers:  # other layers read what these have read
            window = spec.windows[layer]
            nbytes = layer_kv_bytes(spec, layer, plan.kv_precision)
            windows[window if 0 < window < plan.context_tokens else 0] += nbytes
        self._whole = windows.pop(0, 0)
        """Bytes of a position in the layers whose attention sees all of them."""
        self._windows = tuple(windows.items())

    def add_step(self, batch: Batch) -> None:
        """Count a step of the decoder."""
        plan = self._plan
        self.total += plan.bytes_per_decoded_token if len(batch.logit_rows) else plan.bytes_before_logits
        last = batch.positions[batch.row_starts[1:] - 1]
        ends = len(last) + int(last.sum())
        self.total += self._whole * ends
        if self._windows:
            first = batch.positions[batch.row_starts[:-1]]
            for window, nbytes in self._windows:
                # The first row sees the window that ends with it, and the last row its own position.
                outside = (first + 1 - window).clip(min=0)
                self.total += nbytes * (ends - int(outside.sum()))
        if batch.state_slots is not None:
            self.total += plan.bytes_per_state * int((batch.positions[batch.row_starts[:-1]] > 0).sum())
        if batch.encoder_lengths is not None:
            self.total += self._position_bytes * int(batch.encoder_lengths.sum())

    def add_encoding(self, batch: Batch) -> None:
        """Count a step of the encoder. The keys and values of its layers are read as soon as they are written."""
        self.total += self._plan.encoder_bytes
