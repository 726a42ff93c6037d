"""One table says what every request field does: its kind, its default, what it becomes, and how it is treated.

From a table come the validation of requests, the OpenAPI document, ``docs/fields.md`` and parametrised tests, so none
of them can say something else than another.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import msgspec

from dragoman.core.errors import UnsupportedFeature
from dragoman.core.sampling import EndingParams, SamplingParams
from dragoman.dialects.kinds import Kind, Path, Rule, Violation, dotted


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


class Reading(msgspec.Struct, frozen=True):
    """A body that passed its table: the honoured fields with their defaults, and the fields to report."""

    values: dict[str, Any]
    reported: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of one kind of request, in the order of the manual.

    ``refuse_unknown``: a name outside the table is an error; otherwise it is reported.
    """

    name: str
    fields: tuple[Field, ...]
    refuse_unknown: bool = True

    def read(self, body: Any, path: Path = ()) -> Reading:
        """Check everything in one pass. Raises ``Violation`` or ``UnsupportedFeature``, each with the field's name."""
        if not isinstance(body, dict):
            raise Violation(Rule.TYPE, path, body, kind=self)
        known = {field.name for field in self.fields}
        unknown = tuple(name for name in body if name not in known)
        if unknown and self.refuse_unknown:
            raise Violation(Rule.UNKNOWN, (*path, unknown[0]), body[unknown[0]], bound=unknown)
        values: dict[str, Any] = {}
        reported = [dotted((*path, name)) for name in unknown]
        for field in self.fields:
            given = body.get(field.name)
            if given is None:
                if field.required:
                    if field.name in body:
                        raise Violation(Rule.TYPE, (*path, field.name), None, kind=field.kind)
                    raise Violation(Rule.MISSING, (*path, field.name), None, bound=field.name)
                if field.treatment is Treatment.HONOURED:
                    values[field.name] = field.default
            elif field.treatment is Treatment.HONOURED:
                values[field.name] = field.kind.check(given, (*path, field.name))
            elif field.asks(given):
                if field.treatment is Treatment.REFUSED:
                    raise refusal((*path, field.name))
                reported.append(dotted((*path, field.name)))
        return Reading(values, tuple(reported))

    # A table is itself a kind, so that objects inside a request are described the same way.

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def check(self, value: Any, path: Path) -> dict[str, Any]:
        return self.read(value, path).values

    def schema(self) -> dict[str, Any]:
        properties = {field.name: _documented(field) for field in self.fields}
        required = [field.name for field in self.fields if field.required]
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if required:
            schema["required"] = required
        if self.refuse_unknown:
            schema["additionalProperties"] = False
        return schema

    def words(self) -> str:
        return "an object"


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
