"""What the recording of a layer's parts needs of the recorder of the whole decoder."""

from __future__ import annotations

from typing import Protocol

from dragoman import kernels
from dragoman.models.packing import Weights
from dragoman.models.spec import DecoderSpec


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
