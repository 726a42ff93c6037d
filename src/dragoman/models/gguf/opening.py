"""An open GGUF model: its tensors under its family's names, and a folder in Hugging Face layout that describes it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.models.gguf.architecture import (
    Architecture,
    Config,
    divisors,
    draft_blocks,
    family_name,
    read_config,
    row_order,
)
from dragoman.models.gguf.architectures import find_architecture
from dragoman.models.gguf.block_types import BLOCK_TYPES, INTEGERS
from dragoman.models.gguf.file import GgufFile, read_gguf
from dragoman.models.gguf.metadata import Metadata
from dragoman.models.gguf.pooling import pooling_files
from dragoman.models.gguf.projector import Projector, open_projector, projector_tensors, with_images
from dragoman.models.gguf.tensors import GgufNumber, GgufTensor
from dragoman.models.gguf.vocabulary import check_vocabulary, tokenizer_files
from dragoman.models.pooling import RERANKER
from dragoman.models.settings import default_cache_folder
from dragoman.models.tensors import Tensor, TensorFiles

_FORMAT = 5  # of the folders: changes when other content is generated from the same metadata
_MOST_FOLDERS = 64
_MATRICES_OF_HEADS = (".k_b_proj.weight", ".v_b_proj.weight")
_MTP_NAMES = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head_norm": "shared_head.norm"}
_ABANDONED_AFTER_S = 3600.0


class GgufModel(msgspec.Struct, frozen=True):
    """Headers of one model's files, checked against each other.

    Attributes:
        stored: all tensors by their names in the files. projector: the vision tower, in a file of its own.
        target_ids: of an EAGLE-3 head, the tensor of the model's token for each of its own.
    """

    files: tuple[GgufFile, ...]
    stored: Mapping[str, GgufTensor]
    projector: Projector | None = None
    target_ids: GgufTensor | None = None

    @property
    def first(self) -> GgufFile:
        """The file with the model's metadata."""
        return self.files[0]


def open_gguf(paths: Sequence[Path], projector: Path | None = None) -> GgufModel:
    """Read the headers of a model's files, and of its projector's. Raises ModelError naming the file, and the wrong key
    or tensor."""
    try:
        model = _open(tuple((path, (status := path.stat()).st_size, status.st_mtime_ns) for path in paths))
        return model if projector is None else replace(model, projector=open_projector(projector))
    except OSError as error:
        raise ModelError(f"{error.filename}: cannot be read: {error.strerror}") from None


@functools.lru_cache(maxsize=2)  # a start opens a file several times, and a vocabulary takes a tenth of a second
def _open(paths: tuple[tuple[Path, int, int], ...]) -> GgufModel:
    files = tuple(read_gguf(path) for path, _, _ in paths)
    stored: dict[str, GgufTensor] = {}
    for number, file in enumerate(files):
        _check_part(file, number, len(files))
        for info in file.tensors.values():
            if info.name in stored:
                raise ModelError(f"{file.path}: tensor {info.name} is in {stored[info.name].file} too")
            stored[info.name] = GgufTensor(
                file.path, info.name, info.name, info.kind, info.shape, info.start, info.stop
            )
    declared = files[0].metadata.get("split.tensors.count", len(stored))
    if declared != len(stored):
        raise files[0].fail("split.tensors.count", f"is {declared}, but the files have {len(stored)} tensors")
    target_ids = next((tensor for tensor in stored.values() if tensor.kind == INTEGERS), None)
    weights = {name: tensor for name, tensor in stored.items() if tensor is not target_ids}
    if target_ids is not None and not find_architecture(files[0], weights).is_head:
        raise target_ids.fail("is of no known use but in an EAGLE-3 head")
    return GgufModel(files, weights, target_ids=target_ids)


def _check_part(file: GgufFile, number: int, count: int) -> None:
    for key, wanted in (("split.count", count), ("split.no", number)):
        found = file.metadata.get(key, wanted if count == 1 else None)
        if key == "split.count" and count == 1 and found == 0:
            continue
        if found != wanted:
            raise file.fail(key, f"is {found}, but the file is part {number + 1} of {count}, counted from 0")


