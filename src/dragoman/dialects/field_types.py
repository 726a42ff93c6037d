"""Types of request values: each checks a value, gives its JSON Schema, and describes the accepted values in words.

A type is independent of dialects. It reports a ``FieldError``: location, rule, the expected value, and the value
received; the dialect's ``errors.py`` formats it for its clients.
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from dragoman.core.errors import BadRequest
from dragoman.core.lazy_imports import np
from dragoman.core.sampling import Range

_MOST_FLOAT32 = (2 - 2**-23) * 2.0**127

Path = tuple[str | int, ...]


class FieldRule(enum.StrEnum):
    """The rule that a value breaks."""

    TYPE = "type"
    BELOW = "below"
    ABOVE = "above"
    SHORT = "short"
    LONG = "long"
    CHOICE = "choice"
    PATTERN = "pattern"
    DEEP = "deep"
    MISSING = "missing"
    UNKNOWN = "unknown"


class FieldError(BadRequest):
    """A value that the table does not allow.

    ``bound`` is the limit, or the choices, or the names concerned; ``kind`` is the expected type, where that is known.
    """

    def __init__(
        self, rule: FieldRule, path: Path, value: Any = None, *, kind: FieldType | None = None, bound: Any = None
    ) -> None:
        self.rule, self.path, self.value, self.kind, self.bound = rule, path, value, kind, bound
        wanted = f"expected {kind.words()}" if kind else f"{rule.value} {bound}"
        message = f"'{dotted(path)}': {wanted}, got {shown(value)}"
        if rule in (FieldRule.MISSING, FieldRule.UNKNOWN):  # there is no value
            message = f"'{dotted(path)}' is {rule.value}"
        if rule is FieldRule.DEEP:  # the value is of the expected type
            message = f"'{dotted(path)}': nested more than {bound} levels deep"
        super().__init__(message, param=dotted(path) or None)


def dotted(path: Path) -> str:
    """Return ``("messages", 0, "role")`` as ``messages[0].role``. Names chosen by a client are cut after 64
    characters."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if len(part) <= 64 else f"{part[:61]}..."
            text += f".{name}" if text else name
    return text


def shown(value: Any) -> str:
    """Return the value for an error message: numbers and short strings as they are, the rest by the name of its
    type."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            # Python refuses to print integers of thousands of digits, and they are of no use in a message.
            return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        case float():
            return repr(value)
        case str():
            return f"'{value}'" if len(value) <= 64 else f"'{value[:61]}...'"
        case list() | tuple():
            return "an array"
        case _:
            return "an object"


class FieldType(Protocol):
    """A set of values. ``check`` returns the value in the form for the translator, or raises ``FieldError``."""

    def accepts(self, value: Any) -> bool:
        """Return whether the value's JSON type is of this kind; its range is not checked."""

    def check(self, value: Any, path: Path) -> Any: ...

    def schema(self) -> dict[str, Any]: ...

    def words(self) -> str: ...


class Integer(msgspec.Struct, frozen=True):
    """A whole number. ``16.0`` is not one, nor is ``true``."""

    minimum: int | None = None
    maximum: int | None = None

    def within(self, core: Range) -> Integer:
        """Return the type with the core's bounds where it has none. Raises ValueError for a bound that the core
        refuses."""
        bounds: Any = _within(self, None, core)
        return Integer(bounds.minimum, bounds.maximum)

    def accepts(self, value: Any) -> bool:
        return type(value) is int

    def check(self, value: Any, path: Path) -> int:
        if type(value) is not int:
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        if self.minimum is not None and value < self.minimum:
            raise FieldError(FieldRule.BELOW, path, value, kind=self, bound=self.minimum)
        if self.maximum is not None and value > self.maximum:
            raise FieldError(FieldRule.ABOVE, path, value, kind=self, bound=self.maximum)
        return value

    def all_allowed(self, values: list[Any]) -> bool:
        """Return whether every item passes: token lists are long, and this is tens of times faster than item by
        item."""
        if set(map(type, values)) != {int}:
            return False
        above = self.minimum is None or min(values) >= self.minimum
        return above and (self.maximum is None or max(values) <= self.maximum)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer"} | _present(minimum=self.minimum, maximum=self.maximum)

    def words(self) -> str:
        return f"an integer{_range(self.minimum, self.maximum)}"


