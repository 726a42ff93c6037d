"""Parameters of a vision tower, and their names in checkpoints."""

from __future__ import annotations

from dataclasses import replace

from dragoman.models.parameter import Parameter
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parts import Norm

PREFIX = "vision_"
"""Beginning of the modules' names."""

PROJECT_NORM = f"{PREFIX}project_norm"
"""Module of the norm before the projection."""


def is_vision(parameter: Parameter) -> bool:
    """Return whether a parameter is the tower's, its projection included."""
    return parameter.module.startswith(PREFIX)


def vision_parameters(vision: VisionDescription) -> list[Parameter]:
    """Return every parameter of the tower and of the projection, in the order in which they are used."""
    layers, projection, patch = vision.layers, vision.projection, vision.patch
    width, whole = layers.width, vision.batch_of_one
    pictures = (vision.frames,) if vision.frames > 1 else ()
    found = [_matrix("patch", None, (width,), vision.patch_floats, stored=(width, 3, *pictures, patch, patch))]
    if vision.patch_bias:
        found.append(_vector("patch", "bias", None, width))
    if vision.class_token:
        found.append(replace(_vector("class", "weight", None, width), stored=(1, 1, width) if whole else None))
    if vision.positions == "learned":
        rows = vision.tile_rows
        table = Parameter(f"{PREFIX}positions", "weight", None, (rows, width), (rows,), False)
        found.append(replace(table, stored=(1, rows, width) if whole else None))
    if layers.first_norm:
        found += _norm("first_norm", None, width, layers.norm)
    for layer in range(layers.count):
        found += _norm("attention_norm", layer, width, layers.norm)
        found += _linear("qkv", layer, (width,) * 3, width, layers.qkv_bias)
        if layers.joint_head_norm:
            found += [_vector(module, "weight", layer, width) for module in ("query_norm", "key_norm")]
        found += _linear("attention_out", layer, (width,), width, layers.bias)
        found += _norm("feed_forward_norm", layer, width, layers.norm)
        found += _linear("feed_forward_in", layer, (layers.feed_forward,) * (1 + layers.gated), width, layers.bias)
        found += _linear("feed_forward_out", layer, (width,), layers.feed_forward, layers.bias)
        if layers.branch_scales:
            found += [_vector(f"{branch}_scale", "weight", layer, width) for branch in ("attention", "feed_forward")]
    if layers.last_norm:
        found += _norm("last_norm", None, width, layers.norm)
    reduced, inner = vision.reduced_width, projection.inner
    if projection.norm is not None:
        found += _norm("project_norm", None, reduced, projection.norm)
    if projection.merged:
        found.append(_matrix("project_merge", None, (vision.taken_width,), reduced))
        reduced = vision.taken_width
    if inner:
        found += _linear("project_in", None, (inner,), reduced, projection.first_bias)
    if vision.tiling.kind == "fit":
        found.append(_vector("row_end", "weight", None, projection.out))
    return found + _linear("project_out", None, (projection.out,), inner or reduced, projection.last_bias)


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
