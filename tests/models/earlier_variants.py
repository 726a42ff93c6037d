"""Configs of families from before Llama, and of those that learn from them; transformers' own classes make their small
checkpoints."""

from __future__ import annotations

from variants import Config, family_config

_NEO: Config = {
    "architectures": ["GPTNeoForCausalLM"],
    "model_type": "gpt_neo",
    "hidden_size": 48,
    "num_layers": 3,
    "num_heads": 4,
    "attention_types": [[["local", "global"], 1], [["local"], 1]],
    "window_size": 20,
    "vocab_size": 131,
    "max_position_embeddings": 256,
}
_CODEGEN: Config = {
    "architectures": ["CodeGenForCausalLM"],
    "model_type": "codegen",
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 8,
    "n_positions": 256,
    "rotary_dim": 6,
    "vocab_size": 131,
}
_PERSIMMON = family_config("PersimmonForCausalLM", "persimmon")
del _PERSIMMON["num_key_value_heads"]
_XGLM: Config = {
    "architectures": ["XGLMForCausalLM"],
    "model_type": "xglm",
    "d_model": 60,
    "ffn_dim": 90,
    "num_layers": 3,
    "attention_heads": 6,
    "vocab_size": 131,
    "max_position_embeddings": 256,
}
_GPT: Config = {
    "architectures": ["OpenAIGPTLMHeadModel"],
    "model_type": "openai-gpt",
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "vocab_size": 131,
}
_NANOCHAT = family_config("NanoChatForCausalLM", "nanochat")

EARLIER: dict[str, Config] = {
    "gpt-neo": _NEO,
    "gpt-neo-options": _NEO | {"intermediate_size": 70, "activation_function": "relu", "tie_word_embeddings": False},
    "codegen": _CODEGEN,
    "codegen-options": _CODEGEN | {"n_inner": 70, "rotary_dim": 8, "n_head": 4, "activation_function": "gelu"},
    "persimmon": _PERSIMMON,
    "persimmon-options": _PERSIMMON
    | {"qk_layernorm": False, "hidden_act": "gelu", "tie_word_embeddings": True}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.25}},
    "xglm": _XGLM,
    "xglm-options": _XGLM | {"scale_embedding": False, "activation_function": "relu", "tie_word_embeddings": False},
    "gpt": _GPT,
    "gpt-relu": _GPT | {"afn": "relu", "n_embd": 40},
    "nanochat": _NANOCHAT | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3000.0}},
    "nanochat-options": _NANOCHAT
    | {"attention_bias": True, "final_logit_softcapping": 3.0, "tie_word_embeddings": True, "hidden_act": "silu"},
}

EARLIER_RARELY_JUDGED = {name for name in EARLIER if name.endswith(("-options", "-relu"))}
"""Variants that are held against transformers' numbers only with DRAGOMAN_THOROUGH."""


def _neo(width: int, layers: int, heads: int) -> Config:
    sizes: Config = {"hidden_size": width, "num_layers": layers, "num_heads": heads, "vocab_size": 50257}
    kinds = [[["global", "local"], layers // 2]]
    return {"architectures": ["GPTNeoForCausalLM"], "attention_types": kinds} | sizes


PUBLISHED: dict[str, tuple[Config, int]] = {
    "GPT": (_GPT | {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 512, "vocab_size": 40478}, 116_534_784),
    "GPT-Neo 125M": (_neo(768, 12, 12), 125_198_592),
    "GPT-Neo 1.3B": (_neo(2048, 24, 16), 1_315_575_808),
    "TinyStories 33M": (_neo(768, 4, 16), 68_514_048),
    "CodeGen 350M": (
        _CODEGEN
        | {"n_embd": 1024, "n_layer": 20, "n_head": 16, "rotary_dim": 32, "n_positions": 2048}
        | {"vocab_size": 51200},
        356_712_448,
    ),
    "Persimmon 8B": (
        _PERSIMMON
        | {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 64}
        | {"intermediate_size": 16384, "vocab_size": 262144},
        9_397_175_296,
    ),
    "XGLM 564M": (
        _XGLM | {"d_model": 1024, "num_layers": 24, "attention_heads": 16, "ffn_dim": 4096, "vocab_size": 256008},
        564_463_616,
    ),
    "nanochat d32": (
        _NANOCHAT
        | {"hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 16}
        | {"num_key_value_heads": 16, "intermediate_size": 8192, "vocab_size": 65536},
        1_879_048_192,
    ),
}