class Number(msgspec.Struct, frozen=True):
    """A finite number. ``above`` is an exclusive lower bound."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None

    def within(self, core: Range) -> Number:
        """Return the type with the core's bounds where it has none. Raises ValueError for a bound that the core
        refuses."""
        bounds = _within(self, self.above, core)
        return Number(bounds.minimum, bounds.maximum, bounds.above)

    def accepts(self, value: Any) -> bool:
        return type(value) is float or type(value) is int

    def check(self, value: Any, path: Path) -> float:
        if not self.accepts(value):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        if value != value:
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        if self.minimum is not None and value < self.minimum:
            raise FieldError(FieldRule.BELOW, path, value, kind=self, bound=self.minimum)
        if self.above is not None and value <= self.above:
            raise FieldError(FieldRule.BELOW, path, value, kind=self, bound=self.above)
        if self.maximum is not None and value > self.maximum:
            raise FieldError(FieldRule.ABOVE, path, value, kind=self, bound=self.maximum)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            rule, bound = (FieldRule.ABOVE, 1e308) if value > 0 else (FieldRule.BELOW, -1e308)
            raise FieldError(rule, path, value, kind=self, bound=bound)
        return number

    def schema(self) -> dict[str, Any]:
        return {"type": "number"} | _present(minimum=self.minimum, exclusiveMinimum=self.above, maximum=self.maximum)

    def words(self) -> str:
        if self.above is not None:
            upper = "" if self.maximum is None else f", at most {self.maximum:g}"
            return f"a number above {self.above:g}{upper}"
        return f"a number{_range(self.minimum, self.maximum)}"


def _within(kind: Integer | Number, above: float | None, core: Range) -> Range:
    for bound in (kind.minimum, kind.maximum):
        if bound is not None and not core.includes(bound):
            raise ValueError(f"{bound} is out of the range of the core")
    has_lower = kind.minimum is not None or above is not None
    return Range(
        minimum=kind.minimum if has_lower else core.minimum,
        above=above if has_lower else core.above,
        maximum=core.maximum if kind.maximum is None else kind.maximum,
    )


class Boolean(msgspec.Struct, frozen=True):
    """``true`` or ``false``, nothing that resembles them; with ``spelled`` also the strings of these names."""

    spelled: bool = False

    def accepts(self, value: Any) -> bool:
        return type(value) is bool or (self.spelled and value in ("true", "false"))

    def check(self, value: Any, path: Path) -> bool:
        if not self.accepts(value):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        return value is True or value == "true"

    def schema(self) -> dict[str, Any]:
        spelled = {"type": "string", "enum": ["true", "false"]}
        return {"anyOf": [{"type": "boolean"}, spelled]} if self.spelled else {"type": "boolean"}

    def words(self) -> str:
        return "a boolean"


class String(msgspec.Struct, frozen=True):
    """A string; lengths in characters. ``choices``: the only values; ``pattern``: what all of it matches."""

    minimum: int = 0
    maximum: int | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None

    def accepts(self, value: Any) -> bool:
        return isinstance(value, str)

    def check(self, value: Any, path: Path) -> str:
        if not isinstance(value, str):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        if self.choices and value not in self.choices:
            raise FieldError(FieldRule.CHOICE, path, value, kind=self, bound=self.choices)
        if len(value) < self.minimum:
            raise FieldError(FieldRule.SHORT, path, value, kind=self, bound=self.minimum)
        if self.maximum is not None and len(value) > self.maximum:
            raise FieldError(FieldRule.LONG, path, value, kind=self, bound=self.maximum)
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise FieldError(FieldRule.PATTERN, path, value, kind=self, bound=self.pattern)
        return value

    def schema(self) -> dict[str, Any]:
        bounds = _present(minLength=self.minimum or None, maxLength=self.maximum, enum=list(self.choices) or None)
        return {"type": "string"} | bounds | _present(pattern=self.pattern and f"^{self.pattern}$")

    def words(self) -> str:
        if self.choices:
            return "one of " + ", ".join(f"'{choice}'" for choice in self.choices)
        of = f" of the form `{self.pattern}`" if self.pattern else ""
        return f"a string{_range(self.minimum or None, self.maximum, 'characters')}{of}"


class ListOf(msgspec.Struct, frozen=True):
    """An array whose items are all of one kind."""

    item: FieldType
    minimum: int = 0
    maximum: int | None = None

    def accepts(self, value: Any) -> bool:
        return isinstance(value, list) and (not value or self.item.accepts(value[0]))

    def check(self, value: Any, path: Path) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        if len(value) < self.minimum:
            raise FieldError(FieldRule.SHORT, path, value, kind=self, bound=self.minimum)
        if self.maximum is not None and len(value) > self.maximum:
            raise FieldError(FieldRule.LONG, path, value, kind=self, bound=self.maximum)
        if isinstance(self.item, Integer) and self.item.all_allowed(value):
            return tuple(value)
        check = self.item.check
        return tuple([check(item, (*path, i)) for i, item in enumerate(value)])

    def schema(self) -> dict[str, Any]:
        bounds = _present(minItems=self.minimum or None, maxItems=self.maximum)
        return {"type": "array", "items": self.item.schema()} | bounds

    def words(self) -> str:
        return f"an array{_range(self.minimum or None, self.maximum, 'items')}, each {self.item.words()}"


class Floats(msgspec.Struct, frozen=True):
    """An array of numbers, checked to the float32 bytes that they are: arrays of millions take milliseconds."""

    minimum: int = 1
    maximum: int = 2**26

    def accepts(self, value: Any) -> bool:
        return isinstance(value, list)

    def check(self, value: Any, path: Path) -> bytes:
        if not isinstance(value, list):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        if len(value) < self.minimum:
            raise FieldError(FieldRule.SHORT, path, value, kind=self, bound=self.minimum)
        if len(value) > self.maximum:
            raise FieldError(FieldRule.LONG, path, value, kind=self, bound=self.maximum)
        if set(map(type, value)) <= {int, float}:
            with contextlib.suppress(OverflowError), np.errstate(over="ignore"):
                numbers = np.array(value, np.float32)
                if np.isfinite(numbers).all():
                    return numbers.tobytes()
        item = Number(-_MOST_FLOAT32, _MOST_FLOAT32)
        for i, each in enumerate(value):
            item.check(each, (*path, i))
        raise FieldError(FieldRule.TYPE, path, value, kind=self)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "number"}, "minItems": self.minimum, "maxItems": self.maximum}

    def words(self) -> str:
        return f"an array of {self.minimum} to {self.maximum} numbers"


class MapOf(msgspec.Struct, frozen=True):
    """An object used as a map from decimal integers, written as strings, to values of one kind.

    ``nulls``: a value may be null, which is the same as its absence.
    """

    value: FieldType
    key: Integer = Integer(0)
    maximum: int = 1024
    nulls: bool = False

    def accepts(self, value: Any) -> bool:
        return isinstance(value, dict)

    def check(self, value: Any, path: Path) -> dict[int, Any]:
        if not isinstance(value, dict):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        if len(value) > self.maximum:
            raise FieldError(FieldRule.LONG, path, value, kind=self, bound=self.maximum)
        numbered = [(self._number(name, path), name, item) for name, item in value.items()]
        return {
            number: self.value.check(item, (*path, name))
            for number, name, item in numbered
            if item is not None or not self.nulls
        }

    def _number(self, name: str, path: Path) -> int:
        # 20 digits hold every 64-bit number; int() would also take blanks, underscores and other scripts' digits.
        digits = name.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise FieldError(FieldRule.TYPE, (*path, name), name, kind=self.key)
        return self.key.check(int(name), (*path, name))

    def schema(self) -> dict[str, Any]:
        names = {"pattern": "^-?[0-9]{1,20}$"}
        values = {"anyOf": [self.value.schema(), {"type": "null"}]} if self.nulls else self.value.schema()
        return {"type": "object", "propertyNames": names, "additionalProperties": values, "maxProperties": self.maximum}

    def words(self) -> str:
        return f"an object from integers (as strings) to {self.value.words()}, at most {self.maximum} of them"


class OneOf(msgspec.Struct, frozen=True):
    """Alternatives; the first one that accepts the value's JSON type checks it."""

    alternatives: tuple[FieldType, ...]

    def accepts(self, value: Any) -> bool:
        return any(kind.accepts(value) for kind in self.alternatives)

    def check(self, value: Any, path: Path) -> Any:
        for kind in self.alternatives:
            if kind.accepts(value):
                return kind.check(value, path)
        raise FieldError(FieldRule.TYPE, path, value, kind=self)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [kind.schema() for kind in self.alternatives]}

    def words(self) -> str:
        return ", or ".join(kind.words() for kind in self.alternatives)


