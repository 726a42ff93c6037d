"""Ling's linear layers: transformers has no class for them, so its GLM-4.5 and DeepSeek V3 with them in attention's
place are the witnesses. They are written here as the published formula has them for all positions at once: no state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from small_models import VARIANTS, Config, make_folder, prompt, run_greedy, run_rows
from test_own_code import SETTINGS, Tensors, ling
from test_truth_rounded import assert_equals_numpy, loaded
from text_part_variants import UNMADE
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeRMSNorm, apply_rotary_pos_emb
from transformers_reference import assert_close, load_reference, reference_confirms

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.families import read_spec
from dragoman.models.recurrent import LightningAttention
from dragoman.models.settings import Precision

_LINEAR = (0, 1)
_LAYERS, _HEADS, _DIM, _GROUPS = 4, 6, 24, 3
_SIZES: Config = {"num_hidden_layers": _LAYERS, "num_attention_heads": _HEADS, "n_group": 3, "topk_group": 2}
_SIZES |= {"attention_bias": False, "first_k_dense_replace": 1}
_LATENT = {name: UNMADE["ling-hybrid"][name] for name in ("q_lora_rank", "kv_lora_rank", "v_head_dim")}
_LATENT |= {name: UNMADE["ling-hybrid"][name] for name in ("qk_rope_head_dim", "qk_nope_head_dim")}

# Of each kind: transformers' config.
_CASES: dict[str, Config] = {
    "ling-linear": VARIANTS["glm4-moe"] | _SIZES | {"rms_norm_eps": 1e-5},
    "ling-hybrid": VARIANTS["deepseek-v3"]
    | _SIZES
    | _LATENT
    | {"num_key_value_heads": _HEADS, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    | {"n_routed_experts": 6, "num_local_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 2}
    | {"routed_scaling_factor": 1.5, "rms_norm_eps": 1e-6},
}


def _slopes(heads: int) -> list[float]:
    """By ALiBi's recursion for any number of heads."""
    closest = 2 ** int(np.log2(heads))
    if closest == heads:
        return [2.0 ** (-8 / heads * (head + 1)) for head in range(heads)]
    return _slopes(closest) + _slopes(2 * closest)[::2][: heads - closest]


class _LinearAttention(torch.nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        width, inner = config.hidden_size, _HEADS * _DIM
        self.query_key_value = torch.nn.Linear(width, 3 * inner, bias=False)
        self.query_layernorm = Glm4MoeRMSNorm(_DIM, config.rms_norm_eps)
        self.key_layernorm = Glm4MoeRMSNorm(_DIM, config.rms_norm_eps)
        self.g_proj = torch.nn.Linear(width, inner, bias=False)
        self.g_norm = Glm4MoeRMSNorm(inner, config.rms_norm_eps)
        self.dense = torch.nn.Linear(inner, width, bias=False)
        factor = 1 - (layer - 1) / (_LAYERS - 1) + 1e-5
        self.register_buffer("slope", torch.tensor(_slopes(_HEADS)) * factor, persistent=False)

    def forward(self, hidden_states: Any, position_embeddings: Any, **unused: Any) -> tuple[Any, None]:
        (batch, count, _), slope = hidden_states.shape, self.slope
        q, k, v = self.query_key_value(hidden_states).view(batch, count, 3, _HEADS, _DIM).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary_pos_emb(self.query_layernorm(q), self.key_layernorm(k), *position_embeddings)
        distance = torch.arange(count)[:, None] - torch.arange(count)
        decay = torch.where(distance >= 0, torch.exp(-slope[:, None, None] * distance.clamp(min=0)), 0.0)
        mixed = (q @ k.transpose(-1, -2) * _DIM**-0.5 * decay) @ v
        parts = mixed.transpose(1, 2).reshape(batch, count, _GROUPS, -1)
        normed = parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.g_norm.variance_epsilon)
        normed = normed.view(batch, count, -1) * self.g_norm.weight
        return self.dense(normed * torch.sigmoid(self.g_proj(hidden_states))), None


