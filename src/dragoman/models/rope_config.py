"""The rotary part of a ``config.json``, in its older and in its newer spelling.

Older configs have ``rope_theta``, ``partial_rotary_factor`` and a block ``rope_scaling`` as separate fields; newer
ones have a block ``rope_parameters`` with all of them, or one with such a block for each type of layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dragoman.core.errors import ModelError
from dragoman.models.config import DECODER_PARTS, Config
from dragoman.models.rope import Divided, Dynamic, Linear, Llama3, LongRope, Proportional, Rope, Scaling, Yarn

SCALINGS: dict[str, type[Scaling]] = {
    scaling.kind: scaling for scaling in (Scaling, Linear, Dynamic, Llama3, Yarn, LongRope, Divided, Proportional)
}

# Keys of a block without effect on the scalings: they repeat the type, or say how it was trained.
_INERT_KEYS = {"rope_type", "type", "rope_theta", "finetuned"}
# Keys whose 0 says as much as their absence, as transformers has it.
_NONE_AT_ZERO = {"mscale", "mscale_all_dim"}
_FACTORS = {"short_factor", "long_factor", "divisors"}


def read_rope(
    config: Config,
    head_dim: int,
    positions: int,
    *,
    theta: float = 10_000.0,
    partial: float | None = None,
    interleaved: bool = False,
) -> Rope:
    """Return the rotation that a config describes for all its layers.

    Args:
        positions: its ``max_position_embeddings``.
        theta, partial: the family's defaults; ``partial`` is None in a family that always rotates whole heads.
    """
    block = config.block("rope_scaling") or config.block("rope_parameters")
    if any(isinstance(value, dict) for value in block.values()):
        raise ModelError("config.json: rotary parameters for each layer type are not supported")
    return read_rope_block(config, block, head_dim, positions, theta=theta, partial=partial, interleaved=interleaved)


def read_rope_block(
    config: Config,
    block: Mapping[str, Any],
    head_dim: int,
    positions: int,
    *,
    theta: float,
    partial: float | None = None,
    interleaved: bool = False,
    original: object = None,
) -> Rope:
    """Return the rotation that one block describes; absent values are taken from the config or the default.

    ``original``: the family's ``original_max_position_embeddings``, if it is not in the block.
    """
    values = dict(block)
    theta = Config(values).number("rope_theta", config.number("rope_theta", theta))
    dim = head_dim
    if partial is not None:
        share = config.number("partial_rotary_factor", partial)
        share = Config(values).number("partial_rotary_factor", share)
        values.pop("partial_rotary_factor", None)
        dim = int(head_dim * share) if share <= 1 else 0
        if dim % 2 or not dim:
            raise ModelError(
                f"config.json: partial_rotary_factor {share:g} of heads of {head_dim} does not give pairs to rotate"
            )
    elif dim % 2:
        raise ModelError(f"config.json: head_dim {head_dim} is odd and cannot be rotated in pairs")
    original = original or config.value("original_max_position_embeddings")
    scaling = read_scaling(values, positions, original)
    for key in sorted(_FACTORS & set(scaling.__struct_fields__)):
        if (count := len(getattr(scaling, key))) != dim // 2:
            raise ModelError(
                f"config.json: rope scaling {scaling.kind!r}: {key} has {count} numbers for {dim // 2} pairs"
            )
    if isinstance(scaling, Proportional) and scaling.partial_rotary_factor > 1:
        raise ModelError(f"config.json: partial_rotary_factor {scaling.partial_rotary_factor:g} is more than a head")
    _check_context(scaling, positions)
    return Rope(theta, dim, scaling, interleaved)


def _check_context(scaling: Scaling, positions: int) -> None:
    try:
        fine = 1 <= scaling.context(positions) < 2**31
    except OverflowError:
        fine = False
    if not fine:
        raise ModelError(f"config.json: rope scaling {scaling.kind!r} of {positions} positions gives no usable context")


def blocks_by_layer_type(config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the blocks of layers with full attention, and of those with a window.

    In the older spelling a scaling applies only to the first, and ``rope_local_base_freq`` is the base of the
    second.
    """
    by_type, scaling = config.block("rope_parameters"), config.block("rope_scaling")
    if not any(isinstance(value, dict) for value in by_type.values()):
        by_type, scaling = {}, {**by_type, **scaling}
    of_types = Config(by_type, f"{config.where}: rope_parameters")
    full, sliding = (dict(of_types.block(kind)) for kind in ("full_attention", "sliding_attention"))
    if (local := config.value("rope_local_base_freq")) is not None:
        sliding.setdefault("rope_theta", local)
    return {**full, **scaling}, sliding


