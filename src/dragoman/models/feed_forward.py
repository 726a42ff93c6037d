"""Recording of what a feed-forward network has between its two products, and of mixtures of experts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from dragoman.models.packing import Weights
from dragoman.models.parameters import XIELU
from dragoman.models.recording import PartRecorder
from dragoman.models.spec import Experts

if TYPE_CHECKING:
    from dragoman.models.positions import Float32


def record_activation(recorder: PartRecorder, layer: int, narrow: int, wide: int) -> None:
    """Record narrow = act(gate) * up of the two halves of ``wide``, or without a gate wide = act(wide)."""
    spec, p = recorder.spec, recorder.program
    feed_forward = p.width(narrow)
    activation = spec.activation
    if activation == "xielu":
        _activate_xielu(recorder, layer, wide)
    elif spec.gated:
        if spec.altup and (deviations := spec.altup.deviations[layer]) is not None:
            p.keep_largest(wide, feed_forward, deviations)
        if spec.gate_factor != 1.0:
            p.scale(wide, spec.gate_factor, 0, feed_forward)
        p.gate(narrow, wide, activation)
    else:
        p.activate(wide, activation)


def _activate_xielu(recorder: PartRecorder, layer: int, x: int) -> None:
    """Record the trained activation. Its two curvatures are stored as what softplus makes positive."""
    positive, negative, linear, least = (float(recorder.weights.vector(module, layer)[0]) for module in XIELU)
    recorder.program.xielu(x, softplus(positive), linear + softplus(negative), linear, least)


def record_router_input(recorder: PartRecorder, layer: int, out: int, x: int) -> None:
    """Record out = norm(x) · scale / sqrt(width): the input of a router that has a norm of its own."""
    spec = recorder.spec
    scale = recorder.weights.vector("router_scale", layer) * np.float32(spec.width**-0.5)
    recorder.program.norm(out, x, scale, eps=spec.norm_eps)


def record_experts(
    recorder: PartRecorder,
    layer: int,
    out: int,
    x: int,
    experts: Experts,
    *,
    accumulate: bool = False,
    routing: int | None = None,
) -> None:
    """Record out (+)= the weighted sum of the networks that the router chooses for each row of x.

    ``routing``: the router's input, where it is not x.
    """
    matrix, bias, activation = recorder.weights.matrix, recorder.weights.bias, recorder.spec.activation
    assert activation != "xielu"
    shared = bool(experts.shared)
    inward = [matrix(f"expert_in.{expert}", layer) for expert in range(experts.count)]
    outward = [matrix(f"expert_out.{expert}", layer) for expert in range(experts.count)]
    recorder.program.experts(
        out,
        x,
        matrix("router", layer),
        [*inward, matrix("shared_expert_in", layer)] if shared else inward,
        [*outward, matrix("shared_expert_out", layer)] if shared else outward,
        active=experts.active,
        over_all=experts.over_all,
        shared=("gated" if experts.shared_gated else "added") if shared else None,
        gated=recorder.spec.gated,
        activation=activation,
        accumulate=accumulate,
        scores=experts.scores,
        choice_bias=bias("router_choice", layer),
        groups=experts.groups,
        active_groups=experts.active_groups,
        group_top=experts.group_top,
        least=experts.least,
        weight_factor=experts.factor,
        margin=experts.margin,
        scale_inputs=experts.scale_inputs,
        router_bias=bias("router", layer),
        biases=_expert_biases(recorder.weights, layer, experts) if experts.bias else None,
        routed=routing,
        expert_scales=recorder.weights.vector("expert_scale", layer) if experts.beside else None,
        identities=experts.identities,
    )


def _expert_biases(weights: Weights, layer: int, experts: Experts) -> tuple[list[Float32], list[Float32]]:
    inward, outward = (
        [weights[f"layers.{layer}.{module}.{expert}.bias"] for expert in range(experts.count)]
        for module in ("expert_in", "expert_out")
    )
    return inward, outward


def softplus(x: float) -> float:
    """Return ln(1 + exp(x))."""
    return math.log1p(math.exp(-abs(x))) + max(x, 0.0)
