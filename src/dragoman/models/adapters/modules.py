"""The modules of a model that an adapter can change, and which of them its config means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dragoman.core.errors import ModelError
from dragoman.models.adapters.config import ALL_LINEAR, AdapterConfig
from dragoman.models.adapters.patterns import full_matches
from dragoman.models.families import Family
from dragoman.models.parameters import Parameter, parameters, product_name
from dragoman.models.spec import DecoderSpec

_PLAIN_NAME = re.compile(r"[\w.-]+")
_OTHER_PLACE = re.compile(r"\{(?!layer\})")
_ANY_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Module:
    """A matrix as the checkpoint has it: all of a product's columns, or some of a fused one's.

    Attributes:
        name: in the checkpoint, as PEFT names it too. product: as the program calls it.
        start, size: its columns of the product. inputs: of the product.
        parameter: the whole matrix that it is part of.
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


@dataclass(frozen=True, slots=True)
class Target:
    """A module that the config means, with the rank and the factor of its change."""

    module: Module
    rank: int
    factor: float


def modules_of(spec: DecoderSpec, family: Family) -> dict[str, Module]:
    """Every matrix of the decoder, by its name in the checkpoint; the output's under its own name, tied or not."""
    found = {}
    for parameter in parameters(spec):
        if not parameter.matrix or parameter.module == "embedding":
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
    if len(parameter.shape) != 2 or any(_OTHER_PLACE.search(name) for name in names):
        return []  # such as experts: the program has no product of its own for each
    outputs, inputs = parameter.shape
    sizes = parameter.parts if len(names) == len(parameter.parts) else (outputs,)
    if len(names) != len(sizes):
        return []
    found, start = [], 0
    for name, size in zip(names, sizes, strict=True):
        product = product_name(parameter.module, parameter.layer)
        found.append(Module(name.format(layer=parameter.layer), product, start, size, inputs, parameter))
        start += size
    return found


def targets_of(config: AdapterConfig, modules: Sequence[Module]) -> dict[str, Target]:
    """Those of the modules that the config means, by name. Raises ModelError for patterns that cannot be used."""
    names = [module.name for module in modules]
    meant = _meant(config, modules)
    excluded = _named(config, config.excluded, names, "exclude_modules")
    ranks = _values(config, config.rank_pattern, names, "rank_pattern")
    alphas = _values(config, config.alpha_pattern, names, "alpha_pattern")
    found = {}
    for place, module in enumerate(modules):
        if meant[place] and not excluded[place]:
            rank = int(ranks[place] or config.rank)
            alpha = config.alpha if alphas[place] is None else float(alphas[place] or 0.0)
            found[module.name] = Target(module, rank, config.factor(rank, alpha))
    return found


def _meant(config: AdapterConfig, modules: Sequence[Module]) -> list[bool]:
    names = [module.name for module in modules]
    if config.targets == ALL_LINEAR:
        return [module.parameter.module != "head" for module in modules]
    meant = _named(config, config.targets, names, "target_modules")
    if isinstance(config.targets, str) or config.layers is None:
        return meant
    # As in PEFT: a name that is given whole is meant in whatever layer it is.
    whole = [name in config.targets for name in names]
    numbers = _layer_numbers(config, names)
    return [
        found and (is_whole or number in config.layers)
        for found, is_whole, number in zip(meant, whole, numbers, strict=True)
    ]


def _named(config: AdapterConfig, asked: tuple[str, ...] | str, names: Sequence[str], field: str) -> list[bool]:
    """Whether each name is asked for: by a pattern for all of it, or by its end."""
    if isinstance(asked, str):
        return full_matches([asked], names, f"{config.file}: {field}")[0] if asked else [False] * len(names)
    ends = tuple(f".{end}" for end in asked)
    return [name in asked or name.endswith(ends) for name in names]


def _values(
    config: AdapterConfig, by_pattern: Mapping[str, float], names: Sequence[str], field: str
) -> list[float | None]:
    """For each name the value of the first pattern that it ends in, from a dot on; None: no pattern's."""
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
    """Where the ends of a dotted name begin."""
    return [0, *(place + 1 for place, letter in enumerate(name) if letter == ".")]


def _layer_numbers(config: AdapterConfig, names: Sequence[str]) -> list[int | None]:
    """The layer of each name: the number behind one of the patterns, or else behind anything."""
    for pattern in config.layer_patterns:
        if not _PLAIN_NAME.fullmatch(pattern):
            raise ModelError(f"{config.file}: layers_pattern {pattern[:80]!r} is not supported; known: plain names")
    places = [re.compile(rf"(?:^|.*?\.){re.escape(pattern)}\.(\d+)\.") for pattern in config.layer_patterns]
    numbers: list[int | None] = []
    for name in names:
        found = next(filter(None, (place.match(name) for place in places or [_ANY_LAYER])), None)
        numbers.append(None if found is None else int(found[1]))
    return numbers
