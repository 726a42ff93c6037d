"""The model: a small Llama, its parameters named as in Hugging Face checkpoints."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.attention import attended


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 640
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 32
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @classmethod
    def of_size(cls, size: str) -> "ModelConfig":
        """The model for a processor (`small`, 5.2 million parameters) or for a GPU (`wide`, 14.2 million), or one that
        guesses what the small one says (`draft`, 1.7 million)."""
        if size == "draft":
            return cls(intermediate_size=192, num_hidden_layers=2)
        if size == "small":
            return cls()
        return cls(hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=12)

    @classmethod
    def of_folder(cls, folder: Path) -> "ModelConfig":
        """The model that an exported folder describes."""
        described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return cls(**{field.name: described[field.name] for field in fields(cls)})

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        rows, length, _ = hidden.shape
        heads = (rows, length, -1, self.config.head_dim)
        query = rotated(self.q_proj(hidden).view(heads).transpose(1, 2), cosines, sines)
        key = rotated(self.k_proj(hidden).view(heads).transpose(1, 2), cosines, sines)
        value = self.v_proj(hidden).view(heads).transpose(1, 2)
        seen = attended(query, key, value).transpose(1, 2).reshape(rows, length, -1)
        projected: Tensor = self.o_proj(seen)
        return projected


class FeedForward(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden))
        return projected


class Layer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), cosines, sines)
        after: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return after


class Decoder(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, ids: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        hidden = self.embed_tokens(ids)
        for layer in self.layers:
            hidden = layer(hidden, cosines, sines)
        normed: Tensor = self.norm(hidden)
        return normed


class Llama(nn.Module):
    """Token ids [rows, length] to logits [rows, length, vocabulary]; input and output embeddings are tied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        cosines, sines = rotations(config)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.apply(self._initialise)
        for layer in self.model.layers:
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                # Each layer adds to the residual stream twice; smaller outputs keep its variance near one.
                layer.get_submodule(name).weight.data.mul_((2 * config.num_hidden_layers) ** -0.5)  # type: ignore[operator]

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        hidden = self.model(ids, self.cosines[:length], self.sines[:length])  # type: ignore[index]
        return functional.linear(hidden, self.model.embed_tokens.weight)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def rotations(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context, head_dim] of rotary positions (Su et al., 2021), in Llama's half-split layout."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    angles = torch.outer(torch.arange(config.max_position_embeddings).float(), config.rope_theta**-exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (heads * cosines + turned * sines).to(heads.dtype)
