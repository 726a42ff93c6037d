"""The form of a command's output text: from options to a constraint, and from that to a server's field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dragoman.core.constraint import Choice, Constraint, JsonObject, JsonSchema, Lark, Regex
from dragoman.core.errors import BadRequest
from dragoman.core.regular_file import FileName, require_regular


class StructureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The form that the text must have; one of these at most.

    Attributes:
        json_schema: file with a JSON Schema that the text follows.
        json_object: the text is a JSON object.
        regex: pattern that all of the text matches.
        choice: the text is one of these; given several times.
        grammar: file with a grammar in Lark's notation, or in GBNF.
    """

    PANEL = "Form"

    json_schema: FileName | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: FileName | None = None

    def constraint(self) -> Constraint | None:
        """Return the constraint of the options; None without one. Raises BadRequest for several, or a file that
        cannot be read."""
        asked: list[Constraint] = []
        if self.json_schema is not None:
            asked.append(JsonSchema(_read(self.json_schema)))
        if self.json_object:
            asked.append(JsonObject())
        if self.regex is not None:
            asked.append(Regex(self.regex))
        if self.choice:
            asked.append(Choice(self.choice))
        if self.grammar is not None:
            asked.append(Lark(_read(self.grammar)))
        if len(asked) > 1:
            raise BadRequest("--json-schema, --json-object, --regex, --choice and --grammar exclude each other")
        return asked[0] if asked else None


def option_of(constraint: Constraint) -> str:
    """Return the option that asks for the constraint, as errors name it."""
    match constraint:
        case JsonSchema():
            return "--json-schema"
        case JsonObject():
            return "--json-object"
        case Regex():
            return "--regex"
        case Choice():
            return "--choice"
        case Lark():
            return "--grammar"


def structured_outputs(constraint: Constraint) -> dict[str, Any]:
    """Return the constraint in the form of servers' field ``structured_outputs``."""
    match constraint:
        case JsonSchema(schema):
            return {"json": schema}
        case JsonObject():
            return {"json_object": True}
        case Regex(pattern):
            return {"regex": pattern}
        case Choice(strings):
            return {"choice": strings}
        case Lark(grammar):
            return {"grammar": grammar}


def _read(path: str) -> str:
    require_regular(path, BadRequest)
    try:
        return Path(path).read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise BadRequest(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
