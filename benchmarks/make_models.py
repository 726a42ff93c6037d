#!/usr/bin/env python3
"""Make random-weight models on disk, in Hugging Face layout, when no real one is available.

The weights are normal random numbers, so speed and memory are those of the real shape and the text is random. The
tokenizer is a byte-level BPE trained on the Python standard library's source and filled up to the vocabulary with
tokens that never occur. Equal arguments give equal bytes. Needs numpy and tokenizers.

    python benchmarks/make_models.py --out models                      # every shape
    python benchmarks/make_models.py --out models --only llama-3.2-1b
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Config = dict[str, Any]

SHAPES: dict[str, Config] = {
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "use_sliding_window": False,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True,
    },
    "tiny": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 288,
        "num_hidden_layers": 6,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "intermediate_size": 768,
        "vocab_size": 4096,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    },
}

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_model(
    folder: Path,
    config: Config,
    *,
    seed: int = 0,
    std: float = 0.02,
    dtype: str = "BF16",
    shard_bytes: int | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> None:
    """Write ``config.json``, ``generation_config.json`` and the weights; ``dtype`` is BF16, F16 or F32.

    Weights are normal with deviation ``std``, norms the same around 1; blocks of MXFP4 are random, and the offsets
    ``d2t`` of an EAGLE-3 head are 0. ``shard_bytes`` splits them into several files with an index. ``shapes``: of the
    checkpoint's tensors, where ``tensor_shapes`` does not know the family.
    """
    folder.mkdir(parents=True, exist_ok=True)
    eos = config.get("eos_token_id", config["vocab_size"] - len(_SPECIAL))
    config = {"torch_dtype": _TORCH_NAMES[dtype], "bos_token_id": eos, "eos_token_id": eos} | config
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    ends = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(ends, indent=1))
    shapes = shapes or tensor_shapes(config)
    random = np.random.default_rng(seed)
    shards = list(_split(shapes, _WIDTHS[dtype], shard_bytes))
    if len(shards) == 1:
        _write_safetensors(folder / "model.safetensors", shapes, random, std, dtype)
        return
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_safetensors(folder / name, shard, random, std, dtype)
        weight_map |= dict.fromkeys(shard, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def tensor_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, as transformers names them."""
    return _gpt2_shapes(config) if config["model_type"] == "gpt2" else _llama_shapes(config)


def _llama_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    width, heads, inner = c["hidden_size"], c["num_attention_heads"], c["intermediate_size"]
    head: int = c.get("head_dim") or (128 if c["model_type"] == "qwen3" else width // heads)
    queries, keys = heads * head, (c.get("num_key_value_heads") or heads) * head
    qkv_bias = c["model_type"] == "qwen2" or c.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c["vocab_size"], width)}

    def linear(name: str, outputs: int, inputs: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (width,)
        linear(at + "self_attn.q_proj", queries, width, qkv_bias)
        linear(at + "self_attn.k_proj", keys, width, qkv_bias)
        linear(at + "self_attn.v_proj", keys, width, qkv_bias)
        linear(at + "self_attn.o_proj", width, queries, c.get("attention_bias", False))
        if c["model_type"] in ("qwen3", "qwen3_moe"):
            shapes |= {at + f"self_attn.{which}_norm.weight": (head,) for which in "qk"}
        shapes[at + "post_attention_layernorm.weight"] = (width,)
        networks = {"mlp.": inner}
        if c["model_type"] == "qwen3_moe":
            linear(at + "mlp.gate", c["num_experts"], width, False)
            networks = {f"mlp.experts.{expert}.": c["moe_intermediate_size"] for expert in range(c["num_experts"])}
        for network, size in networks.items():
            linear(at + network + "gate_proj", size, width, c.get("mlp_bias", False))
            linear(at + network + "up_proj", size, width, c.get("mlp_bias", False))
            linear(at + network + "down_proj", width, size, c.get("mlp_bias", False))
    shapes["model.norm.weight"] = (width,)
    if not c.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (c["vocab_size"], width)
    return shapes


def _gpt2_shapes(c: Config) -> dict[str, tuple[int, ...]]:
    width = c["n_embd"]
    inner = c.get("n_inner") or 4 * width
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (c["vocab_size"], width),
        "transformer.wpe.weight": (c["n_positions"], width),
    }
    norms = [f"transformer.h.{layer}.ln_{n}" for layer in range(c["n_layer"]) for n in (1, 2)]
    for norm in [*norms, "transformer.ln_f"]:
        shapes |= {f"{norm}.weight": (width,), f"{norm}.bias": (width,)}
    for layer in range(c["n_layer"]):
        for name, inputs, outputs in (
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, inner),
            ("mlp.c_proj", inner, width),
        ):
            module = f"transformer.h.{layer}.{name}"
            shapes |= {f"{module}.weight": (inputs, outputs), f"{module}.bias": (outputs,)}
    if not c.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (c["vocab_size"], width)
    return shapes


_WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I64": 8}
_BLOCKS, _BLOCK_SCALES = "_blocks", "_scales"  # of MXFP4
_TORCH_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}


def _split(
    shapes: dict[str, tuple[int, ...]], width: int, shard_bytes: int | None
) -> Iterator[dict[str, tuple[int, ...]]]:
    shard: dict[str, tuple[int, ...]] = {}
    size = 0
    for name, shape in shapes.items():
        nbytes = int(np.prod(shape)) * width
        if shard_bytes is not None and shard and size + nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = shape
        size += nbytes
    yield shard


def _write_safetensors(
    path: Path, shapes: dict[str, tuple[int, ...]], random: np.random.Generator, std: float, dtype: str
) -> None:
    """One tensor in memory at a time: a length, a JSON header, then the data (https://huggingface.co/docs/safetensors)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        stored = "U8" if name.endswith((_BLOCKS, _BLOCK_SCALES)) else "I64" if name == "d2t" else dtype
        start, end = end, end + int(np.prod(shape)) * _WIDTHS[stored]
        header[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            if name == "d2t":
                stream.write(np.zeros(shape, np.int64).data)
                continue
            if name.endswith((_BLOCKS, _BLOCK_SCALES)):  # numbers up to 6 · 2 ** -7
                low, high = (0, 256) if name.endswith(_BLOCKS) else (119, 121)
                stream.write(random.integers(low, high, shape, dtype=np.uint8).data)
                continue
            mean = 1.0 if "norm" in name or ".ln_" in name or name.endswith("layer_scalar") else 0.0
            values = random.standard_normal(shape, dtype=np.float32) * np.float32(std)
            if mean and not name.endswith(".bias"):
                values += np.float32(mean)
            stream.write(_encode(values, dtype).data)


def _encode(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)  # round to nearest, ties to even


def make_tokenizer(
    folder: Path, vocab_size: int, *, corpus_bytes: int = 12 << 20, tags: Sequence[str] = (), template: str = ""
) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` with a chat template. ``tags``: special tokens, the last
    ids of the vocabulary before those that every model has."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    special = (*tags, *_SPECIAL)
    split = (  # the pattern of Llama 3
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocab_size, 32000) - len(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train(_corpus(corpus_bytes), trainer)
    spec = json.loads(tokenizer.to_str())
    vocab = spec["model"]["vocab"]
    while len(vocab) < vocab_size - len(special):  # every id the model can emit has a text
        vocab[f"unused{len(vocab):06}"] = len(vocab)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    spec["added_tokens"] = [
        {"id": vocab_size - len(special) + i, "content": text, "special": True} | flags
        for i, text in enumerate(special)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False), encoding="utf-8")
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": _SPECIAL[0],
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": template or _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))


def _corpus(limit_bytes: int) -> list[str]:
    """Python source of the standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    chosen, size = [], 0
    for file in sorted(root.rglob("*.py")):
        if {"site-packages", "test", "lib2to3"}.isdisjoint(file.parts):
            size += file.stat().st_size
            if size > limit_bytes:
                break
            chosen.append(str(file))
    return chosen


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("models"))
    parser.add_argument("--only", nargs="*", choices=sorted(SHAPES), default=list(SHAPES))
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.only:
        started = time.perf_counter()
        folder = arguments.out / name
        make_model(folder, SHAPES[name], seed=arguments.seed)
        make_tokenizer(folder, SHAPES[name]["vocab_size"])
        count = sum(int(np.prod(shape)) for shape in tensor_shapes(SHAPES[name]).values())
        print(f"{folder}: {count / 1e6:.1f} M parameters, {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