def tensor_files(model: GgufModel) -> TensorFiles:
    """Return the tensors under their family's names. Raises ModelError naming a tensor of unknown use."""
    architecture = find_architecture(model.first, model.stored)
    config = read_config(architecture, model.first, model.stored)
    drafts = draft_blocks(model.first)
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.stored.items():
        if name in architecture.described | architecture.repeated or name.startswith(drafts):
            continue
        family = family_name(architecture, name)
        if family is None:
            raise tensor.fail(f"is of no known use in {architecture.name}")
        for each in _split_stack(replace(tensor, name=family)):
            for part in architecture.adjust(config, each):
                tensors[part.name] = _as_family(architecture, config, part)
    tensors |= _numbers(architecture, config, model.first)
    raw = {file.path: file.raw for file in model.files}
    if model.projector is not None:
        tensors |= projector_tensors(model.projector, _whole_config(model, config)[0])
        raw[model.projector.file.path] = model.projector.file.raw
    where = str(model.first.path) if len(model.files) == 1 else f"{model.first.path} and {len(model.files) - 1} more"
    mtp_layer = partial(_mtp_layer, model, architecture, config, drafts[0]) if drafts else None
    target_ids = None if model.target_ids is None else model.target_ids.read_integers
    return TensorFiles(tensors, raw, where, upright=True, mtp_layer=mtp_layer, target_ids=target_ids)


def _mtp_layer(model: GgufModel, architecture: Architecture, config: Config, block: str) -> dict[str, Tensor]:
    """Return the tensors of a block that guesses one token more. What it has besides, tables of embeddings and of
    tokens, repeats the model's own.

    ``block``: how their names begin.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in model.stored.items():
        if not name.startswith(block):
            continue
        module, _, kind = name.removeprefix(block).removeprefix("nextn.").rpartition(".")
        if name.startswith(f"{block}nextn."):
            own = f"model.layers.{block.split('.')[1]}.{_MTP_NAMES[module]}.{kind}" if module in _MTP_NAMES else None
        else:
            own = family_name(architecture, name)
        for each in () if own is None else _split_stack(replace(tensor, name=own)):
            for part in architecture.adjust(config, each):
                found[part.name] = _as_family(architecture, config, part)
    return found


def _whole_config(model: GgufModel, config: Config) -> tuple[Config, Config]:
    """Return the config of a model with a projector, and its image processor's. ``config``: of the decoder."""
    assert model.projector is not None
    return with_images(model.projector, model.first, config)


def _numbers(architecture: Architecture, config: Config, file: GgufFile) -> dict[str, Tensor]:
    """Return the tensors of one number that the metadata has. Raises ModelError naming a missing or wrong key."""
    found: dict[str, Tensor] = {}
    for name, key in architecture.numbers.items():
        layers = config[architecture.sizes["block_count"]]
        values = Metadata(file).numbers(key, layers)
        if values is None:
            raise file.fail(key, "is missing")
        for layer in range(layers):
            place = name.replace("{layer}", str(layer))
            found[place] = GgufNumber(file.path, place, key, float(values[layer]))
    return found


def _split_stack(tensor: GgufTensor) -> Iterator[GgufTensor]:
    """Yield the family's tensors for one of a file: itself, or each expert's matrix or bias, or each head's vector."""
    for place, dimensions in (("{expert}", 3), ("{part}", 2)):
        if place in tensor.name:
            wanted = dimensions - (place == "{expert}" and tensor.name.endswith(".bias"))
            if len(tensor.shape) != wanted:
                raise tensor.fail(f"has {len(tensor.shape)} dimensions, where {wanted} are expected")
            for i in range(tensor.shape[0]):
                yield replace(tensor.matrix(i), name=tensor.name.replace(place, str(i)))
            return
    if tensor.name.endswith(_MATRICES_OF_HEADS) and len(tensor.shape) == 3:  # one under the other
        heads, outputs, inputs = tensor.shape
        tensor = replace(tensor, shape=(heads * outputs, inputs))
    if tensor.name.endswith("shared_expert_gate.weight") and len(tensor.shape) == 1:  # a matrix of one row
        tensor = replace(tensor, shape=(1, *tensor.shape))
    yield tensor


