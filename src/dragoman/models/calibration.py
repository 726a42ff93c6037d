"""Calibration of four bits without data: the model writes a text, and its products' inputs on it decide the rounding.

Of every matrix whose inputs can be read, the numbers (of IQ4_NL's table, or of five bits) are those that change its
outputs on that text least (``error_feedback``). The rest is packed as without calibration, and a warning says what that
is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.description import ModelDescription
from dragoman.models.error_feedback import MOST_INPUTS, inverse_factor, quantize_for_inputs
from dragoman.models.five_bits import round_to_five_bits
from dragoman.models.layout import Entry, Layout, plan_layout
from dragoman.models.memory import available_memory
from dragoman.models.packing import Weights, pack_checkpoint, pack_matrix
from dragoman.models.parameters import is_of_images
from dragoman.models.product_inputs import TextWriter
from dragoman.models.progress import CALIBRATING, Progress, part
from dragoman.models.settings import ModelSettings
from dragoman.models.step_buffers import activation_bytes
from dragoman.models.tensors import to_float32

_LOG = logging.getLogger("dragoman.models")

VERSION = 2
"""Of the method: what it packs has other bytes than that of any other version."""
_WEIGHTS_SHARE, _WRITTEN_SHARE = 0.1, 0.4  # of the progress, when weights are read, and the text is written


def calibration_name(tokens: int) -> str:
    """Return a name of the calibration, for digests of what it packs; empty without one."""
    return f"calibrated on {tokens} tokens, {VERSION}" if tokens else ""


def calibrated_matrices(
    described: ModelDescription, checkpoint: Checkpoint, layout: Layout, settings: ModelSettings, progress: Progress
) -> dict[str, NDArray[np.uint8]]:
    """Return the packed bytes of the matrices of a ``layout`` that can be calibrated, by their parameters' names.

    The text has ``settings.calibrate`` tokens, drawn with fixed seeds by the model at the precision of its files.
    Raises ModelError where that does not fit into memory.
    """
    wanted = {
        entry.parameter.name: entry
        for entry in layout.entries
        if entry.form and entry.form.precision in ("iq4_nl", "q5_k")
    }
    stored = plan_layout(described.spec, described.precision("auto"))
    _require_memory(described, settings, stored, layout)
    weights = Weights(stored, pack_checkpoint(checkpoint, stored, part(progress, 0.0, _WEIGHTS_SHARE)))
    first = next((token for token in (described.bos_token_id, *described.eos_token_ids) if token is not None), 0)
    writer = TextWriter(described.spec, weights, settings.calibrate, min(first, described.spec.vocab_size - 1))
    texts = writer.write(part(progress, _WEIGHTS_SHARE, _WRITTEN_SHARE))
    progress = part(progress, _WRITTEN_SHARE, 1.0)
    names = {
        id(weights[name]): name for name, entry in wanted.items() if not is_of_images(entry.parameter, described.spec)
    }
    found: dict[str, NDArray[np.uint8]] = {}
    for matrices, inputs in writer.inputs(texts):
        entries = [wanted[names[id(matrix)]] for matrix in matrices if id(matrix) in names]
        entries = [entry for entry in entries if entry.parameter.name not in found]
        if entries and inputs.shape[1] <= MOST_INPUTS:
            for name, packed in _round(checkpoint, entries, inputs):
                found[name] = packed
                progress(CALIBRATING, len(found) / len(wanted))
    _tell_of_others(wanted, found)
    return found


def _round(
    checkpoint: Checkpoint, entries: list[Entry], inputs: NDArray[np.float32]
) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Yield the packed bytes of matrices that have the same inputs ``[tokens, K]``."""
    factor = inverse_factor(inputs.T @ inputs / np.float32(len(inputs)))
    if factor is None:
        return
    for entry in entries:
        assert entry.form is not None
        weight = to_float32(checkpoint.read(entry.parameter))
        rounded = (quantize_for_inputs if entry.form.precision == "iq4_nl" else round_to_five_bits)(weight, factor)
        yield entry.parameter.name, pack_matrix(entry.form, rounded)


def _require_memory(described: ModelDescription, settings: ModelSettings, stored: Layout, layout: Layout) -> None:
    spec = described.spec
    rows = replace(settings, max_tokens=settings.calibrate, max_logit_rows=settings.max_sequences)
    shapes = [entry.parameter.shape for entry in layout.entries if entry.form and len(entry.parameter.shape) == 2]
    widest = min(MOST_INPUTS, max(inputs for _, inputs in shapes))
    largest = max(outputs * inputs for outputs, inputs in shapes)
    needed = stored.nbytes + layout.nbytes + activation_bytes(replace(spec, vision=None), rows)
    needed += 24 * widest**2 + 12 * largest  # H, its factors, and a matrix in float32 before and after
    available = available_memory()
    if needed > available:
        raise ModelError(
            f"--calibrate: {described.source.name} on {settings.calibrate} tokens takes {needed / 2**30:.1f} GiB of "
            f"memory, its weights as they are stored and what they make of all tokens, and {available / 2**30:.1f} GiB "
            "are free. Pack it on a larger machine, and copy its folder of packed weights, or leave --calibrate out"
        )


def _tell_of_others(wanted: Mapping[str, Entry], found: Mapping[str, NDArray[np.uint8]]) -> None:
    others = sorted({entry.parameter.module for name, entry in wanted.items() if name not in found})
    if others:
        _LOG.warning(
            "calibration: the inputs of %d of %d matrices cannot be read; these are packed without calibration: %s",
            len(wanted) - len(found),
            len(wanted),
            ", ".join(others),
        )
