"""Projector files (``mmproj``): the vision tower of a GGUF model in a file of its own, of the architecture ``clip``.

Its metadata and that of the model make the config that a family with images reads, and its tensors those of the
family. Keys and names are those of llama.cpp's ``gguf-py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.families import FAMILIES
from dragoman.models.gguf.architecture import Config
from dragoman.models.gguf.file import GgufFile, read_gguf
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.projector_configs import CONFIGS, Found
from dragoman.models.gguf.tensors import GgufTensor
from dragoman.models.tensors import Format, Tensor, to_float32

Stored = Mapping[str, GgufTensor]

_BLOCK = re.compile(r"v\.(blk|deepstack)\.(\d{1,5})\.(.+)")
_MODULES = {
    "v.patch_embd": "patch",
    "v.class_embd": "class",
    "v.position_embd": "positions",
    "v.pre_ln": "first_norm",
    "v.post_ln": "last_norm",
    "model.image_newline": "row_end",
    "ln1": "attention_norm",
    "attn_qkv": "qkv",
    "attn_q_norm": "query_norm",
    "attn_k_norm": "key_norm",
    "attn_out": "attention_out",
    "ls1": "attention_scale",
    "ln2": "feed_forward_norm",
    "ffn_down": "feed_forward_out",
    "ls2": "feed_forward_scale",
    "deepstack.norm": "stacked_norm",
    "deepstack.fc1": "stacked_in",
    "deepstack.fc2": "stacked_out",
}
_PARTS = {"attn_q": ("qkv", 0), "attn_k": ("qkv", 1), "attn_v": ("qkv", 2)}
_UNUSED = frozenset({"v.token_embd.img_break"})  # the decoder's table has it
_SECOND_FRAME = "v.patch_embd.weight.1"


class Projector(msgspec.Struct, frozen=True):
    """Header of a projector file. ``stored``: its tensors by their names in it."""

    file: GgufFile
    stored: Stored

    @property
    def keys(self) -> Metadata:
        """Its metadata."""
        return Metadata(self.file, "clip.")

    @property
    def kind(self) -> str:
        """What kind of tower and projection it has. Raises ModelError for one that is not supported."""
        keys = self.keys
        if keys.flag("has_audio_encoder", False):
            raise self.file.fail("clip.has_audio_encoder", "is true: only projectors for images are supported")
        found = keys.text("projector_type", keys.text("vision.projector_type", "mlp"))
        if found not in CONFIGS:
            raise self.file.fail("clip.projector_type", f"{found!r} is not supported; known: {', '.join(CONFIGS)}")
        return found


def open_projector(path: Path) -> Projector:
    """Read the header of a projector file. Raises ModelError naming the file, and what is wrong with it."""
    file = read_gguf(path)
    if (kind := file.metadata.get("general.architecture")) != "clip":
        raise file.fail("general.architecture", f"is {kind!r}: it is no projector file, whose architecture is 'clip'")
    stored = {
        info.name: GgufTensor(file.path, info.name, info.name, info.kind, info.shape, info.start, info.stop)
        for info in file.tensors.values()
    }
    return Projector(file, stored)


def with_images(projector: Projector, model: GgufFile, text: Config) -> tuple[Config, Config]:
    """Return the config of the whole model, and the image processor's, from the projector's metadata, the model's, and
    the config of its decoder. Raises ModelError naming a key, or a decoder that the projector does not go with."""
    keys, kind = projector.keys, projector.kind
    found: Found = CONFIGS[kind](keys, projector.stored, Metadata(model), text)
    if found is None:
        raise ModelError(f"{projector.file.path}: a projector of kind {kind} does not go with {text['model_type']}")
    tokens = model.metadata.get("tokenizer.ggml.tokens")
    names = tokens if isinstance(tokens, list) else []
    known = [token for token in found.image_tokens if token in names]
    if not known:
        raise ModelError(f"{model.path}: its vocabulary has no token {found.image_tokens[0]} for images")
    width = keys.size("vision.projection_dim", text["hidden_size"])
    if width != text["hidden_size"]:
        raise projector.file.fail("clip.vision.projection_dim", f"{width} differs from {text['hidden_size']} of text")
    for key in ("projector_type", "vision.projector_type", "has_vision_encoder", "has_llava_projector"):
        keys.has(key)
    keys.flag("has_audio_encoder", False)
    keys.refuse_others()
    config = text | found.config | {"image_token_id": names.index(known[0])}
    if known[0] != found.image_tokens[0]:
        config["image_token"] = known[0]
    return config | {"text_config": found.config.get("text_config", text)}, found.preprocessor


def projector_tensors(projector: Projector, config: Config) -> dict[str, Tensor]:
    """Return the projector's tensors under the names of the family of the whole config. Raises ModelError naming one of
    unknown use."""
    family, kind = FAMILIES[config["architectures"][0]], projector.kind
    names = {**family.names, **(family.other_names if kind == "pixtral" else {})}
    modules = _MODULES | PROJECTIONS[kind]
    gated = any(name.endswith("ffn_gate.weight") for name in projector.stored)
    parts = (
        _PARTS | ({"ffn_gate": ("feed_forward_in", 0)} if gated else {}) | {"ffn_up": ("feed_forward_in", int(gated))}
    )
    stacked = sorted(
        {int(block[2]) for name in projector.stored if (block := _BLOCK.match(name)) and block[1] != "blk"}
    )
    gathered: dict[tuple[str, int, str], dict[int, GgufTensor]] = {}
    for name, tensor in _with_usual_networks(projector, config).items():
        if name == _SECOND_FRAME or name in _UNUSED or name.rpartition(".")[0] in _UNUSED:
            continue
        module, _, ending = name.rpartition(".")
        if name in modules:  # a vector without an ending
            module, ending = name, "weight"
        layer = -1
        if block := _BLOCK.fullmatch(module):
            layer = int(block[2]) if block[1] == "blk" else stacked.index(int(block[2]))
            module = block[3] if block[1] == "blk" else f"deepstack.{block[3]}"
        ours, part = parts.get(module, (modules.get(module, ""), 0))
        if f"vision_{ours}" not in names or ending not in ("weight", "bias"):
            raise tensor.fail(f"is of no known use in a projector of kind {kind}")
        gathered.setdefault((ours, layer, ending), {})[part] = tensor
    found: dict[str, Tensor] = {}
    for (module, layer, ending), tensors in gathered.items():
        for each in _as_family(projector, config, module, names[f"vision_{module}"], tensors):
            whole = f"{each.name.replace('{layer}', str(layer))}.{ending}"
            found[whole] = replace(each, name=whole)
    return found


def _with_usual_networks(projector: Projector, config: Config) -> Stored:
    """Return the tensors with those of feed-forward networks as they are called today: in older files the two products
    have each other's names."""
    first = projector.stored.get("v.blk.0.ffn_up.weight")
    width, wide = (projector.keys.size(f"vision.{key}") for key in ("embedding_length", "feed_forward_length"))
    if first is None or width == wide or first.shape[:1] != (width,):
        return projector.stored
    swapped = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    return {
        re.sub(r"ffn_(up|down)", lambda match: swapped[match[0]], name): tensor
        for name, tensor in projector.stored.items()
    }


