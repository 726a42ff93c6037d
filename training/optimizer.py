"""Optimizers: AdamW for everything, or Muon for the matrices of the layers with AdamW for the rest."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from training.model import Llama

ADAMW_PEAK = 2e-3
MUON_PEAK = 2e-2
WEIGHT_DECAY = 0.1


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal before each step (Jordan et al., 2024).

    Group keys: `lr`, and `momentum` of the running mean of gradients, which is used with Nesterov's look-ahead. Weight
    decay is decoupled. A step's size is scaled by sqrt(max(1, rows / columns)), so that one rate fits all shapes.
    """

    def __init__(self, parameters: list[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": WEIGHT_DECAY})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        del closure
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    by_shape.setdefault(weight.shape, []).append(weight)
            for (rows, columns), weights in by_shape.items():
                # All matrices of a shape at once: one after another, a GPU would wait for each small product.
                updates = orthogonal(torch.stack([self._ahead(weight, group["momentum"]) for weight in weights]))
                rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
                for weight, update in zip(weights, updates.unbind(), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(update, alpha=-rate)

    def _ahead(self, weight: Tensor, momentum: float) -> Tensor:
        """The running mean of the weight's gradients, moved on by this one, and once more ahead."""
        assert weight.grad is not None
        state: dict[str, Any] = self.state[weight]
        mean = state.setdefault("mean", torch.zeros_like(weight))
        mean.lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(mean, momentum)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Matrices [count, rows, columns] with all their singular values near one, by a Newton-Schulz iteration of fifth
    order in bfloat16.

    The coefficients are those of Jordan et al.: they leave the values between about 0.7 and 1.2, which is enough.
    """
    first, second, third = 3.4445, -4.7750, 2.0315
    found = matrices.bfloat16()
    is_tall = found.shape[-2] > found.shape[-1]
    found = found.mT.contiguous() if is_tall else found
    found = found / (found.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = found @ found.mT
        factor = torch.baddbmm(square, square, square, beta=second, alpha=third)
        found = torch.baddbmm(found, factor, found, beta=first)
    return (found.mT if is_tall else found).to(matrices.dtype)


class Together(torch.optim.Optimizer):
    """Several optimizers as one: their groups in a row, one state."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        self.peaks = [group["lr"] for part in parts for group in part.param_groups]

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        del closure
        for part in self.parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def set_rate(self, share: float) -> None:
        """Set every group's learning rate to this share of its peak."""
        for group, peak in zip(self.param_groups, self.peaks, strict=True):
            group["lr"] = peak * share

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)


def optimizer_of(model: Llama, kind: str, *, rate: float = 1.0) -> Together:
    """The optimizer `adamw` or `muon` of the model; `rate` scales the peaks of all learning rates."""
    embeddings = [parameter for name, parameter in model.named_parameters() if "embed" in name]
    matrices = [p for name, p in model.named_parameters() if p.dim() > 1 and "embed" not in name]
    gains = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    muon = [Muon(matrices, MUON_PEAK * rate)] if kind == "muon" else []
    decayed = embeddings if muon else [*embeddings, *matrices]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": gains, "weight_decay": 0.0}]
    return Together([*muon, torch.optim.AdamW(groups, lr=ADAMW_PEAK * rate, betas=(0.9, 0.95), fused=True)])
