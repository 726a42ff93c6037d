"""What the recording of a program is given: its limits, and for a layer's parts the recorder of the whole decoder."""

from __future__ import annotations

from typing import Protocol

import msgspec

from dragoman import kernels
from dragoman.models.packing import Weights
from dragoman.models.spec import DecoderSpec


class StepLimits(msgspec.Struct, frozen=True):
    """How large a step of a program can be.

    Attributes:
        context: positions from 0 on that can be run.
        max_tokens: rows of a step. max_sequences: sequences that these are of. max_logit_rows: rows with logits.
    """

    context: int
    max_tokens: int
    max_sequences: int
    max_logit_rows: int

    def program(self, kv: kernels.KVPool, states: kernels.StatePool | None = None) -> kernels.Program:
        """Return an empty program whose layers keep their keys and values in ``kv``, and their states in ``states``."""
        return kernels.Program(
            max_tokens=self.max_tokens,
            max_sequences=self.max_sequences,
            max_logit_rows=self.max_logit_rows,
            kv=kv,
            states=states,
        )


class PartRecorder(Protocol):
    """What every part needs of ``decoder.Recorder``; each module adds what its own parts need.

    Attributes:
        spec: of the decoder. weights: packed. program: that operations are added to.
    """

    @property
    def spec(self) -> DecoderSpec: ...
    @property
    def weights(self) -> Weights: ...
    @property
    def program(self) -> kernels.Program: ...
