"""Checkpoints of a training run, written so that a kill at any moment leaves a whole one."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from training.model import Llama, ModelConfig

FILE_NAME = "checkpoint.pt"


@dataclass
class Position:
    """Where a run stands. Rows are functions of seed and step, so no random state is kept beside the step."""

    step: int = 0
    tokens: int = 0
    progress: float = 0.0  # of the learning-rate schedule, 0 to 1


def save_checkpoint(folder: Path, model: Llama, optimizer: torch.optim.Optimizer, position: Position) -> None:
    state = {
        "config": model.config.as_dict(),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "position": asdict(position),
    }
    unfinished = folder / f"{FILE_NAME}.new"
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(folder / FILE_NAME)


def load_checkpoint(folder: Path, model: Llama, optimizer: torch.optim.Optimizer | None = None) -> Position:
    """Restores the folder's checkpoint in place; a folder without one is at the start."""
    path = folder / FILE_NAME
    if not path.exists():
        return Position()
    device = next(model.parameters()).device
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    return Position(**state["position"])


def saved_config(folder: Path) -> ModelConfig:
    """The shape of the model in the folder's checkpoint."""
    state: dict[str, Any] = torch.load(folder / FILE_NAME, map_location="cpu", weights_only=True)
    return ModelConfig(**state["config"])
