"""Supported architectures of GGUF files, under llama.cpp's names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.gguf import gemma, names
from dragoman.models.gguf.architecture import (
    LONGROPE,
    SIZES_WITHOUT_WIDTH,
    Architecture,
    Config,
    Tensors,
    growth,
    head_size,
    heads,
    interleaved_rows,
    layer_norm,
    layer_types,
    longrope,
    partly_rotated,
    rms,
    whole_score_scaling,
)
from dragoman.models.gguf.eagle import EAGLE
from dragoman.models.gguf.encoders import ENCODERS
from dragoman.models.gguf.file import GgufFile
from dragoman.models.gguf.kimi_linear import KIMI_LINEAR
from dragoman.models.gguf.latent import LATENT
from dragoman.models.gguf.llama_variants import LLAMA_VARIANTS
from dragoman.models.gguf.mamba_hybrids import MAMBA_HYBRIDS
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.mixtures import MIXTURES
from dragoman.models.gguf.qwen_hybrids import QWEN_HYBRIDS
from dragoman.models.gguf.recurrent import RECURRENT
from dragoman.models.gguf.t5 import T5
from dragoman.models.gguf.text_parts import TEXT_PARTS
from dragoman.models.pooling import POOLED_LAYERS, RERANKER

_OTHER_KINDS = {
    "mmproj": "name the model that it goes with, and it by --mmproj where it lies elsewhere",
    "adapter": "adapters are read in PEFT's layout, a folder with adapter_config.json",
    "vocab": "it has a vocabulary and no weights",
}


def find_architecture(file: GgufFile, tensors: Tensors) -> Architecture:
    """Return the architecture of a model. Raises ModelError naming the known ones."""
    metadata = Metadata(file)
    kind = metadata.text("general.type", "model")
    if kind != "model":
        hint = f"; {_OTHER_KINDS[kind]}" if kind in _OTHER_KINDS else ""
        raise file.fail("general.type", f"is {kind!r}: it is not a model that can be served{hint}")
    name = metadata.text("general.architecture")
    if name == "llama" and metadata.is_on("llama.expert_count"):
        return _MIXTRAL
    if name == "falcon" and "blk.0.attn_norm_2.weight" in tensors:
        return _FALCON_40B
    if name not in ARCHITECTURES:
        raise file.fail("general.architecture", f"{name!r} is not supported; known: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def _llama(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.sliding_window", 0)
    keys.refuse("expert_count", 0)
    keys.refuse("expert_used_count", 0)
    return heads(keys, config) | rms(keys) | _biases(tensors)


def _biases(tensors: Tensors) -> Config:
    return {"attention_bias": "blk.0.attn_q.bias" in tensors, "mlp_bias": "blk.0.ffn_up.bias" in tensors}


def _qwen2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("rope.dimension_sections")  # of those with images: in texts all positions are equal
    keys.has("n_deepstack_layers")  # layers that images are added to
    return heads(keys, config) | rms(keys) | {"use_sliding_window": False}


def _qwen3(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("classifier.output_labels")
    answers = {RERANKER: True} if "cls.output.weight" in tensors else {}
    return _qwen2(keys, tensors, config) | {"attention_bias": "blk.0.attn_q.bias" in tensors} | answers


def _gemma(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return heads(keys, config) | rms(keys) | {"hidden_activation": "gelu_pytorch_tanh"}


def _gemma2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    found = _gemma(keys, tensors, config)
    return found | {
        "query_pre_attn_scalar": _query_scalar(config, found["head_dim"], widest=46),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": keys.number("final_logit_softcapping", 30.0),
        "sliding_window": keys.size("attention.sliding_window", 4096),
        "layer_types": layer_types(keys, layers, 2),
    }


def _gemma3(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    found = _gemma(keys, tensors, config)
    slides = keys.is_on("attention.sliding_window")
    capped = keys.is_on("final_logit_softcapping")
    return found | {
        "query_pre_attn_scalar": _query_scalar(config, found["head_dim"], widest=62),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.number("final_logit_softcapping") if capped else None,
        "rope_theta": keys.number("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": keys.number("rope.freq_base_swa", 10_000.0),
        "sliding_window": keys.size("attention.sliding_window") if slides else 4096,
        "layer_types": layer_types(keys, layers, 6) if slides else ["full_attention"] * layers,
    }


def _embedding_gemma(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.causal", False)
    layers = {}
    for name in ("dense_2", "dense_3"):
        if (tensor := tensors.get(f"{name}.weight")) is not None:
            layers[f"{name}.weight"] = keys.size(f"{name}_feat_out", tensor.shape[0])
            keys.has(f"{name}_feat_in")
    return _gemma3(keys, tensors, config) | {"use_bidirectional_attention": True, POOLED_LAYERS: layers}


def _query_scalar(config: Config, head_dim: int, widest: int) -> float:
    """Return the scalar, which files omit: the largest model of each Gemma, known by its layers, has one other than
    head_dim."""
    largest = config["num_hidden_layers"] == widest
    return float(config["hidden_size"] // config["num_attention_heads"] if largest else head_dim)


def _phi2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = partly_rotated(keys, config) | layer_norm(keys, "layer_norm_eps")
    return found | {"hidden_act": "gelu_new", "qk_layernorm": False}


def _phi3(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    slides = keys.is_on("attention.sliding_window")
    original = keys.size("rope.scaling.original_context_length", config["max_position_embeddings"])
    return partly_rotated(keys, config) | rms(keys) | longrope(keys, tensors) | {
        "sliding_window": keys.size("attention.sliding_window") if slides else None,
        "original_max_position_embeddings": original,
    }  # fmt: skip


def _cohere(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = heads(keys, config) | layer_norm(keys, "layer_norm_eps")
    return found | {
        "logit_scale": keys.number("logit_scale"),
        "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
    }


def _cohere2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return _cohere(keys, tensors, config) | {
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": layer_types(keys, config["num_hidden_layers"], 4),
    }


def _glm4(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("nextn_predict_layers", 0)
    found = partly_rotated(keys, config) | rms(keys)
    return found | {"head_dim": head_size(keys, config), "attention_bias": "blk.0.attn_q.bias" in tensors}


def _granite(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return heads(keys, config) | rms(keys) | _biases(tensors) | {
        "attention_multiplier": keys.number("attention.scale", 1.0),
        "embedding_multiplier": keys.number("embedding_scale", 1.0),
        "residual_multiplier": keys.number("residual_scale", 1.0),
        "logits_scaling": keys.number("logit_scale", 1.0),
    }  # fmt: skip


def _olmo2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = heads(keys, config) | rms(keys) | {"attention_bias": "blk.0.attn_q.bias" in tensors}
    if not keys.is_on("attention.sliding_window"):
        keys.has("attention.sliding_window_pattern")
        return found
    return found | {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": layer_types(keys, config["num_hidden_layers"], 4),
    }


def _smollm3(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    rotated = [int((layer + 1) % 4 != 0) for layer in range(config["num_hidden_layers"])]  # there is no key for it
    return _llama(keys, tensors, config) | {"no_rope_layers": rotated}


def _stablelm(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("use_parallel_residual")  # converters write it wrongly; a second norm decides instead
    found = partly_rotated(keys, config) | layer_norm(keys, "layer_norm_eps")
    return found | {
        "use_qkv_bias": "blk.0.attn_q.bias" in tensors,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in tensors,
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in tensors,
    }


def _starcoder2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = heads(keys, config) | layer_norm(keys, "norm_epsilon")
    return found | {"use_bias": "blk.0.attn_q.bias" in tensors, "sliding_window": None}


def _experts(keys: Metadata, norm_topk: bool) -> Config:
    keys.refuse("expert_gating_func", 1)  # softmax
    keys.refuse("expert_weights_scale", 1.0, 0.0)
    for key in ("expert_group_count", "expert_group_used_count"):
        keys.refuse(key, 0, 1)
    return {
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "norm_topk_prob": keys.flag("expert_weights_norm", norm_topk),
    }


def _mixtral(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = _experts(keys, norm_topk=True)
    keys.refuse("attention.sliding_window", 0)
    return heads(keys, config) | rms(keys) | {
        "num_local_experts": found["num_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "sliding_window": None,
    }  # fmt: skip


def _qwen_moe(keys: Metadata, tensors: Tensors, config: Config, norm_topk: bool) -> Config:
    found = _qwen3(keys, tensors, config) | _experts(keys, norm_topk)
    for key in ("expert_feed_forward_length", "expert_shared_feed_forward_length"):
        keys.has(key)  # the tensors' shapes say it in every file
    inward = tensors.get("blk.0.ffn_gate_exps.weight")
    if inward is None or len(inward.shape) != 3:
        raise ModelError(f"{keys.file.path}: tensor blk.0.ffn_gate_exps.weight is missing or not a stack of matrices")
    shared = tensors.get("blk.0.ffn_gate_shexp.weight")
    found |= {"moe_intermediate_size": inward.shape[1], "qkv_bias": found["attention_bias"]}
    return found if shared is None else found | {"shared_expert_intermediate_size": shared.shape[0]}


def _qwen2_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return _qwen_moe(keys, tensors, config, norm_topk=False)


def _qwen3_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return _qwen_moe(keys, tensors, config, norm_topk=True)


def _granite_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    experts = _experts(keys, norm_topk=True)
    found = _granite(keys, tensors, config) | {
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
    }
    keys.has("expert_shared_feed_forward_length")  # the tensors' shapes say it
    shared = tensors.get("blk.0.ffn_gate_shexp.weight")
    if shared is None:
        return found
    return found | {
        "architectures": ["GraniteMoeSharedForCausalLM"],
        "model_type": "granitemoeshared",
        "shared_intermediate_size": shared.shape[0],
    }


def _olmoe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.clamp_kqv", 0.0)
    return heads(keys, config) | rms(keys) | _experts(keys, norm_topk=False) | _biases(tensors)


def _gpt2(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.head_count_kv", config["n_head"])
    return layer_norm(keys, "layer_norm_epsilon") | {"activation_function": "gelu_new"}


def _gpt_neox(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.head_count_kv", config["num_attention_heads"])
    return partly_rotated(keys, config) | layer_norm(keys, "layer_norm_eps") | {
        "use_parallel_residual": keys.flag("use_parallel_residual", True),
        "attention_bias": "blk.0.attn_qkv.bias" in tensors,
        "hidden_act": "gelu",
    }  # fmt: skip


def _bloom(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.head_count_kv", config["n_head"])
    keys.refuse("feed_forward_length", 4 * config["hidden_size"])
    return layer_norm(keys, "layer_norm_epsilon")


def _falcon(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    found = heads(keys, config) | layer_norm(keys, "layer_norm_epsilon")
    kv_heads = found["num_key_value_heads"]
    two_norms = "blk.0.attn_norm_2.weight" in tensors
    return found | {
        "num_kv_heads": kv_heads,
        "multi_query": kv_heads == 1,
        "new_decoder_architecture": kv_heads > 1 or two_norms,
        "num_ln_in_parallel_attn": (2 if two_norms else 1) if kv_heads > 1 or two_norms else None,
        "ffn_hidden_size": config["intermediate_size"],
        "bias": "blk.0.attn_qkv.bias" in tensors,
    }


def _ernie(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return heads(keys, config) | rms(keys) | {"use_bias": "blk.0.attn_q.bias" in tensors}


def _arcee(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    return heads(keys, config) | rms(keys) | _biases(tensors)


def _seed_oss(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    biases = {"attention_out_bias": "blk.0.attn_output.bias" in tensors}
    return heads(keys, config) | rms(keys) | _biases(tensors) | biases


def _hunyuan(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.has("rope.scaling.original_context_length")  # written without a scaling: the base has it
    return heads(keys, config) | rms(keys) | {"attention_bias": "blk.0.attn_q.bias" in tensors}


def _exaone4(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    found = heads(keys, config) | rms(keys)
    if not keys.is_on("attention.sliding_window"):
        keys.has("attention.sliding_window_pattern")
        return found | {"sliding_window": None, "layer_types": ["full_attention"] * layers}
    return found | {
        "sliding_window": keys.size("attention.sliding_window"),
        "layer_types": layer_types(keys, layers, 4),
    }


def _starcoder(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.head_count_kv", 1)
    return layer_norm(keys, "layer_norm_epsilon") | {"multi_query": True}


def _mpt(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.head_count_kv", config["n_heads"])
    keys.refuse("feed_forward_length", 4 * config["d_model"])
    limit = keys.number("attention.clamp_kqv") if keys.is_on("attention.clamp_kqv") else None
    slope = keys.number("attention.max_alibi_bias", 8.0)
    attention = {"clip_qkv": limit, "alibi_bias_max": int(slope) if slope == int(slope) else slope}
    return layer_norm(keys, "layer_norm_epsilon") | {"attn_config": attention}


def _mistral3(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    keys.refuse("attention.sliding_window", 0)
    keys.refuse("expert_count", 0)
    keys.refuse("expert_used_count", 0)
    found = heads(keys, config) | rms(keys)
    if not (grown := growth(keys)):
        return found | {"sliding_window": None}
    return found | {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "rope_scaling": None,
        "rope_parameters": (config["rope_scaling"] or {"rope_type": "default"}) | grown,
    }


def _rows_by_head(config: Config, module: str) -> NDArray[np.int64] | None:
    """Return the rows of fused projections. llama.cpp stores all queries, all keys, all values; the families store them
    by key-value head, each with its queries."""
    if module != "attn_qkv":
        return None
    queries: int = config["n_head"] if "n_head" in config else config["num_attention_heads"]
    groups, head_dim = config.get("num_kv_heads", queries), config["hidden_size"] // queries
    stored = np.arange((queries + 2 * groups) * head_dim).reshape(-1, head_dim)
    parts = np.split(stored, [queries, queries + groups])
    return np.concatenate([part.reshape(groups, -1, head_dim) for part in parts], axis=1).reshape(-1)


def _architecture(name: str, model_type: str, table: dict[str, str], extra: Any, **options: Any) -> Architecture:
    return Architecture(name=name, model_type=model_type, names=table, extra=extra, **options)


_MIXTRAL = _architecture("MixtralForCausalLM", "mixtral", names.MIXTRAL, _mixtral, row_order=interleaved_rows)

_GPT2_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "feed_forward_length": "n_inner",
    "attention.head_count": "n_head",
}
_MPT_SIZES = {
    "context_length": "max_seq_len",
    "embedding_length": "d_model",
    "block_count": "n_layers",
    "attention.head_count": "n_heads",
}

_FALCON_40B = _architecture("FalconForCausalLM", "falcon", names.FALCON_40B, _falcon, row_order=_rows_by_head)
_BLOOM_SIZES = {
    "context_length": "seq_length",
    "embedding_length": "hidden_size",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
}

# Files whose converter derives from Llama's have llama.cpp's order of rows in queries and keys.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": _architecture("LlamaForCausalLM", "llama", names.LLAMA, _llama, row_order=interleaved_rows),
    "qwen2": _architecture("Qwen2ForCausalLM", "qwen2", names.LLAMA, _qwen2),
    # A reranker's last layer is two rows of its output table: those of yes and no.
    "qwen3": _architecture("Qwen3ForCausalLM", "qwen3", names.LLAMA, _qwen3, repeated=frozenset({"cls.output.weight"})),
    # The text parts of models with images, whose towers are other files.
    "qwen2vl": _architecture("Qwen2ForCausalLM", "qwen2", names.LLAMA, _qwen2),
    "qwen3vl": _architecture("Qwen3ForCausalLM", "qwen3", names.LLAMA, _qwen3),
    "qwen3vlmoe": _architecture("Qwen3MoeForCausalLM", "qwen3_moe", names.QWEN_MOE, _qwen3_moe),
    "qwen2moe": _architecture("Qwen2MoeForCausalLM", "qwen2_moe", names.QWEN_MOE, _qwen2_moe),
    "qwen3moe": _architecture("Qwen3MoeForCausalLM", "qwen3_moe", names.QWEN_MOE, _qwen3_moe),
    "olmoe": _architecture("OlmoeForCausalLM", "olmoe", names.QWEN_MOE, _olmoe),
    "gemma": _architecture("GemmaForCausalLM", "gemma", names.LLAMA, _gemma, norm_offset=1.0),
    "gemma2": _architecture("Gemma2ForCausalLM", "gemma2", names.GEMMA2, _gemma2, norm_offset=1.0),
    "gemma3": _architecture("Gemma3ForCausalLM", "gemma3_text", names.GEMMA2, _gemma3, norm_offset=1.0),
    "gemma-embedding": _architecture(
        "Gemma3TextModel", "gemma3_text", names.EMBEDDING_GEMMA, _embedding_gemma, norm_offset=1.0
    ),
    "gemma3n": _architecture(
        "Gemma3nForCausalLM", "gemma3n_text", names.GEMMA3N, gemma.gemma3n, sizes=SIZES_WITHOUT_WIDTH
    ),
    "gemma4": _architecture("Gemma4ForCausalLM", "gemma4_text", names.GEMMA4, gemma.gemma4, sizes=SIZES_WITHOUT_WIDTH),
    "phi2": _architecture("PhiForCausalLM", "phi", names.PHI2, _phi2),
    "phi3": _architecture("Phi3ForCausalLM", "phi3", names.PHI3, _phi3, described=LONGROPE),
    "gpt2": _architecture("GPT2LMHeadModel", "gpt2", names.GPT2, _gpt2, sizes=_GPT2_SIZES, rotary=False),
    "gptneox": _architecture("GPTNeoXForCausalLM", "gpt_neox", names.NEOX, _gpt_neox, row_order=_rows_by_head),
    "bloom": _architecture(
        "BloomForCausalLM", "bloom", names.BLOOM, _bloom, sizes=_BLOOM_SIZES, rotary=False, row_order=_rows_by_head
    ),
    "falcon": _architecture("FalconForCausalLM", "falcon", names.FALCON, _falcon, row_order=_rows_by_head),
    "starcoder2": _architecture("Starcoder2ForCausalLM", "starcoder2", names.STARCODER2, _starcoder2),
    "stablelm": _architecture("StableLmForCausalLM", "stablelm", names.STABLELM, _stablelm),
    "olmo2": _architecture("Olmo2ForCausalLM", "olmo2", names.OLMO2, _olmo2),
    "granite": _architecture("GraniteForCausalLM", "granite", names.LLAMA, _granite, row_order=interleaved_rows),
    "granitemoe": _architecture(
        "GraniteMoeForCausalLM", "granitemoe", names.GRANITE_MOE, _granite_moe, row_order=interleaved_rows
    ),
    "smollm3": _architecture("SmolLM3ForCausalLM", "smollm3", names.LLAMA, _smollm3, row_order=interleaved_rows),
    "command-r": _architecture("CohereForCausalLM", "cohere", names.COHERE, _cohere),
    "cohere2": _architecture("Cohere2ForCausalLM", "cohere2", names.COHERE, _cohere2),
    "glm4": _architecture("Glm4ForCausalLM", "glm4", names.GLM4, _glm4),
    "ernie4_5": _architecture("Ernie4_5ForCausalLM", "ernie4_5", names.LLAMA, _ernie),
    "arcee": _architecture("ArceeForCausalLM", "arcee", names.ARCEE, _arcee, row_order=interleaved_rows),
    "seed_oss": _architecture("SeedOssForCausalLM", "seed_oss", names.SEED_OSS, _seed_oss),
    "hunyuan-dense": _architecture("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", names.HUNYUAN, _hunyuan),
    "exaone4": _architecture("Exaone4ForCausalLM", "exaone4", names.OLMO2, _exaone4),
    "starcoder": _architecture(
        "GPTBigCodeForCausalLM", "gpt_bigcode", names.GPT2, _starcoder, sizes=_GPT2_SIZES, rotary=False
    ),
    "mistral3": _architecture(
        "MistralForCausalLM",
        "mistral",
        names.LLAMA,
        _mistral3,
        row_order=interleaved_rows,
        score_scaling=whole_score_scaling,
    ),
    "mpt": _architecture("MptForCausalLM", "mpt", names.MPT, _mpt, sizes=_MPT_SIZES, rotary=False),
    **RECURRENT,
    **ENCODERS,
    **QWEN_HYBRIDS,
    **MAMBA_HYBRIDS,
    **LLAMA_VARIANTS,
    **MIXTURES,
    **LATENT,
    **TEXT_PARTS,
    "t5": T5,
    "kimi-linear": KIMI_LINEAR,
    "eagle3": EAGLE,
}
