"""Checkpoints written by transformers itself: a random model of a config, saved as it saves any."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

Config = dict[str, Any]

_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def make_model(folder: Path, config: Config, *, dtype: str, seed: int, std: float, **saving: Any) -> None:
    """Weights are normal with deviation ``std``, norms the same around what changes nothing.

    ``config.json`` is the config as it is given.
    ``saving``: of ``save_pretrained``. Tests that need it are skipped where torch is not.
    """
    torch = pytest.importorskip("torch")
    random = torch.Generator().manual_seed(seed)
    model = _model(config, "cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            neutral = 1.0 if name.endswith("weight") and bool((parameter == 1).all()) else 0.0
            parameter.normal_(neutral, std, generator=random)
    model.to(getattr(torch, _TYPES[dtype])).save_pretrained(folder, **saving)
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": _TYPES[dtype]}, indent=1))


def parameter_count(config: Config) -> int:
    """Numbers in the parameters of transformers' own model, without what it sees images with."""
    parameters = _model(config, "meta").named_parameters()
    return int(sum(p.numel() for name, p in parameters if not re.search("vision_tower|multi_modal_projector", name)))


def _model(config: Config, device: str) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device(device):
        made = transformers.AutoConfig.for_model(**copy.deepcopy(config))
        return transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32)
