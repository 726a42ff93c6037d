"""Definition of a decoder family: the reader of its config and the names of its weights in a checkpoint; and formulas
that several families share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.parameter import Parameter
from dragoman.models.pooling import PooledHead
from dragoman.models.spec import DecoderSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dragoman.models.tensors import Tensor

RowOrder = Callable[[DecoderSpec, Parameter], "NDArray[np.intp] | None"]
"""Return the stored row of each row of a parameter; None: they are stored in the order of this package."""


Division = Callable[[DecoderSpec, Mapping[str, "Tensor"]], "Mapping[str, Tensor]"]
"""Return the tensors of a checkpoint, by name; those that hold several parameters are divided."""


def _undivided(spec: DecoderSpec, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return tensors


def _canonical_order(spec: DecoderSpec, parameter: Parameter) -> None:
    return None


def _none_unused(spec: DecoderSpec) -> frozenset[str]:
    return frozenset()


class HeadNames(msgspec.Struct, frozen=True):
    """How checkpoints of a family name the layer that guesses one token more (``head_spec``), without the base.

    Attributes:
        layer: beginning of the names of what any layer has; ``{layers}`` is the number of the decoder's.
        joined: the product that joins token and hidden state. token_norm, hidden_norm: the norms of these.
            final_norm: of the result.
        feeds_normed: as in ``HeadSpec``.
    """

    layer: str
    joined: str
    token_norm: str
    hidden_norm: str
    final_norm: str
    feeds_normed: bool


MTP_AFTER_LAYERS = HeadNames(
    layer="layers.{layers}.",
    joined="layers.{layers}.eh_proj",
    token_norm="layers.{layers}.enorm",
    hidden_norm="layers.{layers}.hnorm",
    final_norm="layers.{layers}.shared_head.norm",
    feeds_normed=False,
)
"""As DeepSeek V3 has it: under the number of a further layer."""


class Family(msgspec.Struct, frozen=True):
    """A family of checkpoints with one config reader and one naming of weights.

    Attributes:
        read: from config to spec; raises ModelError on variants of the family that the decoder does not support.
        names: canonical module → its names in the checkpoint; several are stacked along the outputs, in this order. A
            name with ``{part}`` is repeated for each of the parameter's parts. That of an expert's matrix has
            ``{expert}`` in it, or is the name of a stack ``[experts, outputs, inputs]``.
            ``head.bias`` …: the name of one parameter that does not follow its module's name.
        other_names: of modules that some checkpoints store under other names, and in other parts, whose rows are then
            in order.
        model_type: the family's name in a config without ``architectures``.
        base: prefix of all names but the head's. Checkpoints saved without the head leave it out.
        transposed: modules whose matrices are stored ``[inputs, outputs]``.
        ignored: names, without base, of tensors that are not weights of the decoder (buffers of old versions).
        unused: stored names of modules that a decoder of this spec does not have, and that files may hold anyway.
        aliases: other spellings of stored names: pattern and replacement, of which the first match is used.
        row_order: order of the stored rows of fused projections, weight and bias alike (queries, keys and values
            for each head: GPT-NeoX).
        divide: of stored tensors that hold several parameters and not as rows that follow each other.
        renumbers: ``divide`` counts layers otherwise than files do, so an adapter's numbers mean other layers.
        norm_offset: added to the stored weight of a norm (Gemma: 1). whole_norms: modules of norms that are stored as
            they are.
        title, examples, note: for docs/models.md: usual name, well-known repositories, and further remarks for
            know besides.
        token_ids: defaults of special tokens that a config does not name.
        others: architectures of the same layers under other names: trained models, and classifiers with the head that
            makes their vectors logits, whose tensors are among the ``ignored`` ones.
        head: how a layer is named that guesses one token more, in checkpoints that have one.
    """

    read: Callable[[Config], DecoderSpec]
    names: Mapping[str, tuple[str, ...]]
    model_type: str
    base: str
    transposed: frozenset[str] = frozenset()
    ignored: re.Pattern[str] = re.compile(r"(?!)")
    unused: Callable[[DecoderSpec], frozenset[str]] = _none_unused
    aliases: tuple[tuple[str, str], ...] = ()
    row_order: RowOrder = _canonical_order
    divide: Division = _undivided
    renumbers: bool = False
    norm_offset: float = 0.0
    whole_norms: frozenset[str] = frozenset()
    other_names: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    title: str = ""
    examples: tuple[str, ...] = ()
    note: str = ""
    token_ids: Mapping[str, int] = msgspec.field(default_factory=dict)
    others: Mapping[str, PooledHead | None] = msgspec.field(default_factory=dict)
    head: HeadNames | None = None

    def canonical(self, name: str) -> str:
        """Return a stored name in the spelling of ``names`` and ``ignored``."""
        for pattern, replacement in self.aliases:
            found, count = re.subn(pattern, replacement, name, count=1)
            if count:
                return found
        return name


IMAGE_PARTS = re.compile(r"(vision_tower|multi_modal_projector)\..*")
"""Tensors of models with images, as ``ignored``: a text decoder uses none, and a tower may have layers after those that
are taken."""

WITH_IMAGES = (
    (r"^(model\.)?vision_tower\.(vision_model\.)?", "model.vision_tower."),
    (r"^(model\.)?multi_modal_projector\.", "model.multi_modal_projector."),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(language_model\.model|model\.language_model)\.", "model."),
)
"""The prefixes of a text decoder within a model with images, old and new, as ``aliases``."""


def even_head_dim(width: int, heads: int, width_key: str, heads_key: str) -> int:
    """Return the width of a head where all heads together are as wide as the model. Raises ModelError with the names of
    both fields."""
    if width % heads:
        raise ModelError(f"config.json: {width_key} {width} is not a multiple of {heads_key} {heads}")
    return width // heads