def _as_family(
    projector: Projector, config: Config, module: str, names: Sequence[str], tensors: Mapping[int, GgufTensor]
) -> list[GgufTensor | Computed]:
    """Return a module's tensors, as many as the family has of it, under names with ``{layer}``."""
    kind, ordered = projector.kind, [tensors[place] for place in sorted(tensors)]
    if module == "qkv" and kind == "pixtral":
        heads, head_dim = config["vision_config"]["num_attention_heads"], config["vision_config"]["head_dim"]
        halves = np.arange(head_dim).reshape(head_dim // 2, 2).T.reshape(-1)
        rows = (np.arange(heads)[:, None] * head_dim + halves).reshape(-1)
        ordered = [_with_rows(each, rows) if place < 2 else each for place, each in enumerate(ordered)]
    if module == "project_norm" and kind == "gemma3":
        ordered = [replace(ordered[0], offset=1.0)]  # added by the converter
    if module == "project_out" and kind == "gemma3":  # stored as [inputs, outputs]
        (matrix,) = ordered
        if len(matrix.shape) != 2:
            raise matrix.fail("is not a matrix")
        return [Computed.of(names[0], ordered, matrix.shape[::-1], lambda values: values[0].T)]
    if module == "patch" and (second := projector.stored.get(_SECOND_FRAME)) and len(ordered[0].shape) == 4:
        (first,) = ordered
        shape = (*first.shape[:2], 2, *first.shape[2:])
        return [Computed.of(names[0], [first, second], shape, lambda values: np.stack(values, axis=2))]
    if kind == "internvl" and module in ("class", "positions"):  # a batch of one
        (one,) = ordered
        shape = (1, *((1,) if module == "class" and len(one.shape) == 1 else ()), *one.shape)[-3:]
        return [Computed.of(names[0], ordered, shape, lambda values: values[0].reshape(shape))]
    if len(names) == 1 and len(ordered) > 1:
        shape = (sum(each.shape[0] for each in ordered), *ordered[0].shape[1:])
        return [Computed.of(names[0], ordered, shape, np.concatenate)]
    if len(names) != len(ordered):
        raise ordered[0].fail(f"{len(ordered)} tensors of its kind are {len(names)} in {config['architectures'][0]}")
    return [replace(tensor, name=name) for name, tensor in zip(names, ordered, strict=True)]


def _with_rows(tensor: GgufTensor, rows: NDArray[np.int64]) -> GgufTensor:
    if not tensor.shape or tensor.shape[0] != len(rows):
        raise tensor.fail(f"its shape is {list(tensor.shape)}, where the metadata asks for {len(rows)} rows")
    return replace(tensor, rows=rows)


PROJECTIONS: dict[str, dict[str, str]] = {
    "gemma3": {"mm.soft_emb_norm": "project_norm", "mm.input_projection": "project_out"},
    "idefics3": {"mm.model.fc": "project_out"},
    "qwen2vl_merger": {"mm.0": "project_in", "mm.2": "project_out"},
    "qwen2.5vl_merger": {"mm.0": "project_in", "mm.2": "project_out"},
    "qwen3vl_merger": {"mm.0": "project_in", "mm.2": "project_out"},
    "pixtral": {
        "mm.1": "project_in",
        "mm.2": "project_out",
        "mm.input_norm": "last_norm",
        "mm.patch_merger": "project_merge",
    },
    "internvl": {"mm.model.mlp.0": "project_norm", "mm.model.mlp.1": "project_in", "mm.model.mlp.3": "project_out"},
    "mlp": {"mm.0": "project_in", "mm.2": "project_out"},
}
"""Tensors of the projection of each kind, and the modules that they are."""


class Computed(msgspec.Struct, frozen=True, eq=False):
    """A tensor that is computed of stored ones, in float32.

    Attributes:
        parts: the stored tensors. compute: from their numbers to its own.
    """

    name: str
    parts: tuple[GgufTensor, ...]
    shape: tuple[int, ...]
    compute: Callable[[list[NDArray[np.float32]]], NDArray[np.float32]]
    dtype: str = "float32"
    form: Format | None = None

    @classmethod
    def of(
        cls, name: str, parts: Sequence[GgufTensor], shape: tuple[int, ...], compute: Callable[[Any], Any]
    ) -> Computed:
        return cls(name, tuple(parts), shape, compute)

    @property
    def file(self) -> Path:
        """The file of its parts."""
        return self.parts[0].file

    @property
    def nbytes(self) -> int:
        """Size of its parts in the file."""
        return sum(part.nbytes for part in self.parts)

    def read(self) -> NDArray[np.float32]:
        """Return its numbers. Raises ModelError naming file and tensor."""
        values = [to_float32(part.read()) for part in self.parts]
        try:
            return np.ascontiguousarray(self.compute(values), np.float32)
        except ValueError:
            raise self.fail(f"does not go with {self.parts[-1].stored_name}") from None

    def codes(self, form: Format) -> None:
        """Return None: its numbers are not stored as they are."""

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        """Raise ModelError: it is no stack."""
        raise self.fail("is not a stack of matrices")

    def fail(self, reason: str) -> ModelError:
        """Return an error that names the file and the first of its parts."""
        return self.parts[0].fail(reason)
