"""What calibration of four bits asks of a model, and the matrices that it leaves finer."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.models.description import ModelDescription
from dragoman.models.layout import packed_bytes, plan_layout
from dragoman.models.parameter import Parameter
from dragoman.models.settings import ModelSettings
from dragoman.models.tensors import BLOCK_SIZES, Format

LEAST_CALIBRATION_TOKENS = 512
FINER_SHARE = 0.05
"""Of the bytes of a model in four bits: what its finer matrices may add."""
_ATTENTION = ("attention_out", "qkv", "query", "query_key", "mixer_out", "mixer_in")
_FINER_MODULES = (*_ATTENTION, "feed_forward_in")


def calibrated_formats(description: ModelDescription, settings: ModelSettings) -> dict[str, Format]:
    """Return the formats of the matrices that are finer than four bits in a model calibrated in int4; none without
    calibration.

    They have five bits, or eight where their rows are not whole blocks of five: those of the last layer first, and
    the first one of the feed-forward network in the first layer; then those of attention and of recurrences, layer by
    layer from the last, then the first ones of other feed-forward networks: as many as add less than ``FINER_SHARE``.
    Errors there change the probabilities most (docs/performance.md has the figures).
    Raises ModelError for a model or a precision that cannot be calibrated.
    """
    if not settings.calibrate:
        return {}
    _require_calibratable(description, settings)
    layout = plan_layout(description.spec, "int4")
    left, formats = FINER_SHARE * layout.nbytes, {}
    for entry in sorted(layout.entries, key=lambda entry: _place(entry.parameter, description.spec.layers)):
        if entry.parameter.module not in _FINER_MODULES or entry.form is None or entry.form.precision != "iq4_nl":
            continue
        outputs, inputs = entry.parameter.shape
        finer = Format("int8", wide=True) if inputs % BLOCK_SIZES["q5_k"][0] else Format("q5_k")
        added = packed_bytes(outputs, inputs, finer) - entry.nbytes
        if added < left:
            left -= added
            formats[entry.parameter.name] = finer
    return formats


def _place(parameter: Parameter, layers: int) -> tuple[int, int]:
    """Return a matrix's place among those that may be finer."""
    layer, is_attention = parameter.layer or 0, parameter.module in _ATTENTION
    if layer == layers - 1:
        return 0, 0
    if layer == 0 and not is_attention:
        return 1, 0
    return (2 if is_attention else 3), -layer


def _require_calibratable(description: ModelDescription, settings: ModelSettings) -> None:
    name, spec = description.source.name, description.spec
    reason = ""
    if settings.precision != "int4":
        reason = f"it is for weights in int4, not in {settings.precision}; add --precision int4"
    elif description.formats:
        reason = f"{name} is quantized already ({description.quantized_as}); calibrate the model that it was made of"
    elif not spec.causal or spec.encoder is not None:
        reason = f"{name} writes no text by itself, and calibration needs one"
    elif settings.calibrate < LEAST_CALIBRATION_TOKENS:
        reason = f"{settings.calibrate} tokens say too little; at least {LEAST_CALIBRATION_TOKENS}, 4096 are enough"
    if reason:
        raise ModelError(f"--calibrate: {reason}")
