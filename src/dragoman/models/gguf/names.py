"""Tensor names of GGUF files in the families' checkpoints.

``blk.`` stands for ``blk.N.``, ``{layer}`` for N. A name with ``{expert}`` stands for each matrix of a stack, one
with ``{part}`` for each row of a matrix.
"""

from __future__ import annotations

_LAYER = "model.layers.{layer}."

_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ATTENTION = {
    "blk.attn_q": _LAYER + "self_attn.q_proj",
    "blk.attn_k": _LAYER + "self_attn.k_proj",
    "blk.attn_v": _LAYER + "self_attn.v_proj",
    "blk.attn_q_norm": _LAYER + "self_attn.q_norm",
    "blk.attn_k_norm": _LAYER + "self_attn.k_norm",
    "blk.attn_output": _LAYER + "self_attn.o_proj",
}
_GATED = {
    "blk.ffn_gate": _LAYER + "mlp.gate_proj",
    "blk.ffn_up": _LAYER + "mlp.up_proj",
    "blk.ffn_down": _LAYER + "mlp.down_proj",
}
_GATED_FUSED = {"blk.ffn_up": _LAYER + "mlp.gate_up_proj", "blk.ffn_down": _LAYER + "mlp.down_proj"}
_NORM = {"blk.attn_norm": _LAYER + "input_layernorm"}
_NORMS = _NORM | {"blk.ffn_norm": _LAYER + "post_attention_layernorm"}
_NORMS_AFTER = {
    "blk.post_attention_norm": _LAYER + "post_attention_layernorm",
    "blk.post_ffw_norm": _LAYER + "post_feedforward_layernorm",
}

