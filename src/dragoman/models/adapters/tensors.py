"""Tensors of an adapter's file, assigned to the modules that they change."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.adapters.config import ALL_LINEAR, AdapterConfig
from dragoman.models.adapters.modules import Module, Target, modules_of, targets_of
from dragoman.models.adapters.source import WEIGHTS_NAME
from dragoman.models.families import Family
from dragoman.models.safetensors_file import StoredTensor, read_header
from dragoman.models.spec import DecoderSpec
from dragoman.models.tensors import ELEMENTS, to_float32

_PREFIX = "base_model.model."
_COPIED = re.compile(r"(?P<module>.+?)(\.base_layer)?\.weight")
_NAME = re.compile(r"(?P<module>.+)\.(?P<kind>lora_A|lora_B|lora_magnitude_vector)(\.default)?(\.weight)?")


class Change(msgspec.Struct, frozen=True):
    """The change of one module: ``a`` [rank, inputs], ``b`` [size, rank], and with DoRA ``lengths`` [size], those of
    the changed matrix's rows."""

    target: Target
    a: StoredTensor
    b: StoredTensor
    lengths: StoredTensor | None

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        return (self.a, self.b) if self.lengths is None else (self.a, self.b, self.lengths)


class Contents(msgspec.Struct, frozen=True):
    """Content of an adapter's file: changes, and copies of the model's own tables, by our names for them, which PEFT
    writes with changes of the output."""

    changes: list[Change]
    copies: list[tuple[str, StoredTensor]]


def read_contents(folder: Path, config: AdapterConfig, spec: DecoderSpec, family: Family) -> Contents:
    """Assign every tensor to its module. Only the header is read.

    Raises ModelError naming file and tensor: corrupt, missing, of the wrong shape or type, for a module that the
    model does not have or the config does not target.
    """
    file = folder / WEIGHTS_NAME
    modules = modules_of(spec, family)
    targets = targets_of(config, list(modules.values()))
    found: dict[str, dict[str, StoredTensor]] = {}
    copies = []
    for tensor in read_header(file).tensors.values():
        if table := _copied_table(tensor, family):
            copies.append((table, tensor))
            continue
        place = _place(tensor, modules, spec, family)
        if place is None:
            continue
        module, kind = place
        if module.name not in targets:
            raise tensor.fail(f"target_modules of {config.file.name} does not include {module.name}")
        if kind in found.setdefault(module.name, {}):
            raise tensor.fail(f"{kind} of {module.name} is there twice")
        found[module.name][kind] = tensor
    if not found:
        raise ModelError(f"{file}: holds no tensors")
    wanted = found if config.targets == ALL_LINEAR else targets
    return Contents([_change(file, targets[name], found.get(name, {}), config) for name in wanted], copies)


def _copied_table(tensor: StoredTensor, family: Family) -> str | None:
    """Return the name of the model's table that a tensor copies; None: it is not a copy."""
    parts = _COPIED.fullmatch(tensor.name)
    name = family.canonical(parts["module"].removeprefix(_PREFIX)) if parts else ""
    for table in ("embedding", "head"):
        if name and {name, f"{family.base}{name}"} & set(family.names.get(table, ())):
            return table
    return None


def _place(
    tensor: StoredTensor, modules: Mapping[str, Module], spec: DecoderSpec, family: Family
) -> tuple[Module, str] | None:
    """Return the module that a tensor belongs to, and its part of the change; None for modules outside the decoder,
    such as the vision tower of a model that serves text only."""
    parts = _NAME.fullmatch(tensor.name)
    if parts is None:
        if ".lora_embedding_" in tensor.name:
            raise tensor.fail(
                "changes of the embedding are not supported; merge the adapter into the model with merge_and_unload() "
                "of peft"
            )
        raise tensor.fail("is not a LoRA matrix; whole modules and biases are not supported")
    name = family.canonical(parts["module"].removeprefix(_PREFIX))
    for candidate in (name, f"{family.base}{name}"):
        if candidate in modules:
            return modules[candidate], parts["kind"]
    if family.ignored.fullmatch(f"{name}.weight".removeprefix(family.base)):
        return None
    raise tensor.fail(
        f"{spec.architecture} has no matrix {name} that can be changed: is it an adapter for another model?"
    )


def _change(file: Path, target: Target, found: Mapping[str, StoredTensor], config: AdapterConfig) -> Change:
    module = target.module
    shapes: dict[str, tuple[int, ...]] = {"lora_A": (target.rank, module.inputs), "lora_B": (module.size, target.rank)}
    if config.dora:
        shapes["lora_magnitude_vector"] = (module.size,)
    for kind, shape in shapes.items():
        if kind not in found:
            raise ModelError(f"{file}: tensor {module.name}.{kind} is missing, but {config.file.name} targets it")
        tensor = found[kind]
        if tensor.shape != shape:
            raise tensor.fail(
                f"its shape is {list(tensor.shape)}, where model and {config.file.name} ask for {list(shape)}: "
                "is it an adapter for another model?"
            )
        if tensor.dtype not in ELEMENTS:
            raise tensor.fail(f"its type {tensor.dtype} is not supported; known: F32, F16, BF16")
    for kind in found.keys() - shapes.keys():
        raise found[kind].fail(f"{config.file.name} does not set use_dora (DoRA)")
    return Change(target, found["lora_A"], found["lora_B"], found.get("lora_magnitude_vector"))


def read_floats(tensor: StoredTensor) -> NDArray[np.float32]:
    """Return its numbers. Raises ModelError where one is not finite: it would make every output useless."""
    values = to_float32(tensor.read())
    if not np.isfinite(values).all():
        raise tensor.fail("holds numbers that are not finite")
    return values


def digest_of(changes: Sequence[Change]) -> str:
    """Return a digest of everything that decides the adapter's computation."""
    digest = hashlib.blake2b(digest_size=16)
    for change in sorted(changes, key=lambda change: change.target.module.name):
        target = change.target
        digest.update(f"{target.module.name} {target.rank} {target.factor!r} {len(change.tensors)};".encode())
        for tensor in change.tensors:
            digest.update(f"{tensor.dtype} {tensor.shape};".encode())
            digest.update(np.ascontiguousarray(tensor.read()).tobytes())
    return digest.hexdigest()
