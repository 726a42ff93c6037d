"""Options from structs: each field of a settings struct is a command-line option, a variable and a key in TOML.

The struct is the one definition: its annotation is the type, its default the default, its bounds the bounds and its
description (``msgspec.Meta``, or the line of the docstring's ``Attributes`` section) the help. ``command_line`` makes
commands of them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Container, Iterator, Set
from typing import Annotated, Any

import msgspec

Settings = type[Any]
"""A msgspec struct or a dataclass."""


BY_FLAG = "_by_flag"
"""Ends the name of the parameter of a flag by which an argument may be given too."""
_NAMED = re.compile(r"(?:^|(?<=\. ))((?:\w+, )*\w+): ")


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a settings struct, as a user meets it. ``annotation`` is the plain type, without its metadata;
    ``also`` are further flags of the same option; ``twin`` is the flag by which an argument may be given too;
    ``is_file``: whether it is a ``FileName``, or several.
    """

    name: str
    annotation: Any
    default: Any
    help: str
    panel: str
    positional: bool = False
    configurable: bool = True
    is_file: bool = False
    short: str | None = None
    twin: str | None = None
    also: tuple[str, ...] = ()

    @property
    def twin_name(self) -> str:
        """Return the name of the ``twin``'s parameter."""
        return self.name + BY_FLAG

    @property
    def flag(self) -> str:
        return self.name.upper() if self.positional else "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"DRAGOMAN_{self.name.upper()}"

    @property
    def required(self) -> bool:
        return self.default is msgspec.NODEFAULT


def options_of(settings: Settings, omitted: Container[str] = ()) -> Iterator[Option]:
    """Return the options of the struct's (or dataclass's) fields, in their order.

    Those ``omitted`` keep their defaults. ``Meta(extra=...)`` may hold ``positional`` (an argument, not an option),
    ``configurable`` (False: only on the command line), ``file`` (as ``FileName`` has it), ``short`` (``-p``) and
    ``twin`` (of an argument: ``--model``).
    """
    found = _all_options(settings)  # type: ignore[arg-type]  # a class can be hashed
    return (option for option in found if option.name not in omitted)


@functools.cache
def _all_options(settings: Settings) -> tuple[Option, ...]:
    """Return all options of the struct. Cached: many commands have the same settings, and every start of the program
    waits for all of them."""
    return tuple(_read_options(settings))


def _read_options(settings: Settings) -> Iterator[Option]:
    hints = typing.get_type_hints(settings, include_extras=True)
    described = _documented_attributes(settings, hints.keys())
    panel = getattr(settings, "PANEL", _words(settings.__name__.removesuffix("Settings").removesuffix("Options")))
    for name, default in _defaults(settings):
        annotation, metas = _plain(hints[name])
        extra = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
        yield Option(
            name=name,
            annotation=annotation,
            default=default,
            help=next((m.description for m in metas if m.description), described.get(name, "")),
            panel=panel,
            positional=bool(extra.get("positional")),
            configurable=bool(extra.get("configurable", True)),
            is_file=bool(extra.get("file")),
            short=extra.get("short"),
            twin=extra.get("twin"),
        )


def _defaults(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Return each field's name and default, NODEFAULT where it has none; those of a base class come last."""
    if dataclasses.is_dataclass(settings):
        for field in dataclasses.fields(settings):
            made = field.default_factory
            default = field.default if made is dataclasses.MISSING else made()
            yield field.name, msgspec.NODEFAULT if default is dataclasses.MISSING else default
    else:
        names, defaults = settings.__struct_fields__, settings.__struct_defaults__
        fields = list(zip(names, (*[msgspec.NODEFAULT] * (len(names) - len(defaults)), *defaults), strict=True))
        inherited = len(getattr(settings.__base__, "__struct_fields__", ()))
        yield from (*fields[inherited:], *fields[:inherited])


def _plain(hint: Any) -> tuple[Any, list[msgspec.Meta]]:
    """Return the annotation without its metadata, which may be on the whole or on one side of ``| None``."""
    if typing.get_origin(hint) is Annotated:
        inner, *metas = typing.get_args(hint)
        plain, more = _plain(inner)
        return plain, [m for m in metas if isinstance(m, msgspec.Meta)] + more
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        sides = [_plain(side) for side in typing.get_args(hint)]
        union = sides[0][0]
        for side, _ in sides[1:]:
            union |= side
        return union, [meta for _, metas in sides for meta in metas]
    if typing.get_origin(hint) is tuple:  # of one type; constraints of elements are checked with the struct
        inner, metas = _plain(typing.get_args(hint)[0])
        return types.GenericAlias(tuple, (str if typing.get_origin(inner) is typing.Literal else inner, ...)), metas
    return hint, []


def _documented_attributes(settings: Settings, names: Set[str]) -> dict[str, str]:
    """Return the ``name: meaning`` pairs of the docstrings' ``Attributes`` sections; ``one, two: meaning`` describes
    both."""
    docstrings = (inspect.cleandoc(each.__doc__ or "") for each in settings.__mro__)
    sections = " ".join(docstring.partition("Attributes:\n")[2] for docstring in docstrings)
    text = " ".join(sections.replace("``", "").replace("None: ", "by default ").split())
    found = [each for each in _NAMED.finditer(text) if {*each[1].split(", ")} <= names]
    ends = [*(each.start() for each in found[1:]), len(text)]
    return {
        one: text[each.end() : end].strip()
        for each, end in zip(found, ends, strict=False)  # no end without a beginning
        for one in each[1].split(", ")
    }


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()
