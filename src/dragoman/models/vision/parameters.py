"""Parameters of a vision tower, and their names in checkpoints."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.models.parameter import Parameter
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parts import Layers, Norm, Resampler, grids_of

PREFIX = "vision_"
"""Beginning of the modules' names."""

PROJECT_NORM = f"{PREFIX}project_norm"
"""Module of the norm before the projection."""

CLIPPED = ("query", "key", "value", "attention_out", "gate", "up", "feed_forward_out")
LIMITS = ("input_min", "input_max", "output_min", "output_max")
"""Products with limits of what they take and make, and these."""


def is_vision(parameter: Parameter) -> bool:
    """Return whether a parameter is the tower's, its projection included."""
    return parameter.module.startswith(PREFIX)


def vision_parameters(vision: VisionDescription) -> list[Parameter]:
    """Return every parameter of the tower and of the projection, in the order in which they are used."""
    layers, projection, patch = vision.layers, vision.projection, vision.patch
    width, whole = layers.width, vision.batch_of_one
    pictures = (vision.frames,) if vision.frames > 1 else ()
    shape = (width, vision.patch_floats) if vision.channels_last else (width, 3, *pictures, patch, patch)
    found = [_matrix("patch", None, (width,), vision.patch_floats, stored=shape)]
    if vision.patch_bias:
        found.append(_vector("patch", "bias", None, width))
    if vision.class_token:
        found.append(replace(_vector("class", "weight", None, width), stored=(1, 1, width) if whole else None))
    if vision.positions == "axial":
        rows = 2 * vision.position_side
        table = Parameter(f"{PREFIX}positions", "weight", None, (rows, width), (rows,), False)
        found.append(replace(table, stored=(2, vision.position_side, width)))
    elif vision.positions != "none":
        rows = vision.tile_rows if vision.positions == "learned" else vision.position_side**2
        rows = vision.cross_attention_rows if vision.tiling.kind == "canvas" else rows
        table = Parameter(f"{PREFIX}positions", "weight", None, (rows, width), (rows,), False)
        found.append(replace(table, stored=(1, rows, width) if whole else None))
    if layers.first_stage:
        found += _tile_positions(vision)
    if layers.first_norm:
        found += _norm("first_norm", None, width, layers.norm)
    for layer in range(layers.count):
        found += _layer(layers, layer)
    if layers.last_norm:
        found += _norm("last_norm", None, width, layers.norm)
    reduced, inner = vision.reduced_width, projection.inner
    for place in range(vision.stacked):
        found += _norm("stacked_norm", place, reduced, "layer")
        found += _linear("stacked_in", place, (inner,), reduced, projection.first_bias)
        found += _linear("stacked_out", place, (projection.out,), inner, projection.last_bias)
    if vision.reduction.standardised:
        found += [_vector(f"standard_{kind}", "weight", None, width) for kind in ("mean", "scale")]
    if projection.norm is not None and projection.norm_weight:
        found += _norm("project_norm", None, reduced, projection.norm)
    if projection.merged:
        found.append(_matrix("project_merge", None, (vision.taken_width,), reduced))
        reduced = vision.taken_width
    if inner:
        found += _linear("project_in", None, (inner,) * (1 + projection.gated), reduced, projection.first_bias)
    if vision.tiling.kind == "fit":
        found.append(_vector("row_end", "weight", None, projection.out))
    if projection.product:
        found += _linear("project_out", None, (projection.out,), inner or reduced, projection.last_bias)
    return found if vision.resampler is None else found + _resampler(vision.resampler, projection.out)


def _tile_positions(vision: VisionDescription) -> list[Parameter]:
    """Return the learned rows of tiles, by their grid: before the patches, of each patch, and between the stages; and
    the gates of these."""
    grids, columns = 1 + len(grids_of(vision.tiling.most)), vision.tiling.most * vision.layers.width
    sizes = {"tiles_before": columns, "tiles_each": columns * vision.cross_attention_rows, "tiles_between": columns}
    found = [
        Parameter(f"{PREFIX}{module}", "weight", None, (grids, size), (grids,), False) for module, size in sizes.items()
    ]
    gates = ("positions_gate", "tiles_before_gate", "tiles_between_gate")
    return found + [_vector(gate, "weight", None, 1) for gate in gates]


