"""What a family of decoders is: how its config reads and what its checkpoint calls each weight."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dragoman.models.config import Config
from dragoman.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class Family:
    """One way that checkpoints are written.

    Attributes:
        read: from config to spec; raises ModelError on what the family may have and the decoder cannot do.
        names: canonical module → its names in the checkpoint; several are stacked along the outputs, in this order.
        model_type: what a config without ``architectures`` calls it.
        base: prefix of all names but the head's. Checkpoints saved without the head leave it out.
        transposed: modules whose matrices are stored ``[inputs, outputs]``.
        ignored: names, without base, of tensors that are no weights (buffers of old versions).
    """

    read: Callable[[Config], DecoderSpec]
    names: Mapping[str, tuple[str, ...]]
    model_type: str
    base: str
    transposed: frozenset[str] = frozenset()
    ignored: re.Pattern[str] = re.compile(r"(?!)")
