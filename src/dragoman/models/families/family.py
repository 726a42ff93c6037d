"""What a family of decoders is: how its config reads and what its checkpoint calls each weight."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dragoman.models.config import Config
from dragoman.models.parameters import Parameter
from dragoman.models.spec import DecoderSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RowOrder = Callable[[DecoderSpec, Parameter], "NDArray[np.intp] | None"]
"""For a parameter, the stored row of each of its rows; None: they are stored in our order."""


def _our_order(spec: DecoderSpec, parameter: Parameter) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Family:
    """One way that checkpoints are written.

    Attributes:
        read: from config to spec; raises ModelError on what the family may have and the decoder cannot do.
        names: canonical module → its names in the checkpoint; several are stacked along the outputs, in this order. A
            name with ``{part}`` stands for as many as the parameter has parts. That of an expert's matrix has
            ``{expert}`` in it, or is the name of a stack ``[experts, outputs, inputs]``.
            ``head.bias`` …: the name of one parameter that is not called after its module.
        other_names: those of modules that some checkpoints store under other names, and in other pieces.
        model_type: what a config without ``architectures`` calls it.
        base: prefix of all names but the head's. Checkpoints saved without the head leave it out.
        transposed: modules whose matrices are stored ``[inputs, outputs]``.
        ignored: names, without base, of tensors that are no weights of the decoder (buffers of old versions).
        aliases: other ways to write stored names: pattern and replacement, of which the first that is found is used.
        row_order: how rows of fused projections are stored, weight and bias alike (queries, keys and values by turns
            for each head: GPT-NeoX).
        norm_offset: what the weight of a norm is stored without (Gemma: 1).
        title, examples, note: for docs/models.md: what people call it, repositories they know, and what a user should
            know besides.
        token_ids: special tokens of a config that does not name them.
    """

    read: Callable[[Config], DecoderSpec]
    names: Mapping[str, tuple[str, ...]]
    model_type: str
    base: str
    transposed: frozenset[str] = frozenset()
    ignored: re.Pattern[str] = re.compile(r"(?!)")
    aliases: tuple[tuple[str, str], ...] = ()
    row_order: RowOrder = _our_order
    norm_offset: float = 0.0
    other_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    title: str = ""
    examples: tuple[str, ...] = ()
    note: str = ""
    token_ids: Mapping[str, int] = field(default_factory=dict)

    def canonical(self, name: str) -> str:
        """A stored name as ``names`` and ``ignored`` have it."""
        for pattern, replacement in self.aliases:
            found, count = re.subn(pattern, replacement, name, count=1)
            if count:
                return found
        return name