def _resampler(resampler: Resampler, width: int) -> list[Parameter]:
    query, key = resampler.heads * resampler.head_dim, resampler.kv_heads * resampler.head_dim
    vectors = resampler.vectors
    found = [Parameter(f"{PREFIX}resampler_vectors", "weight", None, (vectors, width), (vectors,), False)]
    for layer in range(resampler.layers):
        for norm in ("context", "vectors", "feed_forward"):
            found += _norm(f"resampler_{norm}_norm", layer, width, resampler.norm)
        if resampler.head_norm:
            for norm in ("query", "key"):
                found += _norm(f"resampler_{norm}_norm", layer, resampler.head_dim, resampler.norm)
        found += [
            _matrix("resampler_query", layer, (query,), width),
            _matrix("resampler_key_value", layer, (key, key), width),
            _matrix("resampler_out", layer, (width,), query),
            _matrix("resampler_feed_forward_in", layer, (resampler.feed_forward,) * (1 + resampler.gated), width),
            _matrix("resampler_feed_forward_out", layer, (width,), resampler.feed_forward),
        ]
    return found + _norm("resampler_last_norm", None, width, resampler.norm)


def _layer(layers: Layers, layer: int) -> list[Parameter]:
    width, wide = layers.width, (layers.feed_forward,) * (1 + layers.gated)
    found = _norm("attention_norm", layer, width, layers.norm)
    if layers.clipped:
        found += [_matrix(module, layer, (width,), width) for module in ("query", "key", "value")]
    else:
        found += _linear("qkv", layer, (width,) * 3, width, layers.qkv_bias)
    norm = width if layers.joint_head_norm else layers.head_dim if layers.head_norm else 0
    if norm:
        found += [_vector(module, "weight", layer, norm) for module in ("query_norm", "key_norm")]
    found += _linear("attention_out", layer, (width,), width, layers.bias and not layers.first_stage)
    if layers.norms_around:
        found += _norm("attention_out_norm", layer, width, layers.norm)
    found += _norm("feed_forward_norm", layer, width, layers.norm)
    if layers.clipped:
        found += [_matrix(module, layer, wide[:1], width) for module in ("gate", "up")]
    else:
        found += _linear("feed_forward_in", layer, wide, width, layers.bias)
    found += _linear("feed_forward_out", layer, (width,), layers.feed_forward, layers.bias)
    if layers.norms_around:
        found += _norm("feed_forward_out_norm", layer, width, layers.norm)
    if 0 < layers.first_stage <= layer:
        found += [_vector(f"{branch}_gate", "weight", layer, 1) for branch in ("attention", "feed_forward")]
    if layers.branch_scales:
        found += [_vector(f"{branch}_scale", "weight", layer, width) for branch in ("attention", "feed_forward")]
    if layers.clipped:
        found += [_vector(f"{module}_{limit}", "weight", layer, 1) for module in CLIPPED for limit in LIMITS]
    return found


