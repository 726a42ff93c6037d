"""Mistral: a Llama with windows, in all layers or, in Ministral, in some; Ministral 3, whose queries grow with their
position; and the models with images, of which the text decoder is read."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.config import Config
from dragoman.models.families.family import IMAGE_PARTS, WITH_IMAGES, Family
from dragoman.models.families.latent import LATENT_NAMES, pop_query_scale, read_mistral4
from dragoman.models.families.llama import LLAMA_NAMES, ROTARY_BUFFER, llama_like
from dragoman.models.families.scored_mixtures import DEEPSEEK_NAMES, DEEPSEEK_STACKS
from dragoman.models.latent import divide_keys_and_values
from dragoman.models.rope_config import read_rope_block
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.parameters import pixtral_names

# Of Ministral 3, where a config has no rotation at all.
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def _read_mistral(config: Config) -> DecoderSpec:
    config.refuse("layer_types")  # alternating attention is Ministral's, another family
    window = _window(config)
    return llama_like(config, architecture="MistralForCausalLM", windows=(window,) * config.size("num_hidden_layers"))


def _read_ministral(config: Config) -> DecoderSpec:
    layers, window = config.size("num_hidden_layers"), _window(config)
    windows = config.choices("layer_types", layers, {"full_attention": 0, "sliding_attention": window})
    return llama_like(config, architecture="MinistralForCausalLM", windows=windows or (window,) * layers)


def _read_ministral3(config: Config) -> DecoderSpec:
    config.refuse("layer_types")
    config = config.over({"rms_norm_eps": 1e-5, "max_position_embeddings": 262_144})
    config.size("num_key_value_heads")  # absent, it is not the number of heads
    layers, heads = config.size("num_hidden_layers"), config.size("num_attention_heads")
    config = config.over({"head_dim": 128})
    head_dim = config.size("head_dim", config.size("hidden_size") // heads)
    positions = config.size("max_position_embeddings")
    block = dict(config.block("rope_parameters") or config.block("rope_scaling") or _YARN)
    block.pop("max_position_embeddings", None)
    query_scale = pop_query_scale(block, span=16_384, layers=layers)
    rope = read_rope_block(config, block, head_dim, positions, theta=1_000_000.0)
    return llama_like(
        config,
        architecture="Ministral3ForCausalLM",
        context=rope.scaling.context(positions),
        ropes=(rope,) * layers,
        query_scale=query_scale,
        windows=(config.window(),) * layers,
    )


def _read_with_images(config: Config) -> DecoderSpec:
    """Return the text decoder of the models with images."""
    text = config.within("text_config")
    readers = {"mistral": _read_mistral, "ministral3": _read_ministral3, "mistral4": read_mistral4}
    kind = config.block("text_config").get("model_type", "mistral")
    if not isinstance(kind, str) or kind not in readers:
        raise ModelError(
            f"config.json: text_config of model_type {kind!r} is not supported; known: {', '.join(readers)}"
        )
    return replace(readers[kind](text), architecture="Mistral3ForConditionalGeneration")


def _window(config: Config) -> int:
    """Return the window; 0 for ``null``, and that of the first Mistral for an absent field."""
    return 0 if config.values.get("sliding_window", 4096) is None else config.size("sliding_window", 4096)


_PROJECTOR = "model.multi_modal_projector."
_PIXTRAL_NAMES = pixtral_names("model.vision_tower.") | {
    "vision_last_norm": (f"{_PROJECTOR}norm",),
    "vision_project_merge": (f"{_PROJECTOR}patch_merger.merging_layer",),
    "vision_project_in": (f"{_PROJECTOR}linear_1",),
    "vision_project_out": (f"{_PROJECTOR}linear_2",),
}

FAMILIES: dict[str, Family] = {
    "MistralForCausalLM": Family(
        _read_mistral,
        LLAMA_NAMES,
        "mistral",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="Mistral",
        examples=("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-Small-24B-Instruct-2501"),
    ),
    "MinistralForCausalLM": Family(
        _read_ministral,
        LLAMA_NAMES,
        "ministral",
        base="model.",
        ignored=ROTARY_BUFFER,
        title="Ministral",
        examples=("mistralai/Ministral-8B-Instruct-2410",),
    ),
    "Ministral3ForCausalLM": Family(
        _read_ministral3,
        LLAMA_NAMES,
        "ministral3",
        base="model.",
        title="Ministral 3",
        examples=("mistralai/Ministral-3-3B-Instruct-2512",),
    ),
    "Mistral3ForConditionalGeneration": Family(
        _read_with_images,
        LLAMA_NAMES | DEEPSEEK_NAMES | LATENT_NAMES | _PIXTRAL_NAMES,
        "mistral3",
        base="model.",
        ignored=IMAGE_PARTS,
        aliases=WITH_IMAGES,
        other_names=DEEPSEEK_STACKS,
        divide=divide_keys_and_values,
        title="Mistral Small 3 and 4 and Ministral 3 with images",
        examples=("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistralai/Ministral-3-8B-Instruct-2512"),
        note="It [sees images](vision.md).",
    ),
}
