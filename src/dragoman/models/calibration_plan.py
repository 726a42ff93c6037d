"""What calibration of four bits asks of a model, and the matrices that it leaves at eight."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.models.description import ModelDescription
from dragoman.models.layout import packed_bytes, plan_layout
from dragoman.models.settings import ModelSettings
from dragoman.models.tensors import Format

LEAST_CALIBRATION_TOKENS = 512
FINER_SHARE = 0.05
"""Of the bytes of a model in four bits: what its finer matrices may add."""
_FINER_MODULES = ("attention_out", "mixer_out")
"""After calibration these cost most for their size (docs/performance.md has the figures)."""


def calibrated_formats(description: ModelDescription, settings: ModelSettings) -> dict[str, Format]:
    """Return the formats of the matrices that stay at int8 in a model calibrated in int4; none without calibration.

    Layer by layer from the last, where they err most, as long as they add less than ``FINER_SHARE``.
    Raises ModelError for a model or a precision that cannot be calibrated.
    """
    if not settings.calibrate:
        return {}
    _require_calibratable(description, settings)
    layout = plan_layout(description.spec, "int4")
    left, formats = FINER_SHARE * layout.nbytes, {}
    finer = Format("int8", wide=True)
    for entry in reversed(layout.entries):
        if entry.parameter.module not in _FINER_MODULES or entry.form is None or entry.form.precision != "iq4_nl":
            continue
        outputs, inputs = entry.parameter.shape
        left -= packed_bytes(outputs, inputs, finer) - entry.nbytes
        if left < 0:
            break
        formats[entry.parameter.name] = finer
    return formats


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
