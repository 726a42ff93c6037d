"""Configs of encoders from the metadata of GGUF files."""

from __future__ import annotations

from dragoman.core.errors import ModelError
from dragoman.models.gguf import names
from dragoman.models.gguf.architecture import Architecture, Config, Tensors, head_size, layer_norm
from dragoman.models.gguf.metadata import Metadata


def _bert(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    _check_sees_both_sides(keys)
    found = _rows(tensors, "position_embd.weight", "max_position_embeddings")
    if is_classifier(tensors):
        found |= {"architectures": ["BertForSequenceClassification"], **_labels(keys, tensors, "bias")}
    return found | layer_norm(keys, "layer_norm_eps") | _types(tensors) | {"hidden_act": "gelu"}


def _nomic(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    _check_sees_both_sides(keys)
    _check_whole_heads(keys, config)
    return layer_norm(keys, "layer_norm_eps") | _types(tensors) | {"hidden_act": "silu"}


def _nomic_moe(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    _check_sees_both_sides(keys)
    _check_whole_heads(keys, config)
    return (
        layer_norm(keys, "layer_norm_eps")
        | _types(tensors)
        | {
            "activation_function": "gelu",
            "qkv_proj_bias": True,
            "mlp_fc1_bias": True,
            "mlp_fc2_bias": True,
            "moe_every_n_layers": keys.size("moe_every_n_layers"),
            "num_experts": keys.size("expert_count"),
            "moe_top_k": keys.size("expert_used_count"),
            "experts_bias": False,  # converters leave it out
        }
    )


def _modern(keys: Metadata, tensors: Tensors, config: Config) -> Config:
    _check_sees_both_sides(keys)
    _check_whole_heads(keys, config)
    layers, period = config["num_hidden_layers"], keys.size("attention.sliding_window_pattern", 3)
    thetas = {
        "full_attention": keys.number("rope.freq_base", 160_000.0),
        "sliding_attention": keys.number("rope.freq_base_swa", 10_000.0),
    }
    found = layer_norm(keys, "norm_eps")
    if is_classifier(tensors):
        # llama.cpp takes the mean: the only published models are such.
        found |= {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean"}
        found |= _labels(keys, tensors, "norm")
    return found | {
        "hidden_activation": keys.text("hidden_act", "gelu"),
        "local_attention": keys.size("attention.sliding_window"),
        "layer_types": ["sliding_attention" if layer % period else "full_attention" for layer in range(layers)],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()},
    }


def is_classifier(tensors: Tensors) -> bool:
    """Return whether an encoder has the layers of a classifier after its pooling."""
    return "cls.output.weight" in tensors or "cls.weight" in tensors


def _labels(keys: Metadata, tensors: Tensors, further: str) -> Config:
    """Return the count of a classifier's results. Raises ModelError where one of its two layers is not there.
    ``further``: of ``cls``, a tensor besides the weight."""
    for name in ("cls.weight", "cls.norm.weight" if further == "norm" else "cls.bias", "cls.output.weight"):
        if name not in tensors:
            reason = "of a classifier is missing: converters leave out the layer before BERT's and ModernBERT's last"
            raise ModelError(f"{keys.file.path}: tensor {name} {reason}")
    rows = _rows(tensors, "cls.output.weight", "num_labels")
    if (labels := keys.texts("classifier.output_labels")) and len(labels) != rows["num_labels"]:
        raise keys.file.fail("classifier.output_labels", f"names {len(labels)} of {rows['num_labels']} results")
    return rows


def _check_sees_both_sides(keys: Metadata) -> None:
    keys.refuse("attention.causal", False)


def _check_whole_heads(keys: Metadata, config: Config) -> None:
    if keys.size("rope.dimension_count", dim := head_size(keys, config)) != dim:
        raise keys.file.fail("rope.dimension_count", f"is not that of whole heads, {dim}")


def _types(tensors: Tensors) -> Config:
    return _rows(tensors, "token_types.weight", "type_vocab_size")


def _rows(tensors: Tensors, name: str, key: str) -> Config:
    """Return the rows of a table under a key of the config; nothing where there is no such table."""
    if name not in tensors:
        return {}
    if len(shape := tensors[name].shape) != 2:
        raise tensors[name].fail("is no matrix")
    return {key: shape[0]}


ENCODERS: dict[str, Architecture] = {
    "bert": Architecture(name="BertModel", model_type="bert", names=names.BERT, extra=_bert, rotary=False),
    "nomic-bert": Architecture(name="NomicBertModel", model_type="nomic_bert", names=names.NOMIC_BERT, extra=_nomic),
    "nomic-bert-moe": Architecture(
        name="NomicBertModel", model_type="nomic_bert", names=names.NOMIC_BERT_MOE, extra=_nomic_moe
    ),
    "modern-bert": Architecture(
        name="ModernBertModel", model_type="modernbert", names=names.MODERN_BERT, extra=_modern
    ),
}
