"""Modules of a model that an adapter can change, the selection of those that its config targets, and the memory that
their changes take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from dragoman.core.errors import ModelError
from dragoman.models.adapters.config import ALL_LINEAR, AdapterConfig, read_adapter_config
from dragoman.models.adapters.patterns import full_matches
from dragoman.models.families import FAMILIES, Family
from dragoman.models.parameter import Parameter
from dragoman.models.parameters import parameters, product_name
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.parameters import is_vision

_PLAIN_NAME = re.compile(r"[\w.-]+")
_OTHER_PLACEHOLDER = re.compile(r"\{(?!layer\})")
_ANY_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")


class Module(msgspec.Struct, frozen=True):
    """A matrix as the checkpoint has it: all of a product's columns, or a part of a fused one's.

    Attributes:
        name: in the checkpoint and in PEFT. product: name of the product in the program.
        start, size: its columns of the product. inputs: of the product.
        parameter: the whole matrix that contains it.
    """

    name: str
    product: str
    start: int
    size: int
    inputs: int
    parameter: Parameter

    @property
    def last_name(self) -> str:
        return self.name.rpartition(".")[2]


class Target(msgspec.Struct, frozen=True):
    """A targeted module, with the rank and the factor of its change."""

    module: Module
    rank: int
    factor: float


def modules_of(spec: DecoderSpec, family: Family) -> dict[str, Module]:
    """Return every matrix of the decoder by its name in the checkpoint; the output matrix also where it is tied."""
    found = {}
    for parameter in parameters(spec):
        if not parameter.matrix or parameter.module == "embedding" or is_vision(parameter):
            continue
        for module in _split(parameter, family):
            found[module.name] = module
    if spec.tied and "head" in family.names:
        head = Parameter(
            "head", "weight", None, (spec.vocab_size, spec.embedding.width or spec.width), (spec.vocab_size,), True
        )
        found |= {module.name: module for module in _split(head, family)}
    return found


def _split(parameter: Parameter, family: Family) -> list[Module]:
    names = family.names.get(parameter.module, ())
    if len(names) == 1 and "{part}" in names[0]:
        names = tuple(names[0].replace("{part}", str(part)) for part in range(len(parameter.parts)))
    if len(parameter.shape) != 2 or any(_OTHER_PLACEHOLDER.search(name) for name in names):
        return []  # such as experts: the program has no separate product for each
    inputs = parameter.shape[1]
    sizes = parameter.sizes(len(names))
    if len(names) != len(sizes):
        return []
    found, start = [], 0
    for name, size in zip(names, sizes, strict=True):
        product = product_name(parameter.module, parameter.layer)
        found.append(Module(name.format(layer=parameter.layer), product, start, size, inputs, parameter))
        start += size
    return found


def targets_of(config: AdapterConfig, modules: Sequence[Module]) -> dict[str, Target]:
    """Return the targeted modules by name. Raises ModelError for patterns that cannot be used."""
    names = [module.name for module in modules]
    targeted = _targeted(config, modules)
    excluded = _named(config, config.excluded, names, "exclude_modules")
    ranks = _values(config, config.rank_pattern, names, "rank_pattern")
    alphas = _values(config, config.alpha_pattern, names, "alpha_pattern")
    found = {}
    for place, module in enumerate(modules):
        if targeted[place] and not excluded[place]:
            rank = int(ranks[place] or config.rank)
            alpha = config.alpha if alphas[place] is None else float(alphas[place] or 0.0)
            found[module.name] = Target(module, rank, config.factor(rank, alpha))
    return found


def _targeted(config: AdapterConfig, modules: Sequence[Module]) -> list[bool]:
    names = [module.name for module in modules]
    if config.targets == ALL_LINEAR:
        return [module.parameter.module != "head" for module in modules]
    targeted = _named(config, config.targets, names, "target_modules")
    if isinstance(config.targets, str) or config.layers is None:
        return targeted
    # As in PEFT: a name that is given whole is targeted in any layer.
    whole = [name in config.targets for name in names]
    numbers = _layer_numbers(config, names)
    return [
        found and (is_whole or number in config.layers)
        for found, is_whole, number in zip(targeted, whole, numbers, strict=True)
    ]


def _named(config: AdapterConfig, requested: tuple[str, ...] | str, names: Sequence[str], field: str) -> list[bool]:
    """Return for each name whether it is targeted: by a pattern for the whole name, or by its end."""
    if isinstance(requested, str):
        return full_matches([requested], names, f"{config.file}: {field}")[0] if requested else [False] * len(names)
    ends = tuple(f".{end}" for end in requested)
    return [name in requested or name.endswith(ends) for name in names]


def _values(
    config: AdapterConfig, by_pattern: Mapping[str, float], names: Sequence[str], field: str
) -> list[float | None]:
    """Return for each name the value of the first pattern that matches an end of it, after a dot; None: no pattern
    matches."""
    ends = [name[place:] for name in names for place in _starts(name)]
    found = full_matches(list(by_pattern), ends, f"{config.file}: {field}")
    values: list[float | None] = []
    first = 0
    for name in names:
        last = first + len(_starts(name))
        matching = (
            value for value, matches in zip(by_pattern.values(), found, strict=True) if any(matches[first:last])
        )
        values.append(next(matching, None))
        first = last
    return values


def _starts(name: str) -> list[int]:
    """Return the start positions of the ends of a dotted name."""
    return [0, *(place + 1 for place, letter in enumerate(name) if letter == ".")]


def _layer_numbers(config: AdapterConfig, names: Sequence[str]) -> list[int | None]:
    """Return the layer of each name: the number after one of the patterns, or, without patterns, after any name."""
    for pattern in config.layer_patterns:
        if not _PLAIN_NAME.fullmatch(pattern):
            raise ModelError(f"{config.file}: layers_pattern {pattern[:80]!r} is not supported; known: plain names")
    places = [re.compile(rf"(?:^|.*?\.){re.escape(pattern)}\.(\d+)\.") for pattern in config.layer_patterns]
    numbers: list[int | None] = []
    for name in names:
        found = next(filter(None, (place.match(name) for place in places or [_ANY_LAYER])), None)
        numbers.append(None if found is None else int(found[1]))
    return numbers


def adapter_bytes(folder: Path, spec: DecoderSpec, precision: str) -> int:
    """Return the memory of the adapter whose config is in the folder, for a model of that precision; with
    ``all-linear`` the maximum. Raises ModelError for a config that cannot be used, or that targets nothing in this
    model."""
    config = read_adapter_config(folder)
    modules = modules_of(spec, FAMILIES[spec.architecture])
    targets = targets_of(config, list(modules.values()))
    if not targets:
        raise ModelError(
            f"{config.file}: its target_modules match no matrix of {spec.architecture}: is it an adapter for "
            "another model?"
        )
    return sum(change_bytes(target, precision) for target in targets.values())


def change_bytes(target: Target, precision: str) -> int:
    """Return the bytes of the change of one matrix: ``A`` [rank, inputs] and ``B`` [size, rank]."""
    return (4 if precision == "float32" else 2) * target.rank * (target.module.inputs + target.module.size)
