"""Layers that guess one token more in GGUF files: what they say is what the same layer of a checkpoint says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_cases import describe_all, rename_choice
from gguf_files import Weights, write_gguf
from test_gguf_hybrids import change_qwen, describe_qwen, rename
from test_gguf_latent import CASES as LATENT
from test_gguf_latent import divide_latents
from test_gguf_mixtures import CASES as MIXTURES
from transformers_reference import transformers

from dragoman.core.errors import ModelError
from dragoman.models import ModelSettings, draft_head, load
from dragoman.models.batch import Batch, tables_of_one
from dragoman.models.model import Model

sys.path.append(str(Path(__file__).parent.parent / "engine"))
from tiny_model import DEEPSEEK_V3, GLM4_MOE, QWEN35, make_tiny_head

LAYERS, TOKENS = 3, 40
V3 = DEEPSEEK_V3 | {"qk_nope_head_dim": 10}
INDEX = {"index_topk": 1024, "index_n_heads": 2, "index_head_dim": 16}
V32 = V3 | INDEX | {"architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32"}
GATHER = {"glm4moe": rename_choice, "qwen35": rename, "deepseek2": divide_latents, "glm-dsa": divide_latents}
NAMES = {
    "eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm",
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(draft_head, "HEAD_KV_PRECISION", "float32")


def as_block(weights: Weights, arch: str) -> Weights:
    """The further layer's tensors as the converter names them: those of a block after the decoder's."""
    number = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, 1)
    found: Weights = {}
    for name, value in GATHER[arch](weights).items():
        name = name.replace(".bias.bias", ".bias")
        inner = name.removeprefix(f"model.layers.{LAYERS}.").removeprefix("mtp.").removeprefix("layers.0.")
        module, _, kind = inner.rpartition(".")
        if not name.startswith((f"model.layers.{LAYERS}.", "mtp.")):
            found[name] = value
        elif module in NAMES:
            found[f"blk.{LAYERS}.nextn.{NAMES[module]}.{kind}"] = value
        else:
            stored = names.get_name(f"model.layers.0.{inner}", try_suffixes=(".weight", ".bias"))
            assert stored is not None, name
            found[stored.replace("blk.0.", f"blk.{LAYERS}.")] = value
    return found


def describe_glm(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_all(MIXTURES["glm4moe"], config)(writer, {})


def describe_v3(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_all(LATENT["deepseek2-v3"], config)(writer, {})


def describe_v32(writer: gguf.GGUFWriter, config: Any) -> None:
    describe_all(LATENT["deepseek32"], config)(writer, {})


def with_head(describe: Callable[..., None], config: Any) -> Callable[..., None]:
    def described(writer: gguf.GGUFWriter, _: dict[str, Any]) -> None:
        describe(writer, config)
        writer.add_block_count(LAYERS + 1)
        writer.add_nextn_predict_layers(1)

    return described


def write(folder: Path, arch: str, describe: Callable[..., None], kind: Type = Type.F32, **options: Any) -> Path:
    config = transformers.AutoConfig.from_pretrained(folder)
    gather = lambda weights: as_block(weights, options.get("names_of", arch))  # noqa: E731
    path = folder / "model.gguf"
    return write_gguf(path, folder, arch, lambda name: kind, with_head(describe, config), gather=gather, **options)


def guesses(model: Model) -> np.ndarray:
    """The head's logits of a text, with hidden states that are drawn."""
    head = model.head
    assert head is not None
    rng, rows = np.random.default_rng(4), np.arange(TOKENS, dtype=np.int32)
    ids = rng.integers(0, 199, TOKENS).astype(np.int32)
    hidden = rng.normal(size=(TOKENS, head.width)).astype(np.float32)
    return head.run(Batch(ids, rows, np.array([0, TOKENS], np.int32), tables_of_one(head.pools, 2), rows, rows, hidden))


def opened(source: Path) -> Model:
    settings = ModelSettings(precision="float32", max_context=64, max_tokens=64, cache_bytes=0)
    return load(source, settings, head_context=64)


# llama.cpp's converter leaves the layer of DeepSeek V3 out, and keeps that of others with the same blocks.
@pytest.mark.parametrize("name", ["glm4moe", "qwen35", "deepseek2", "deepseek32"])
def test_what_it_guesses_is_what_the_checkpoint_guesses(name: str, tmp_path: Path) -> None:
    config, describe, options = {
        "glm4moe": (GLM4_MOE, describe_glm, {}),
        "qwen35": (QWEN35, describe_qwen, {"change": change_qwen}),
        "deepseek2": (V3, describe_v3, {}),
        "deepseek32": (V32, describe_v32, {"names_of": "glm-dsa"}),
    }[name]
    folder = make_tiny_head(tmp_path, config)
    expected = guesses(opened(folder)).copy()
    found = guesses(opened(write(folder, name, describe, **options)))
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    assert np.abs(expected).max() > 1


def test_a_file_without_it_is_refused_with_the_option(tmp_path: Path) -> None:
    folder = make_tiny_head(tmp_path, GLM4_MOE)
    config = transformers.AutoConfig.from_pretrained(folder)

    def gather(weights: Weights) -> Weights:
        kept = {n: v for n, v in weights.items() if not n.startswith(f"model.layers.{LAYERS}.")}
        return as_block(kept, "glm4moe")

    describe = lambda writer, _: describe_glm(writer, config)  # noqa: E731
    file = write_gguf(folder / "model.gguf", folder, "glm4moe", lambda name: Type.F32, describe, gather=gather)
    with pytest.raises(ModelError, match=r"--draft-heads: .* has no layer that guesses further tokens"):
        opened(file)
