"""Heads: a layer that guesses one token more than its decoder, as a program of its own. It is part of the decoder's
checkpoint, or an EAGLE-3 head, which has a checkpoint of its own."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman import kernels
from dragoman.core.errors import ModelError
from dragoman.models.batch import Batch, PoolSize
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.decoder import Recorder
from dragoman.models.draft import HEAD_KV_PRECISION, describe_head, head_blocks
from dragoman.models.families import FAMILIES
from dragoman.models.families.family import MTP_AFTER_LAYERS, Family
from dragoman.models.head_program import AuxStatesRecorder, EagleRecorder, HeadRecorder
from dragoman.models.head_spec import EagleSpec, HeadSpec
from dragoman.models.kv_groups import BLOCK_TOKENS
from dragoman.models.packing import Weights
from dragoman.models.recording import StepLimits
from dragoman.models.settings import ModelSettings
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import Tensor, TensorFiles

_MODULES: dict[str, tuple[str, ...]] = {
    "hidden_in": ("hidden_in",),
    "hidden_norm": ("hidden_norm",),
    "token_norm": ("token_norm",),
}


def build_program_for_head(
    spec: DecoderSpec,
    weights: Weights,
    kv: kernels.KVPool,
    limits: StepLimits,
    states: kernels.StatePool | None = None,
    eagle: tuple[EagleSpec, Weights] | None = None,
) -> tuple[kernels.Program, int]:
    """Record the decoder so that what a head reads of all rows can be read after a run: the hidden states after the
    last norm, or, with an ``eagle``, those that such a head makes of the stream at three depths.

    Returns the program, and the buffer that then has them. Logits are the same to the last bit: every row is computed
    by the same operations, and the rows whose logits are wanted are chosen at the end.
    """
    program, context = limits.program(kv, states), limits.context
    if eagle is not None:
        return program, AuxStatesRecorder(spec, weights, program, context, *eagle).record_with_states()
    return program, Recorder(spec, weights, program, context, keeps_rows=True).record_with_hidden()


def head_checkpoint(files: TensorFiles, spec: DecoderSpec, name: str) -> Checkpoint:
    """Return the parameters of a decoder's head among the tensors of its files.

    ``name``: of the model. Raises ModelError where the files have no head, or one that does not fit.
    """
    family, own = FAMILIES[spec.architecture], describe_head(spec, name)
    tensors = _renamed(files, family, spec.layers)
    if not tensors:
        raise ModelError(
            f"--draft-heads: {name} has no layer that guesses further tokens among its weights; serve it without"
        )
    own_family = replace(
        family,
        names={**family.names, **_MODULES},
        aliases=(),
        ignored=re.compile(".*"),
        unused=lambda spec: frozenset(),
    )
    return Checkpoint(replace(files, tensors=tensors), own_family, own)


def _renamed(files: TensorFiles, family: Family, layers: int) -> dict[str, Tensor]:
    """Return the tensors of the head under the names of a decoder of one layer."""
    names, stored_tensors = family.head, files.tensors
    if files.mtp_layer is not None:
        names, stored_tensors = MTP_AFTER_LAYERS, files.mtp_layer()
    assert names is not None
    singles = {
        names.joined: "hidden_in",
        names.token_norm: "token_norm",
        names.hidden_norm: "hidden_norm",
        names.final_norm: family.names["final_norm"][0],
    }
    found: dict[str, Tensor] = {}
    layer = names.layer.format(layers=layers)
    for stored, tensor in stored_tensors.items():
        short = family.canonical(stored).removeprefix(family.base)
        module, _, kind = short.rpartition(".")
        single = next((new for old, new in singles.items() if old.format(layers=layers) == module), None)
        if single is not None:
            found[f"{single}.{kind}"] = tensor
        elif short.startswith(layer):
            found[f"{family.base}layers.0.{short.removeprefix(layer)}"] = tensor
    return found


class DraftHead:
    """A loaded head, with its own blocks of keys and values.

    Attributes:
        width: numbers of a hidden state. block_size: tokens of a block. pools: its blocks.
        max_context: positions of a sequence. max_tokens: rows of one run, of which ``max_logit_rows`` may have logits.
        vocab_size: tokens of its decoder. target_ids: those of its logits, where it guesses among fewer; None: all.
    """

    block_size = BLOCK_TOKENS

    def __init__(
        self,
        spec: HeadSpec | EagleSpec,
        weights: Weights,
        settings: ModelSettings,
        context: int,
        target_ids: NDArray[np.int32] | None = None,
    ) -> None:
        """``weights``: with the tables of its decoder. ``settings``: of that, whose limits of a step it has."""
        self.spec, self.width, self.target_ids = spec, spec.width, target_ids
        self.vocab_size = spec.target_vocab if isinstance(spec, EagleSpec) else spec.vocab_size
        self.weights, self.max_context, self.max_tokens = weights, context, settings.max_tokens
        self.max_logit_rows = settings.max_logit_rows
        self.pools = (PoolSize(0, head_blocks(context)),)
        self.kv = kernels.KVPool(
            layers=1,
            blocks=head_blocks(context),
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            precision=HEAD_KV_PRECISION,
            latent=spec.latent.rank if spec.latent else 0,
        )
        self.program = kernels.Program(
            max_tokens=settings.max_tokens,
            max_sequences=settings.max_sequences,
            max_logit_rows=settings.max_logit_rows,
            kv=self.kv,
        )
        recorder = EagleRecorder if isinstance(spec, EagleSpec) else HeadRecorder
        self._fed = recorder(spec, weights, self.program, context).record_head()

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None) -> NDArray[np.float32]:
        """Return the logits of the token after each row's own, ``[len(batch.logit_rows), vocab_size]``, or of the
        ``target_ids`` alone.

        Each row has the token after a position as its token, and as its given embedding the hidden state of that
        position.
        """
        return self.program.run(*batch, meanwhile)

    def hidden(self, rows: int) -> NDArray[np.float32]:
        """Return what the first rows of the last run's logits give to the next guess, ``[rows, width]``; overwritten
        by the next run."""
        return self.program.rows(self._fed, rows)