LLAMA = _ENDS | _ATTENTION | _GATED | _NORMS
GEMMA2 = _ENDS | _ATTENTION | _GATED | _NORM | _NORMS_AFTER | {"blk.ffn_norm": _LAYER + "pre_feedforward_layernorm"}
EMBEDDING_GEMMA = GEMMA2 | {"dense_2": "dense_2", "dense_3": "dense_3"}
_LAYER_INPUTS = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "blk.inp_gate": _LAYER + "per_layer_input_gate",
    "blk.proj": _LAYER + "per_layer_projection",
    "blk.post_norm": _LAYER + "post_per_layer_input_norm",
}
GEMMA3N = GEMMA2 | _LAYER_INPUTS | {
    "altup_proj": "model.altup_projections.{expert}",
    "altup_unembd_proj": "model.altup_unembed_projections.{expert}",
    "blk.altup_correct_coef": _LAYER + "altup.correction_coefs",
    "blk.altup_correct_scale": _LAYER + "altup.correct_output_scale",
    "blk.altup_predict_coef": _LAYER + "altup.prediction_coefs",
    "blk.altup_router": _LAYER + "altup.modality_router",
    "blk.altup_router_norm": _LAYER + "altup.router_norm",
    "blk.laurel_l": _LAYER + "laurel.linear_left",
    "blk.laurel_r": _LAYER + "laurel.linear_right",
    "blk.laurel_post_norm": _LAYER + "laurel.post_laurel_norm",
}  # fmt: skip
GEMMA4 = GEMMA2 | _LAYER_INPUTS | {
    "blk.layer_output_scale": _LAYER + "layer_scalar",
    "blk.ffn_gate_inp": _LAYER + "router.proj",
    "blk.ffn_gate_up_exps": _LAYER + "experts.gate_up_proj",
    "blk.ffn_down_exps": _LAYER + "experts.down_proj",
    "blk.pre_ffw_norm_2": _LAYER + "pre_feedforward_layernorm_2",
    "blk.post_ffw_norm_1": _LAYER + "post_feedforward_layernorm_1",
    "blk.post_ffw_norm_2": _LAYER + "post_feedforward_layernorm_2",
}  # fmt: skip
OLMO2 = _ENDS | _ATTENTION | _GATED | _NORMS_AFTER
EAGLE = {key: name.removeprefix("model.") for key, name in LLAMA.items()} | {
    "blk.attn_norm_2": "layers.{layer}.hidden_norm",
    "fc": "fc",
    "enc.output_norm": "input_norm",
}  # fmt: skip
ARCEE = _ENDS | _ATTENTION | _NORMS | {"blk.ffn_up": _GATED["blk.ffn_up"], "blk.ffn_down": _GATED["blk.ffn_down"]}
SEED_OSS = _ENDS | _ATTENTION | _GATED | _NORM | {
    "blk.post_attention_norm": _LAYER + "post_attention_layernorm",
}  # fmt: skip
HUNYUAN = LLAMA | {
    "blk.attn_q_norm": _LAYER + "self_attn.query_layernorm",
    "blk.attn_k_norm": _LAYER + "self_attn.key_layernorm",
}
MPT = {
    "token_embd": "transformer.wte",
    "blk.attn_norm": "transformer.blocks.{layer}.norm_1",
    "blk.attn_qkv": "transformer.blocks.{layer}.attn.Wqkv",
    "blk.attn_output": "transformer.blocks.{layer}.attn.out_proj",
    "blk.ffn_norm": "transformer.blocks.{layer}.norm_2",
    "blk.ffn_up": "transformer.blocks.{layer}.ffn.up_proj",
    "blk.ffn_down": "transformer.blocks.{layer}.ffn.down_proj",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
}
COHERE = _ENDS | _ATTENTION | _GATED | _NORM
PHI2 = (
    _ATTENTION
    | _NORM
    | {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.final_layernorm",
        "output": "lm_head",
        "blk.attn_qkv": _LAYER + "self_attn.qkv_proj",  # files of 2024 and earlier
        "blk.attn_output": _LAYER + "self_attn.dense",
        "blk.ffn_up": _LAYER + "mlp.fc1",
        "blk.ffn_down": _LAYER + "mlp.fc2",
    }
)
PHI3 = _ENDS | _NORMS | _GATED_FUSED | {
    "blk.attn_qkv": _LAYER + "self_attn.qkv_proj",
    "blk.attn_output": _LAYER + "self_attn.o_proj",
}  # fmt: skip
GLM4 = _ENDS | _ATTENTION | _GATED_FUSED | _NORMS | {
    "blk.post_attention_norm": _LAYER + "post_self_attn_layernorm",
    "blk.post_ffw_norm": _LAYER + "post_mlp_layernorm",
}  # fmt: skip
STABLELM = LLAMA | {
    "blk.attn_q_norm": _LAYER + "self_attn.q_layernorm.norms.{part}",
    "blk.attn_k_norm": _LAYER + "self_attn.k_layernorm.norms.{part}",
}
STARCODER2 = _ENDS | _ATTENTION | _NORMS | {
    "blk.ffn_up": _LAYER + "mlp.c_fc",
    "blk.ffn_down": _LAYER + "mlp.c_proj",
}  # fmt: skip
MIXTRAL = _ENDS | _ATTENTION | _NORMS | {
    "blk.ffn_gate_inp": _LAYER + "block_sparse_moe.gate",
    "blk.ffn_gate_exps": _LAYER + "block_sparse_moe.experts.{expert}.w1",
    "blk.ffn_up_exps": _LAYER + "block_sparse_moe.experts.{expert}.w3",
    "blk.ffn_down_exps": _LAYER + "block_sparse_moe.experts.{expert}.w2",
}  # fmt: skip
QWEN_MOE = _ENDS | _ATTENTION | _NORMS | {
    "blk.ffn_gate_inp": _LAYER + "mlp.gate",
    "blk.ffn_gate_exps": _LAYER + "mlp.experts.{expert}.gate_proj",
    "blk.ffn_up_exps": _LAYER + "mlp.experts.{expert}.up_proj",
    "blk.ffn_down_exps": _LAYER + "mlp.experts.{expert}.down_proj",
    "blk.ffn_gate_inp_shexp": _LAYER + "mlp.shared_expert_gate",
    "blk.ffn_gate_shexp": _LAYER + "mlp.shared_expert.gate_proj",
    "blk.ffn_up_shexp": _LAYER + "mlp.shared_expert.up_proj",
    "blk.ffn_down_shexp": _LAYER + "mlp.shared_expert.down_proj",
}  # fmt: skip
GRANITE_MOE = _ENDS | _ATTENTION | _NORMS | {
    "blk.ffn_gate_inp": _LAYER + "block_sparse_moe.router.layer",
    "blk.ffn_gate_exps": _LAYER + "block_sparse_moe.experts.{expert}.gate_proj",
    "blk.ffn_up_exps": _LAYER + "block_sparse_moe.experts.{expert}.up_proj",
    "blk.ffn_down_exps": _LAYER + "block_sparse_moe.experts.{expert}.down_proj",
    "blk.ffn_gate_shexp": _LAYER + "shared_mlp.gate_proj",
    "blk.ffn_up_shexp": _LAYER + "shared_mlp.up_proj",
    "blk.ffn_down_shexp": _LAYER + "shared_mlp.output_linear",
}  # fmt: skip

DEEPSEEK2 = _ENDS | _GATED | _NORMS | {
    "blk.attn_q": _LAYER + "self_attn.q_proj",
    "blk.attn_q_a": _LAYER + "self_attn.q_a_proj",
    "blk.attn_q_a_norm": _LAYER + "self_attn.q_a_layernorm",
    "blk.attn_q_b": _LAYER + "self_attn.q_b_proj",
    "blk.attn_kv_a_mqa": _LAYER + "self_attn.kv_a_proj_with_mqa",
    "blk.attn_kv_a_norm": _LAYER + "self_attn.kv_a_layernorm",
    "blk.attn_kv_b": _LAYER + "self_attn.kv_b_proj",  # files before April 2025
    "blk.attn_k_b": _LAYER + "self_attn.k_b_proj",
    "blk.attn_v_b": _LAYER + "self_attn.v_b_proj",
    "blk.attn_output": _LAYER + "self_attn.o_proj",
    "blk.ffn_gate_inp": _LAYER + "mlp.gate",
    "blk.exp_probs_b": _LAYER + "mlp.gate.e_score_correction_bias",
    "blk.ffn_gate_exps": _LAYER + "mlp.experts.{expert}.gate_proj",
    "blk.ffn_up_exps": _LAYER + "mlp.experts.{expert}.up_proj",
    "blk.ffn_gate_up_exps": _LAYER + "mlp.experts.gate_up_proj",
    "blk.ffn_down_exps": _LAYER + "mlp.experts.{expert}.down_proj",
    "blk.ffn_gate_shexp": _LAYER + "mlp.shared_experts.gate_proj",
    "blk.ffn_up_shexp": _LAYER + "mlp.shared_experts.up_proj",
    "blk.ffn_down_shexp": _LAYER + "mlp.shared_experts.down_proj",
}  # fmt: skip

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

