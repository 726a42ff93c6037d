"""Constraints on a generation's text: the grammar it must follow, as a dialect or a tool format states it.

A ``Constraint`` holds only the client's request; the package ``grammar`` checks it before generation and refuses by
name what cannot be enforced. From then on every generated text is the beginning of one that follows it, and a
generation that ends by itself follows it entirely; one that reaches its maximum length is cut
(``FinishReason.LENGTH``).

A format around a schema is a ``Lark`` grammar in llguidance's dialect: literal text in quotes, a special token of the
model by its spelling ``<|name|>`` or by its id ``<[151657]>``, and an embedded schema as ``%json {…}``, which is
checked as a ``JsonSchema`` is. A named call in Hermes' format:

    start: "<tool_call>\\n" call "\\n</tool_call>"
    call: %json {"type": "object", "properties": {…}, "required": ["name", "arguments"]}

and free text that becomes a call as soon as the model opens one (with ``<[151657]>``, no ``lazy`` is needed):

    start: (opening call "\\n</tool_call>")* TEXT
    opening[lazy]: TEXT "<tool_call>\\n"
    TEXT: /(.|\\n)*/

A sequence ends where its grammar allows nothing more, also with ``ignore_eos``.
"""

from __future__ import annotations

import msgspec


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """JSON that is valid under a JSON Schema (2020-12). ``schema`` is the schema's own JSON text.

    ``one_line``: it is written without line breaks. ``is_open``: objects may have properties that the schema does not
    name, where it does not say that they have none.
    """

    schema: str
    one_line: bool = False
    is_open: bool = False


class JsonObject(msgspec.Struct, frozen=True, tag="json_object"):
    """Any JSON object. ``one_line``: it is written without line breaks."""

    one_line: bool = False


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """Text that the pattern matches from its first character to its last; ``grammar.pattern`` defines the syntax."""

    pattern: str


class Lark(msgspec.Struct, frozen=True, tag="lark"):
    """Text of a context-free grammar, in llguidance's dialect of Lark or in GBNF. It begins at ``start`` (``root``).

    ``one_line``, ``is_open``: of the JSON of embedded schemas, as in ``JsonSchema``. ``parts``: the schemas that it was
    made of, each after its place in the request: an error about one names that place.
    """

    grammar: str
    one_line: bool = False
    is_open: bool = False
    parts: tuple[tuple[str, str], ...] = ()


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """One of these strings, exactly."""

    strings: tuple[str, ...]


Constraint = JsonSchema | JsonObject | Regex | Lark | Choice


def opened(constraint: Constraint | None) -> Constraint | None:
    """Return the constraint with all its schemas open, as in ``JsonSchema``."""
    if isinstance(constraint, JsonSchema | Lark):
        return msgspec.structs.replace(constraint, is_open=True)
    return constraint


class AfterReasoning(msgspec.Struct, frozen=True, kw_only=True, tag="reasoned"):
    """An answer that satisfies a constraint, after a reasoning block: any text between two marks, and white space.

    Attributes:
        answer: what follows the block.
        opening, closing: the marks as text.
        opening_parts: the opening mark in texts and ids of special tokens; empty where it is all text.
        closing_id: the token of the closing mark, where it is a special token without text.
        lead: what comes between the block and the answer, in texts and ids; ``lead_alone``: what comes before the
            answer where there is no block.
        begun: the prompt has opened the block. Otherwise the block is optional.
    """

    answer: Constraint
    opening: str
    closing: str
    opening_parts: tuple[str | int, ...] = ()
    closing_id: int | None = None
    lead: tuple[str | int, ...] = ()
    lead_alone: tuple[str | int, ...] = ()
    begun: bool = False
