"""One table says what every request field does: its kind, its default, what it becomes, and how it is treated.

From a table come the validation of requests, the OpenAPI document, ``docs/fields.md`` and parametrised tests, so none
of them can say something else than another.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from dragoman.core.errors import UnsupportedFeature
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.dialects.kinds import Anything, Kind, ListOf, OneOf, Path, Rule, Violation, Wrapped, dotted

MAX_LISTED = 16
"""Names without effect that an answer lists of each sort; of the others it tells the number."""


class Treatment(enum.StrEnum):
    """What happens to a field that asks for something."""

    HONOURED = "honoured"
    """It has its effect, exactly."""
    REFUSED = "refused"
    """The request is refused by the field's name, because leaving it out would change the answer's meaning."""
    REPORTED = "reported"
    """The request is served as if the field were absent, and the answer says so."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a request.

    Attributes:
        kind: the values it takes; those outside are errors.
        required: absence is an error. Otherwise ``null`` is the same as absence.
        default: what absence means, as a value of the wire.
        becomes: the core parameter; a field of ``sampling`` or ``ending`` is carried over by ``sampling_of`` and
            ``ending_of``, everything else by the dialect's ``translate``.
        convert: from the checked value to the core's, where they differ.
        neutral: values of a refused or reported field that ask for nothing, and are therefore accepted in silence.
        note: one sentence for the reader of ``docs/fields.md``.
    """

    name: str
    kind: Kind
    required: bool = False
    default: Any = None
    becomes: str = ""
    treatment: Treatment = Treatment.HONOURED
    convert: Callable[[Any], Any] | None = None
    neutral: tuple[Any, ...] = ()
    note: str = ""

    def asks(self, value: Any) -> bool:
        """Whether the value asks for something. Types are compared too: ``0`` is not ``false``."""
        return value is not None and not any(value == calm and type(value) is type(calm) for calm in self.neutral)

    def is_reported(self, value: Any) -> bool:
        """Whether the value asks for something that it does not get, in a request that is served."""
        return self.treatment is Treatment.REPORTED and self.asks(value)


class Reading(msgspec.Struct, frozen=True):
    """A body that passed its table: the honoured fields with their defaults, and the names that have no effect.

    ``unknown`` fields are in no table, ``reported`` ones have that treatment; both also inside of objects, dotted.
    ``lowered`` ones ask for more than the caller has a right to, and have the most of it.
    """

    values: dict[str, Any]
    unknown: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    lowered: tuple[str, ...] = ()

    @property
    def warnings(self) -> str:
        """What the header ``x-dragoman-warnings`` says: ``unknown: a, b; ignored: c; lowered: d``.

        Nothing, where all has effect. Bounded, and without anything in a client's names that would read as the
        header's own punctuation.
        """
        lists = (("unknown", self.unknown), ("ignored", self.reported), ("lowered", self.lowered))
        return "; ".join(f"{what}: {_listed(names)}" for what, names in lists if names)


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one kind of request, in the order of the manual."""

    name: str
    fields: tuple[Field, ...]

    def read(self, body: Any, *, strict: bool = False) -> Reading:
        """Check everything in one pass. ``strict``: a name outside of the tables is an error.

        Raises ``Violation`` or ``UnsupportedFeature``, each with the field's name.
        """
        values = self.check(body, ())
        unknown: list[Path] = []
        reported: list[Path] = []
        for table, value, path in _objects(self, body, ()):
            known = {field.name for field in table.fields}
            unknown += [(*path, name) for name in value if name not in known]
            reported += [(*path, field.name) for field in table.fields if field.is_reported(value.get(field.name))]
        if strict and unknown:
            names = tuple(dotted(path) for path in unknown[:MAX_LISTED])
            raise Violation(Rule.UNKNOWN, unknown[0], bound=names)
        return Reading(values, tuple(map(dotted, unknown)), tuple(map(dotted, reported)))

    # A table is itself a kind, so that objects inside a request are described the same way.

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Violation(Rule.TYPE, path, value, kind=self)
        values: dict[str, Any] = {}
        for field in self.fields:
            given = value.get(field.name)
            if given is None:
                if field.required:
                    if field.name in value:
                        raise Violation(Rule.TYPE, (*path, field.name), None, kind=field.kind)
                    raise Violation(Rule.MISSING, (*path, field.name), None, bound=field.name)
                if field.treatment is Treatment.HONOURED:
                    values[field.name] = field.default
            elif field.treatment is Treatment.HONOURED:
                values[field.name] = field.kind.check(given, (*path, field.name))
            elif field.treatment is Treatment.REFUSED and field.asks(given):
                raise refusal((*path, field.name))
        return values

    def schema(self) -> dict[str, Any]:
        properties = {field.name: _documented(field) for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        return schema

    def words(self) -> str:
        return "an object"


class Outline(msgspec.Struct, frozen=True):
    """Objects that the translator checks, having rules beyond a table's. The table says which members there are."""

    table: Table

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        checked: dict[str, Any] = Anything(object_only=True).check(value, path)
        return checked

    def schema(self) -> dict[str, Any]:
        return self.table.schema()

    def words(self) -> str:
        return "an object"


def _objects(kind: Kind, value: Any, path: Path) -> Iterator[tuple[Table, dict[str, Any], Path]]:
    """Every object of the value that a table describes, with the table and its place."""
    match kind:
        case Table() if isinstance(value, dict):
            yield kind, value, path
            for field in kind.fields:
                inner = value.get(field.name)  # of dozens of fields a request has a few
                if inner is not None and field.treatment is Treatment.HONOURED:
                    yield from _objects(field.kind, inner, (*path, field.name))
        case Outline(table) if isinstance(value, dict):
            yield table, value, path
        case ListOf(item) if isinstance(value, list) and _has_table(item):
            for i, each in enumerate(value):
                yield from _objects(item, each, (*path, i))
        case Wrapped(inner):
            yield from _objects(inner, value, path)
        case OneOf(alternatives):
            for alternative in alternatives:
                if alternative.accepts(value):
                    yield from _objects(alternative, value, path)
                    break


def _has_table(kind: Kind) -> bool:
    """Whether objects of the kind may be found in it: lists of token ids are long, and hold none."""
    match kind:
        case Table() | Outline():
            return True
        case ListOf(inner) | Wrapped(inner):
            return _has_table(inner)
        case OneOf(alternatives):
            return any(map(_has_table, alternatives))
    return False


def _listed(names: tuple[str, ...]) -> str:
    shown = [re.sub(r"[^\w.\[\]-]", "?", name[:128], flags=re.ASCII) for name in names[:MAX_LISTED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def refusal(path: Path) -> UnsupportedFeature:
    """A field of the table that this server refuses by name."""
    return UnsupportedFeature(f"'{dotted(path)}' is not supported by this server.", param=dotted(path))


def sampling_of(table: Table, values: dict[str, Any]) -> SamplingParams:
    """The sampling parameters among the values, as the table maps them."""
    return SamplingParams(**_carried(table, values, "sampling."))


def ending_of(table: Table, values: dict[str, Any]) -> EndingParams:
    """The ending parameters among the values, as the table maps them."""
    return EndingParams(**_carried(table, values, "ending."))


def _carried(table: Table, values: dict[str, Any], prefix: str) -> dict[str, Any]:
    carried = {}
    for field in table.fields:
        value = values.get(field.name)
        if value is not None and field.becomes.startswith(prefix):
            carried[field.becomes.removeprefix(prefix)] = field.convert(value) if field.convert else value
    return carried


def _documented(field: Field) -> dict[str, Any]:
    """The field's schema with what JSON Schema has no word for."""
    schema = field.kind.schema()
    if not field.required:
        schema = {"anyOf": [schema, {"type": "null"}]} if schema else {}
        if field.default is not None:
            schema["default"] = field.default
    words = [field.note] if field.note else []
    if field.treatment is not Treatment.HONOURED:
        words.insert(0, f"{field.treatment.value.capitalize()}.")
        schema["x-dragoman-treatment"] = field.treatment.value
    if words:
        schema["description"] = " ".join(words)
    return schema
