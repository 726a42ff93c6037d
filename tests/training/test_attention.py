"""The recipe's attention, by plain products and by the AMX kernel, against PyTorch's in float32, with gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[2]))  # the recipe is run from the repository, never installed

from training import attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
ROUNDING = 2**-7  # of bfloat16, relative to the norm: of the inputs' products, and once more of weights and outputs


def heads(rows: int, count: int, length: int, *, seed: int) -> Tensor:
    """Heads of 32 numbers as the projections write them: [rows, heads, length, 32], a position's heads side by side."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(rows, length, count, attention.HEAD, generator=generator).bfloat16().transpose(1, 2)
    return made.requires_grad_()


def differences(measured: Attention, length: int) -> list[float]:
    """How far output and gradients are from those in float32, relative to their norms."""
    inputs = [heads(2, 4, length, seed=1), heads(2, 2, length, seed=2), heads(2, 2, length, seed=3)]
    slope = heads(2, 4, length, seed=4).detach()
    exact = [each.detach().float().requires_grad_() for each in inputs]
    found = measured(*inputs)
    expected = functional.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
    pairs = [(found, expected)]
    pairs += zip(
        torch.autograd.grad(found, inputs, slope), torch.autograd.grad(expected, exact, slope.float()), strict=True
    )
    return [float(((a.float() - b).norm() / b.norm()).detach()) for a, b in pairs]


@pytest.mark.parametrize("length", [3, 31, 96])
def test_plain_products_attend_as_pytorch_does(length: int) -> None:
    assert max(differences(attention.attended_plainly, length)) < ROUNDING


@pytest.mark.thorough
@pytest.mark.skipif(not attention.can_compile(), reason="needs AMX and a compiler")
def test_the_kernel_attends_as_pytorch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    attention.compile_kernel()
    monkeypatch.setattr(attention, "attended_plainly", None)  # so that nothing but the kernel can have answered
    for length in (32, 96, 512):
        assert max(differences(attention.attended, length)) < ROUNDING, length
        assert max(differences(torch.compile(attention.attended, dynamic=False), length)) < ROUNDING, length
