"""Decoders of transformers that are not supported, each with what it needs and the description here does not have."""

from __future__ import annotations

_SEVERAL_STREAMS = "residual streams that are mixed (hyper-connections)"
_INDEXER = "an indexer that chooses the positions a token sees"

MISSING: dict[str, str] = {
    "AXK2ForCausalLM": f"{_INDEXER}, and norms with gates",
    "BailingHybridForCausalLM": "Kimi delta attention whose decays are bounded, and latent attention with gates",
    "BioGptForCausalLM": "a tokenizer that is only code (Moses)",
    "DeepseekV4ForCausalLM": f"{_SEVERAL_STREAMS}, and attention to compressed positions",
    "DiffLlamaForCausalLM": "differential attention",
    "DogeForCausalLM": "attention whose masks depend on values",
    "GPTNeoXJapaneseForCausalLM": "a tokenizer that is only code, and a bias in the last layer alone",
    "Glm5NextForConditionalGeneration": f"{_SEVERAL_STREAMS}, and {_INDEXER}",
    "HYV4ForCausalLM": f"{_SEVERAL_STREAMS}, and {_INDEXER}",
    "HrmTextForCausalLM": "stacks of layers that run several times for a token",
    "InklingForCausalLM": "biases of scores that depend on the query, and convolutions in attention",
    "InklingForConditionalGeneration": "biases of scores that depend on the query, and convolutions in attention",
    "JetMoeForCausalLM": "experts in attention",
    "Kolibri1ForCausalLM": "experts that are chosen by biased logits",
    "MistralLarge4ForConditionalGeneration": f"{_INDEXER}, trained rotations, and queries scaled by their position",
    "MuseSparkForConditionalGeneration": "experts of another width than the stream, and gates of the stream",
    "Qwen4ExpForCausalLM": f"{_SEVERAL_STREAMS}, and embeddings of several tokens together",
    "Qwen4ExpForConditionalGeneration": f"{_SEVERAL_STREAMS}, and embeddings of several tokens together",
    "Step3p7ForConditionalGeneration": "experts whose gates are clamped in some layers alone",
    "ZayaForCausalLM": "attention whose queries, keys and values pass convolutions",
}
