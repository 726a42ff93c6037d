"""Tensor names of GGUF files in the families' checkpoints. ``blk.`` stands for ``blk.N.``, ``{layer}`` for N."""

from __future__ import annotations

_LAYER = "model.layers.{layer}."

_ATTENTION = {
    "blk.attn_norm": _LAYER + "input_layernorm",
    "blk.attn_q": _LAYER + "self_attn.q_proj",
    "blk.attn_k": _LAYER + "self_attn.k_proj",
    "blk.attn_v": _LAYER + "self_attn.v_proj",
    "blk.attn_q_norm": _LAYER + "self_attn.q_norm",
    "blk.attn_k_norm": _LAYER + "self_attn.k_norm",
    "blk.attn_output": _LAYER + "self_attn.o_proj",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GATED = {
    "blk.ffn_gate": _LAYER + "mlp.gate_proj",
    "blk.ffn_up": _LAYER + "mlp.up_proj",
    "blk.ffn_down": _LAYER + "mlp.down_proj",
}

LLAMA = _ENDS | _ATTENTION | _GATED | {"blk.ffn_norm": _LAYER + "post_attention_layernorm"}

GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "blk.attn_norm": "transformer.h.{layer}.ln_1",
    "blk.attn_qkv": "transformer.h.{layer}.attn.c_attn",
    "blk.attn_output": "transformer.h.{layer}.attn.c_proj",
    "blk.ffn_norm": "transformer.h.{layer}.ln_2",
    "blk.ffn_up": "transformer.h.{layer}.mlp.c_fc",
    "blk.ffn_down": "transformer.h.{layer}.mlp.c_proj",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