def with_scaling(config: dict[str, Any], scaling: Mapping[str, object]) -> dict[str, Any]:
    """Return a config with another rotary scaling; base frequencies and layers with windows are unchanged."""
    for part in DECODER_PARTS:
        if isinstance(inner := config.get(part), dict):
            return {**config, part: with_scaling(inner, scaling)}
    newer = Config(config).block("rope_parameters")
    if isinstance(newer.get("full_attention"), dict):
        full = newer["full_attention"]
        kept = {key: full[key] for key in ("rope_theta", "partial_rotary_factor") if key in full}
        return {**config, "rope_scaling": None, "rope_parameters": {**newer, "full_attention": {**kept, **scaling}}}
    before = Config(config).block("rope_scaling") or newer
    kept = {key: before[key] for key in ("rope_theta", "partial_rotary_factor") if key in before}
    return {**config, "rope_scaling": {**kept, **scaling}, "rope_parameters": None}


def read_scaling(block: dict[str, Any], max_positions: int, original: object = None) -> Scaling:
    """Return the scaling that a config's ``rope_scaling`` or ``rope_parameters`` block describes.

    ``max_positions`` is the config's ``max_position_embeddings``; ``original``, its own
    ``original_max_position_embeddings``, takes precedence over the block's.
    Raises ModelError on an unknown type, a missing or an unknown key.
    """
    kind = block.get("rope_type", block.get("type", "default"))
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise ModelError(f"config.json: rope scaling {kind!r} is not supported; known: {', '.join(SCALINGS)}")
    scaling = SCALINGS[kind]
    values = {key: value for key, value in block.items() if key not in _INERT_KEYS and value is not None}
    values = {key: value for key, value in values.items() if value != 0 or key not in _NONE_AT_ZERO}
    known = set(scaling.__struct_fields__) - {"long"}
    if scaling in (Dynamic, LongRope):
        values["max_position_embeddings"] = max_positions
    if "original_max_position_embeddings" in known:
        values["original_max_position_embeddings"] = (
            original or values.get("original_max_position_embeddings") or max_positions
        )
    else:
        values.pop("original_max_position_embeddings", None)  # some tools write it for every type; no effect here
    if values.get("partial_rotary_factor") in (None, 1, 1.0):
        values.pop("partial_rotary_factor", None)
    if unknown := sorted(values.keys() - known):
        raise ModelError(f"config.json: rope scaling {kind!r} with {', '.join(unknown)} is not supported")
    for key, value in values.items():
        if key in _FACTORS:
            values[key] = _numbers(kind, key, value)
        else:
            _check_number(kind, key, value)
    try:
        return scaling(**values)
    except TypeError as error:
        raise ModelError(f"config.json: rope scaling {kind!r} is incomplete: {error}") from None


def _numbers(kind: str, key: str, value: object) -> tuple[float, ...]:
    if not isinstance(value, list):
        raise ModelError(f"config.json: rope scaling {kind!r}: {key} must be a list of numbers")
    for number in value:
        _check_number(kind, key, number)
    return tuple(map(float, value))


def _check_number(kind: str, key: str, value: object) -> None:
    if key == "truncate":
        fine = isinstance(value, bool)
    else:
        fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    if not fine:
        raise ModelError(f"config.json: rope scaling {kind!r}: {key} must be a positive number, got {value!r}")