def siglip_names(tower: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of a tower like SigLIP's, or CLIP's, under the prefix ``tower``."""
    layer = f"{tower}encoder.layers.{{layer}}."
    names = {
        "patch": (f"{tower}embeddings.patch_embedding",),
        "class": (f"{tower}embeddings.class_embedding",),
        "positions": (f"{tower}embeddings.position_embedding",),
        "first_norm": (f"{tower}pre_layrnorm",),
        "attention_norm": (f"{layer}layer_norm1",),
        "qkv": tuple(f"{layer}self_attn.{part}_proj" for part in "qkv"),
        "attention_out": (f"{layer}self_attn.out_proj",),
        "feed_forward_norm": (f"{layer}layer_norm2",),
        "feed_forward_in": (f"{layer}mlp.fc1",),
        "feed_forward_out": (f"{layer}mlp.fc2",),
        "last_norm": (f"{tower}post_layernorm",),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def resampler_names(connector: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of Idefics 2's projection and resampler."""
    resampler = f"{connector}perceiver_resampler."
    projection, layer = f"{connector}modality_projection.", f"{resampler}layers.{{layer}}."
    names = {
        "project_in": (f"{projection}gate_proj", f"{projection}up_proj"),
        "project_out": (f"{projection}down_proj",),
        "resampler_vectors": (f"{resampler}latents",),
        "resampler_context_norm": (f"{layer}input_context_norm",),
        "resampler_vectors_norm": (f"{layer}input_latents_norm",),
        "resampler_feed_forward_norm": (f"{layer}post_attention_layernorm",),
        "resampler_query": (f"{layer}self_attn.q_proj",),
        "resampler_key_value": (f"{layer}self_attn.k_proj", f"{layer}self_attn.v_proj"),
        "resampler_out": (f"{layer}self_attn.o_proj",),
        "resampler_feed_forward_in": (f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj"),
        "resampler_feed_forward_out": (f"{layer}mlp.down_proj",),
        "resampler_last_norm": (f"{resampler}norm",),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def idefics_names(resampler: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of Idefics' resampler."""
    attention, network = (f"{resampler}blocks.{{layer}}.{place}." for place in (0, 1))
    names = {
        "resampler_vectors": (f"{resampler}latents",),
        "resampler_context_norm": (f"{attention}context_layer_norm",),
        "resampler_vectors_norm": (f"{attention}latents_layer_norm",),
        "resampler_query_norm": (f"{attention}q_layer_norm",),
        "resampler_key_norm": (f"{attention}k_layer_norm",),
        "resampler_query": (f"{attention}q_proj",),
        "resampler_key_value": (f"{attention}k_proj", f"{attention}v_proj"),
        "resampler_out": (f"{attention}output_proj",),
        "resampler_feed_forward_norm": (f"{network}ln",),
        "resampler_feed_forward_in": (f"{network}fc",),
        "resampler_feed_forward_out": (f"{network}c_proj",),
        "resampler_last_norm": (f"{resampler}layer_norm",),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def mllama_names(tower: str, projector: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of Mllama's tower, whose second stage's layers have numbers after those of
    the first, and of its projection."""
    layer = f"{tower}transformer.layers.{{layer}}."
    names = {
        "patch": (f"{tower}patch_embedding",),
        "class": (f"{tower}class_embedding",),
        "positions": (f"{tower}gated_positional_embedding.embedding",),
        "positions_gate": (f"{tower}gated_positional_embedding.gate",),
        "tiles_each": (f"{tower}gated_positional_embedding.tile_embedding",),
        "tiles_before": (f"{tower}pre_tile_positional_embedding.embedding",),
        "tiles_before_gate": (f"{tower}pre_tile_positional_embedding.gate",),
        "tiles_between": (f"{tower}post_tile_positional_embedding.embedding",),
        "tiles_between_gate": (f"{tower}post_tile_positional_embedding.gate",),
        "first_norm": (f"{tower}layernorm_pre",),
        "last_norm": (f"{tower}layernorm_post",),
        "attention_norm": (f"{layer}input_layernorm",),
        "qkv": tuple(f"{layer}self_attn.{part}_proj" for part in "qkv"),
        "attention_out": (f"{layer}self_attn.o_proj",),
        "attention_gate": (f"{layer}gate_attn",),
        "feed_forward_norm": (f"{layer}post_attention_layernorm",),
        "feed_forward_in": (f"{layer}mlp.fc1",),
        "feed_forward_out": (f"{layer}mlp.fc2",),
        "feed_forward_gate": (f"{layer}gate_ffn",),
        "project_out": (projector,),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def internvl_names(tower: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of InternVL's tower under the prefix ``tower``."""
    layer = f"{tower}encoder.layer.{{layer}}."
    names = {
        "patch": (f"{tower}embeddings.patch_embeddings.projection",),
        "class": (f"{tower}embeddings.cls_token",),
        "positions": (f"{tower}embeddings.position_embeddings",),
        "attention_norm": (f"{layer}layernorm_before",),
        "qkv": tuple(f"{layer}attention.{part}_proj" for part in "qkv"),
        "query_norm": (f"{layer}attention.q_norm",),
        "key_norm": (f"{layer}attention.k_norm",),
        "attention_out": (f"{layer}attention.projection_layer",),
        "attention_scale": (f"{layer}lambda_1",),
        "feed_forward_norm": (f"{layer}layernorm_after",),
        "feed_forward_in": (f"{layer}mlp.fc1",),
        "feed_forward_out": (f"{layer}mlp.fc2",),
        "feed_forward_scale": (f"{layer}lambda_2",),
        "last_norm": (f"{tower}layernorm",),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def internvl_chat_names(tower: str, projector: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of InternVL's tower and projection in checkpoints as its authors first published them."""
    layer = f"{tower}encoder.layers.{{layer}}."
    names = {
        "patch": (f"{tower}embeddings.patch_embedding",),
        "class": (f"{tower}embeddings.class_embedding",),
        "positions": (f"{tower}embeddings.position_embedding",),
        "attention_norm": (f"{layer}norm1",),
        "qkv": (f"{layer}attn.qkv",),
        "query_norm": (f"{layer}attn.q_norm",),
        "key_norm": (f"{layer}attn.k_norm",),
        "attention_out": (f"{layer}attn.proj",),
        "attention_scale": (f"{layer}ls1",),
        "feed_forward_norm": (f"{layer}norm2",),
        "feed_forward_in": (f"{layer}mlp.fc1",),
        "feed_forward_out": (f"{layer}mlp.fc2",),
        "feed_forward_scale": (f"{layer}ls2",),
        "project_norm": (f"{projector}0",),
        "project_in": (f"{projector}1",),
        "project_out": (f"{projector}3",),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def pixtral_names(tower: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of Pixtral's tower under the prefix ``tower``."""
    layer = f"{tower}transformer.layers.{{layer}}."
    names = {
        "patch": (f"{tower}patch_conv",),
        "first_norm": (f"{tower}ln_pre",),
        "attention_norm": (f"{layer}attention_norm",),
        "qkv": tuple(f"{layer}attention.{part}_proj" for part in "qkv"),
        "attention_out": (f"{layer}attention.o_proj",),
        "feed_forward_norm": (f"{layer}ffn_norm",),
        "feed_forward_in": (f"{layer}feed_forward.gate_proj", f"{layer}feed_forward.up_proj"),
        "feed_forward_out": (f"{layer}feed_forward.down_proj",),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def qwen_names(tower: str, *, gated: bool) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of Qwen2-VL's tower, or of Qwen2.5-VL's, which is ``gated``."""
    layer = f"{tower}blocks.{{layer}}."
    names = {
        "patch": (f"{tower}patch_embed.proj",),
        "attention_norm": (f"{layer}norm1",),
        "qkv": (f"{layer}attn.qkv",),
        "attention_out": (f"{layer}attn.proj",),
        "feed_forward_norm": (f"{layer}norm2",),
        "feed_forward_in": (f"{layer}mlp.gate_proj", f"{layer}mlp.up_proj") if gated else (f"{layer}mlp.fc1",),
        "feed_forward_out": (f"{layer}mlp.down_proj" if gated else f"{layer}mlp.fc2",),
        "last_norm": (f"{tower}merger.ln_q",),
        "project_in": (f"{tower}merger.mlp.0",),
        "project_out": (f"{tower}merger.mlp.2",),
    }
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def qwen3_names(tower: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of the tower of Qwen3-VL and Qwen 3.5."""
    layer, stacked = f"{tower}blocks.{{layer}}.", f"{tower}deepstack_merger_list.{{layer}}."
    names = {
        "positions": (f"{tower}pos_embed",),
        "feed_forward_in": (f"{layer}mlp.linear_fc1",),
        "feed_forward_out": (f"{layer}mlp.linear_fc2",),
        "last_norm": (f"{tower}merger.norm",),
        "project_in": (f"{tower}merger.linear_fc1",),
        "project_out": (f"{tower}merger.linear_fc2",),
        "stacked_norm": (f"{stacked}norm",),
        "stacked_in": (f"{stacked}linear_fc1",),
        "stacked_out": (f"{stacked}linear_fc2",),
    }
    return qwen_names(tower, gated=False) | {f"{PREFIX}{module}": found for module, found in names.items()}


def gemma4_names(tower: str, embedder: str) -> dict[str, tuple[str, ...]]:
    """Return the stored names of the modules of Gemma 4's tower and projection."""
    layer = f"{tower}encoder.layers.{{layer}}."
    stored = {"query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj"}
    stored |= {"attention_out": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj"}
    stored["feed_forward_out"] = "mlp.down_proj"
    names: dict[str, tuple[str, ...]] = {
        "patch": (f"{tower}patch_embedder.input_proj",),
        "positions": (f"{tower}patch_embedder.position_embedding_table",),
        "attention_norm": (f"{layer}input_layernorm",),
        "query_norm": (f"{layer}self_attn.q_norm",),
        "key_norm": (f"{layer}self_attn.k_norm",),
        "attention_out_norm": (f"{layer}post_attention_layernorm",),
        "feed_forward_norm": (f"{layer}pre_feedforward_layernorm",),
        "feed_forward_out_norm": (f"{layer}post_feedforward_layernorm",),
        "standard_mean": (f"{tower}std_bias",),
        "standard_scale": (f"{tower}std_scale",),
        "project_out": (f"{embedder}embedding_projection",),
        **{module: (f"{layer}{name}.linear",) for module, name in stored.items()},
        **{f"{module}_{limit}": (f"{layer}{name}.{limit}",) for module, name in stored.items() for limit in LIMITS},
    }
    names["qkv"] = names["query"] + names["key"] + names["value"]
    names["feed_forward_in"] = names["gate"] + names["up"]
    return {f"{PREFIX}{module}": found for module, found in names.items()}


def _matrix(
    module: str, layer: int | None, parts: tuple[int, ...], inputs: int, stored: tuple[int, ...] | None = None
) -> Parameter:
    return Parameter(f"{PREFIX}{module}", "weight", layer, (sum(parts), inputs), parts, True, stored=stored)


def _vector(module: str, kind: str, layer: int | None, *parts: int) -> Parameter:
    return Parameter(f"{PREFIX}{module}", "bias" if kind == "bias" else "weight", layer, (sum(parts),), parts, False)


def _linear(module: str, layer: int | None, parts: tuple[int, ...], inputs: int, bias: bool) -> list[Parameter]:
    found = [_matrix(module, layer, parts, inputs)]
    return [*found, _vector(module, "bias", layer, *parts)] if bias else found


def _norm(module: str, layer: int | None, width: int, kind: Norm) -> list[Parameter]:
    found = [_vector(module, "weight", layer, width)]
    return [*found, _vector(module, "bias", layer, width)] if kind == "layer" else found