def _as_family(architecture: Architecture, config: Config, tensor: GgufTensor) -> GgufTensor:
    rows = row_order(architecture, config, tensor.stored_name)
    if rows is not None:
        if len(rows) != tensor.shape[0]:
            raise tensor.fail(f"it has {tensor.shape[0]} rows, where the metadata asks for {len(rows)}")
        return replace(tensor, rows=rows)
    if architecture.norm_offset and tensor.name.endswith(architecture.shifted):
        return replace(tensor, offset=architecture.norm_offset)
    return tensor


def most_used_dtype(model: GgufModel) -> str:
    """Return the type, once read, of most bytes in the files."""
    sizes: Counter[str] = Counter()
    for tensor in model.stored.values():
        sizes[tensor.dtype] += tensor.nbytes
    return sizes.most_common(1)[0][0]


def quantized_types(model: GgufModel) -> list[str]:
    """Return the quantized types in the files, that of most bytes first."""
    sizes: Counter[str] = Counter()
    for tensor in model.stored.values():
        if tensor.form is not None:
            sizes[BLOCK_TYPES[tensor.kind].name] += tensor.nbytes
    return [name for name, _ in sizes.most_common()]


def describing_folder(model: GgufModel) -> Path:
    """Return a folder with the files that other models have in addition to weights, generated from the metadata once.

    It is in the cache folder and named by a digest of the metadata; the least recently used folders are removed.
    Raises ModelError on metadata that is not supported, and when no folder can be written.
    """
    root = cache_root()
    digest = hashlib.blake2b(digest_size=20)
    digest.update(f"{_FORMAT}".encode())
    for file in model.files:
        digest.update(file.raw)
    if model.projector is not None:
        digest.update(model.projector.file.raw)
    for name in sorted(find_architecture(model.first, model.stored).described & model.stored.keys()):
        digest.update(repr(divisors(model.stored, name)).encode())
    folder = root / digest.hexdigest()
    try:
        if (folder / "config.json").is_file():
            with contextlib.suppress(OSError):  # the cache may be read-only
                os.utime(folder)
            return folder
        contents = _contents(model)
        temporary = root / f".{folder.name}.{secrets.token_hex(4)}.tmp"
        temporary.mkdir(parents=True)
        try:
            for name, content in contents.items():
                (temporary / name).parent.mkdir(exist_ok=True)
                (temporary / name).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
            with contextlib.suppress(OSError):  # another process was faster and wrote the same files
                temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        _remove_oldest(root)
    except OSError as error:
        raise ModelError(
            f"{model.first.path}: its tokenizer could not be written to {root}: {error.strerror}; set DRAGOMAN_CACHE "
            "to another folder"
        ) from error
    return folder


def cache_root() -> Path:
    """Return the folder of all generated folders: ``$DRAGOMAN_CACHE/gguf``, or ``gguf`` in this program's
    cache folder."""
    return default_cache_folder().parent / "gguf"


def _contents(model: GgufModel) -> dict[str, Any]:
    architecture = find_architecture(model.first, model.stored)
    config = read_config(architecture, model.first, model.stored)
    if architecture.is_head:
        return {"config.json": config}
    check_vocabulary(model.first, config["vocab_size"])
    Metadata(model.first, "split.").refuse("axis")
    images = {}
    if model.projector is not None:
        config, images["preprocessor_config.json"] = _whole_config(model, config)
    ranks = config.get(RERANKER) is True or config["architectures"][0].endswith("ForSequenceClassification")
    return {"config.json": config, **images, **tokenizer_files(model.first), **pooling_files(model.first, ranks=ranks)}


def _remove_oldest(root: Path) -> None:
    kept: list[tuple[float, Path]] = []
    for path in root.iterdir():
        with contextlib.suppress(OSError):
            changed = path.stat().st_mtime
            if path.name.startswith("."):
                if changed < time.time() - _ABANDONED_AFTER_S:
                    shutil.rmtree(path, ignore_errors=True)
            else:
                kept.append((changed, path))
    for _, path in sorted(kept)[: max(0, len(kept) - _MOST_FOLDERS)]:
        shutil.rmtree(path, ignore_errors=True)