def _published(tensors: Tensors) -> Tensors:
    """The tensors under the published names."""
    linear = re.compile(r"layers\.(" + "|".join(map(str, _LINEAR)) + r")\.self_attn\.")
    mixers = {name.replace("self_attn", "attention"): each for name, each in tensors.items() if linear.search(name)}
    others = {name: each for name, each in tensors.items() if not linear.search(name)}
    found = ling(others, {"num_hidden_layers": _LAYERS}) | mixers
    return {name.replace("self_attn", "attention"): tensor for name, tensor in found.items()}


def _make(root: Path, kind: str) -> tuple[Path, Any]:
    """A folder of the model, and the witness."""
    folder = make_folder(root, _CASES[kind])
    theirs = load_reference(folder)
    generator = torch.Generator().manual_seed(5)
    for layer in _LINEAR:
        module = _LinearAttention(theirs.config, layer)
        with torch.no_grad():
            for name, weight in module.named_parameters():
                weight.normal_(1.0 if "norm" in name else 0.0, 0.15, generator=generator)
        theirs.model.layers[layer].self_attn = module
    stored = {name: np.asarray(each.detach()) for name, each in theirs.state_dict().items()}
    [file] = folder.glob("*.safetensors")
    save_file(_published(_experts_apart(stored)), file)
    (folder / "config.json").write_text(json.dumps(UNMADE[kind]))
    return folder, theirs


def _experts_apart(tensors: Tensors) -> Tensors:
    """transformers keeps the experts of a layer in one tensor, which files have one by one."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        start, _, what = name.rpartition(".experts.")
        if not start or "shared" in name:
            found[name] = tensor
            continue
        for expert, matrix in enumerate(tensor):
            halves = np.split(matrix, 2) if what == "gate_up_proj" else [matrix]
            names = ("gate_proj", "up_proj") if what == "gate_up_proj" else ("down_proj",)
            for each, half in zip(names, halves, strict=True):
                found[f"{start}.experts.{expert}.{each}.weight"] = np.ascontiguousarray(half)
    return found


@pytest.mark.parametrize("kind", _CASES)
def test_it_has_the_numbers_of_the_published_formula(kind: str, tmp_path: Path) -> None:
    folder, theirs = _make(tmp_path, kind)
    ours = models.load(folder, SETTINGS)
    ids = prompt(UNMADE[kind]["vocab_size"])
    expected = reference_confirms(theirs, ids, run_greedy(ours, ids, 64))
    assert_close(run_rows(ours, ids), expected, 1e-4)


@pytest.mark.parametrize("kind", _CASES)
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_it_has_the_same_numbers_in_numpy(precision: Precision, kind: str, tmp_path: Path) -> None:
    assert_equals_numpy(loaded(_make(tmp_path, kind)[0], precision), precision)


def test_attention_ends_each_group_and_follows_the_last_whole_one() -> None:
    def full(**changes: int) -> list[int]:
        spec = read_spec(UNMADE["ling-linear"] | changes)
        return [layer for layer in range(spec.layers) if not isinstance(spec.mixer(layer), LightningAttention)]

    assert full(num_hidden_layers=20, layer_group_size=5) == [4, 9, 14, 19]
    assert full(num_hidden_layers=22, layer_group_size=5) == [4, 9, 14, 19, 20, 21]
    assert full(num_hidden_layers=3, layer_group_size=5) == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("ling-linear", "linear_silu", True),
        ("ling-linear", "group_norm_size", 4),
        ("ling-linear", "group_norm_size", 0),
        ("ling-linear", "layer_group_size", -1),
        ("ling-hybrid", "linear_silu", True),
        ("ling-hybrid", "rope_interleave", False),
        ("ling-hybrid", "partial_rotary_factor", 1.0),
        ("ling-hybrid", "use_qkv_bias", True),
        ("ling-hybrid", "use_bias", True),
    ],
)
def test_other_mathematics_are_refused_by_name(kind: str, field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field):
        read_spec(UNMADE[kind] | {field: value})