class Wrapped(msgspec.Struct, frozen=True):
    """The values of another kind, interpreted differently; the base of kinds that define how."""

    inner: FieldType

    def accepts(self, value: Any) -> bool:
        return self.inner.accepts(value)

    def check(self, value: Any, path: Path) -> Any:
        return self.inner.check(value, path)

    def schema(self) -> dict[str, Any]:
        return self.inner.schema()

    def words(self) -> str:
        return self.inner.words()


class Anything(msgspec.Struct, frozen=True):
    """Any JSON value of bounded depth; ``object_only``: an object."""

    object_only: bool = False
    depth: int = 64

    def accepts(self, value: Any) -> bool:
        return not self.object_only or isinstance(value, dict)

    def check(self, value: Any, path: Path) -> Any:
        if not self.accepts(value):
            raise FieldError(FieldRule.TYPE, path, value, kind=self)
        level = [value]
        for _ in range(self.depth):
            level = [inner for outer in level for inner in _inside(outer)]
            if not level:
                return value
        raise FieldError(FieldRule.DEEP, path, value, kind=self, bound=self.depth)

    def schema(self) -> dict[str, Any]:
        return {"type": "object"} if self.object_only else {}

    def words(self) -> str:
        return "an object" if self.object_only else "any value"


def member_of(owner: Mapping[str, Any], name: str, kind: FieldType, path: Path, *, required: bool = False) -> Any:
    """Return a checked member of an object at ``path``; None where it is absent and not required. Raises FieldError."""
    value = owner.get(name)
    if value is None:
        if required:
            raise FieldError(FieldRule.MISSING, (*path, name), bound=name)
        return None
    return kind.check(value, (*path, name))


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _present(**keywords: Any) -> dict[str, Any]:
    return {key: value for key, value in keywords.items() if value is not None}


def _range(minimum: float | None, maximum: float | None, unit: str = "") -> str:
    unit = unit and " " + unit
    if minimum is None and maximum is None:
        return ""
    if maximum is None:
        return f" of at least {minimum}{unit}"
    if minimum is None:
        return f" of at most {maximum}{unit}"
    return f" from {minimum} to {maximum}{unit}"
