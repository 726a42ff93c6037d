"""Names and values of the wire: JSON of protocol buffers takes each field in camel case and in snake case, numbers
that are whole with or without a fraction of zero, and names of values in capitals or not."""

from __future__ import annotations

import re
from typing import Any

from dragoman.core.errors import BadRequest
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import Outline, Reading, Table
from dragoman.dialects.field_types import FieldError, FieldRule, FieldType, ListOf, OneOf, Path, Wrapped, dotted

INLINE_BYTES = 65_536
"""Bodies up to this size are renamed in the event loop, in less than a millisecond."""


async def read_checked(context: RequestContext, table: Table) -> Reading:
    """Return a body that the table has checked, whichever of the two spellings its names have. Raises as
    ``RequestContext.read`` does, and BadRequest for a field that is given in both."""
    body = await context.read_json()
    if len(await context.read_body()) > INLINE_BYTES:
        body = await context.run_blocking(lambda: in_camel_case(table, body, ()))
    else:
        body = in_camel_case(table, body, ())
    return await context.check(table, body)


def in_camel_case(kind: FieldType, value: Any, path: Path) -> Any:
    """Return a value with the names of all fields that its tables have in camel case, and an object where a list of
    such is meant as its one item. Other names are left as they are: those of arguments, results and schemas are the
    client's own."""
    match kind:
        case Table() if isinstance(value, dict):
            return _renamed(kind, value, path)
        case ListOf(item) if isinstance(value, list):
            return [in_camel_case(item, each, (*path, i)) for i, each in enumerate(value)]
        case ListOf(Table() | Known() as item) if isinstance(value, dict) and value:
            return [in_camel_case(item, value, (*path, 0))]
        case Wrapped(inner):
            return in_camel_case(inner, value, path)
        case OneOf(alternatives):
            chosen = next((each for each in alternatives if each.accepts(value)), None)
            return value if chosen is None else in_camel_case(chosen, value, path)
        case Outline(table) if isinstance(value, dict):
            return _renamed(table, value, path)
    return value


def _renamed(table: Table, value: dict[str, Any], path: Path) -> dict[str, Any]:
    kinds = {field.name: field.kind for field in table.fields}
    found: dict[str, Any] = {}
    for name, inner in value.items():
        known = name if name in kinds else camel_case(name)
        if known not in kinds:
            found[name] = inner
            continue
        if known in found:
            place = dotted((*path, known))
            raise BadRequest(f"'{place}' is given twice, in camel case and in snake case.", param=place)
        found[known] = in_camel_case(kinds[known], inner, (*path, known))
    return found


def camel_case(name: str) -> str:
    """Return a name in snake case in camel case. An underscore at its beginning stays."""
    return re.sub(r"(?<=[A-Za-z0-9])_([a-z0-9])", lambda found: found[1].upper(), name)


class Whole(Wrapped, frozen=True):
    """Integers that may be written with a fraction of zero: some clients have them as floats."""

    def accepts(self, value: Any) -> bool:
        return self.inner.accepts(_as_integer(value))

    def check(self, value: Any, path: Path) -> Any:
        return self.inner.check(_as_integer(value), path)


def _as_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Known(Wrapped, frozen=True):
    """Objects of a table with a member that the table knows: one that has others alone is another API's, and would ask
    for nothing."""

    def check(self, value: Any, path: Path) -> Any:
        if isinstance(value, dict) and value and isinstance(self.inner, Table):
            known = {field.name for field in self.inner.fields}
            if known.isdisjoint(value):
                first = next(iter(value))
                raise FieldError(FieldRule.UNKNOWN, (*path, first), bound=(dotted((*path, first)),))
        return self.inner.check(value, path)


class Name(Wrapped, frozen=True):
    """Names of values, which are in capitals; other spellings of them are the same."""

    def check(self, value: Any, path: Path) -> Any:
        return self.inner.check(value.upper() if isinstance(value, str) else value, path)
