"""The weighted loss of rows, and its value on held-out rows."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from training.feeder import Batch, as_arrays
from training.model import Llama
from training.rows import RowMaker


def as_tensors(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids [rows, length + 1] and the weights [rows, length] of the targets."""
    ids = torch.from_numpy(batch[0].astype(np.int64)).to(device, non_blocking=True)
    weights = torch.from_numpy(batch[1][:, 1:].astype(np.float32)).to(device, non_blocking=True)
    return ids, weights


def weighted_loss(model: Llama, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean negative log-likelihood (nats) per unit of target weight."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        logits = model(ids[:, :-1])
    losses = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def distilled_loss(model: Llama, teacher: Llama, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy (nats) per unit of target weight between what the teacher expects at each place and what the
    model does (Hinton et al., 2015)."""
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        with torch.no_grad():
            expected = teacher(ids[:, :-1]).float().softmax(-1)
        logits = model(ids[:, :-1])
    losses = functional.cross_entropy(logits.float().flatten(0, 1), expected.flatten(0, 1), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


@torch.no_grad()
def held_out_loss(model: Llama, rows: RowMaker, kind: str, *, count: int, length: int, device: torch.device) -> float:
    """Nats per token over `count` rows: of all tokens for prose, of what is to be answered for the rest."""
    total = weight = 0.0
    for place in range(count):
        ids, weights = as_tensors(as_arrays([rows.row(0, place, length, kind)]), device)
        asked = (weights == 1.0).float()
        total += float(weighted_loss(model, ids, asked) * asked.sum())
        weight += float(asked.sum())
    return total / weight