_NEOX_LAYER, _BLOOM_LAYER = "gpt_neox.layers.{layer}.", "transformer.h.{layer}."
NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "blk.attn_norm": _NEOX_LAYER + "input_layernorm",
    "blk.attn_qkv": _NEOX_LAYER + "attention.query_key_value",
    "blk.attn_output": _NEOX_LAYER + "attention.dense",
    "blk.ffn_norm": _NEOX_LAYER + "post_attention_layernorm",
    "blk.ffn_up": _NEOX_LAYER + "mlp.dense_h_to_4h",
    "blk.ffn_down": _NEOX_LAYER + "mlp.dense_4h_to_h",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
}
FALCON = {
    "token_embd": "transformer.word_embeddings",
    "blk.attn_norm": _BLOOM_LAYER + "input_layernorm",
    "blk.attn_qkv": _BLOOM_LAYER + "self_attention.query_key_value",
    "blk.attn_output": _BLOOM_LAYER + "self_attention.dense",
    "blk.ffn_up": _BLOOM_LAYER + "mlp.dense_h_to_4h",
    "blk.ffn_down": _BLOOM_LAYER + "mlp.dense_4h_to_h",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
FALCON_40B = FALCON | {"blk.attn_norm": _BLOOM_LAYER + "ln_mlp", "blk.attn_norm_2": _BLOOM_LAYER + "ln_attn"}
BLOOM = FALCON | {
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "blk.ffn_norm": _BLOOM_LAYER + "post_attention_layernorm",
}

_BERT_LAYER = "bert.encoder.layer.{layer}."
BERT = {
    "token_embd": "bert.embeddings.word_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "position_embd": "bert.embeddings.position_embeddings",
    "token_embd_norm": "bert.embeddings.LayerNorm",
    "blk.attn_q": _BERT_LAYER + "attention.self.query",
    "blk.attn_k": _BERT_LAYER + "attention.self.key",
    "blk.attn_v": _BERT_LAYER + "attention.self.value",
    "blk.attn_output": _BERT_LAYER + "attention.output.dense",
    "blk.attn_output_norm": _BERT_LAYER + "attention.output.LayerNorm",
    "blk.ffn_up": _BERT_LAYER + "intermediate.dense",
    "blk.ffn_down": _BERT_LAYER + "output.dense",
    "blk.layer_output_norm": _BERT_LAYER + "output.LayerNorm",
    "cls": "bert.pooler.dense",
    "cls.output": "classifier",
}
_NOMIC_LAYER = "nomic_bert.encoder.layers.{layer}."
NOMIC_BERT = {
    "token_embd": "nomic_bert.embeddings.word_embeddings",
    "token_types": "nomic_bert.embeddings.token_type_embeddings",
    "token_embd_norm": "nomic_bert.emb_ln",
    "blk.attn_qkv": _NOMIC_LAYER + "attn.Wqkv",
    "blk.attn_output": _NOMIC_LAYER + "attn.out_proj",
    "blk.attn_output_norm": _NOMIC_LAYER + "norm1",
    "blk.ffn_gate": _NOMIC_LAYER + "mlp.fc12",
    "blk.ffn_up": _NOMIC_LAYER + "mlp.fc11",
    "blk.ffn_down": _NOMIC_LAYER + "mlp.fc2",
    "blk.layer_output_norm": _NOMIC_LAYER + "norm2",
}
NOMIC_BERT_MOE = NOMIC_BERT | {
    "blk.ffn_up": _NOMIC_LAYER + "mlp.fc1",
    "blk.ffn_gate_inp": _NOMIC_LAYER + "mlp.router.layer",
    "blk.ffn_up_exps": _NOMIC_LAYER + "mlp.experts.mlp.w1",
    "blk.ffn_down_exps": _NOMIC_LAYER + "mlp.experts.mlp.w2",
}
MODERN_BERT = {
    "token_embd": "model.embeddings.tok_embeddings",
    "token_embd_norm": "model.embeddings.norm",
    "blk.attn_norm": _LAYER + "attn_norm",
    "blk.attn_qkv": _LAYER + "attn.Wqkv",
    "blk.attn_output": _LAYER + "attn.Wo",
    "blk.ffn_norm": _LAYER + "mlp_norm",
    "blk.ffn_up": _LAYER + "mlp.Wi",
    "blk.ffn_down": _LAYER + "mlp.Wo",
    "output_norm": "model.final_norm",
    "cls": "head.dense",
    "cls.norm": "head.norm",
    "cls.output": "classifier",
}
