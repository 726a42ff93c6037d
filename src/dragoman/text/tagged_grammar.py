"""Grammar of calls between tags: bare texts for strings, JSON for all other values, by the schemas of the tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dragoman.core.errors import UnsupportedFeature
from dragoman.text.argument_types import alternatives, types_of, values_of
from dragoman.text.tagged_calls import CallTags
from dragoman.text.text_patterns import OF_STRINGS, SAYS_NOTHING, NotExpressible, text_pattern, without

_OF_ROOTS = {"type", "properties", "required", "additionalProperties"}
_NOT_IN_KEYS = frozenset('<>"\n')


def tagged_calls(
    tags: CallTags,
    mark: Callable[[str], str],
    tools: Sequence[tuple[str, Mapping[str, Any] | None]],
    parallel: bool,
) -> tuple[str, list[str]]:
    """Return the calls after the mark that opens a block, and their rules.

    ``mark`` returns a tag as a grammar writes it. ``tools``: names, and schemas of the arguments; None for any
    arguments. Raises UnsupportedFeature.
    """
    made, rules = tagged_call_rules(tags, mark, tools)
    calls = [f"call_{i}: {call}" for i, call in enumerate(made)]
    rules = ["call: " + " | ".join(f"call_{i}" for i in range(len(tools))), *calls, *rules]
    end = mark(tags.block_end)
    if tags.several:
        more = r' ("\n" call)*' if parallel else ""
        return rf'"\n" call{more} "\n" {end}', rules
    body = rf'"\n" call "\n" {end}' if tags.on_lines else f"call {end}"
    return body + (rf' ("\n"? {mark(tags.block)} {body})*' if parallel else ""), rules


def tagged_call_rules(
    tags: CallTags, mark: Callable[[str], str], tools: Sequence[tuple[str, Mapping[str, Any] | None]]
) -> tuple[list[str], list[str]]:
    """Return the expression of a call of each tool, without its block, and their rules. As in ``tagged_calls``."""
    grammar = _TaggedGrammar(tags, mark)
    return [grammar.call(name, schema) for name, schema in tools], grammar.rules


class _TaggedGrammar:
    def __init__(self, tags: CallTags, mark: Callable[[str], str]) -> None:
        self.rules: list[str] = []
        self._tags, self._mark = tags, mark
        self._line = '"\\n"' if tags.on_lines else '"\\n"?'
        self._any = ""

    def call(self, tool: str, schema: Mapping[str, Any] | None) -> str:
        """Return the expression of a call, without its block. Raises UnsupportedFeature."""
        tags = self._tags
        try:
            arguments = self._any_arguments() if schema is None else self._arguments(schema)
        except NotExpressible:
            raise UnsupportedFeature(f"this model's call format cannot enforce the schema of tool '{tool}'") from None
        head = json.dumps(tags.call + tool + tags.name_end)
        return f"{head} {self._line} {arguments} {json.dumps(tags.call_end) if tags.call_end else ''}"

    def _arguments(self, schema: Mapping[str, Any]) -> str:
        """Return the arguments in the schema's order."""
        properties, needed = schema.get("properties", {}), set(schema.get("required", []))
        if not schema.keys() <= _OF_ROOTS | SAYS_NOTHING or not needed <= properties.keys():
            raise NotExpressible
        given = []
        for key, value in properties.items():
            if _NOT_IN_KEYS & set(key) or not key.strip() == key or not key or value is False:
                raise NotExpressible
            argument = self._argument(json.dumps(key), self._value(value, schema))
            given.append(argument if key in needed else f"({argument})?")
        return " ".join(given)

    def _any_arguments(self) -> str:
        if not self._any:
            text = self._text("/(.|\\n)*/")
            value = (
                text
                if not self._tags.of_text
                else f"({self._as_text(text)} | {self._as_json(f'%json {{}} {self._end}')})"
            )
            self._any = self._rule(self._argument("TAGGED_KEY", value))
            self.rules.append("TAGGED_KEY: /[A-Za-z_][A-Za-z0-9_-]*/")
        return f"({self._any})*"

    def _argument(self, key: str, value: str) -> str:
        tags, mark = self._tags, self._mark
        opening = f"{self._line} {mark(tags.value)}" if tags.value else '"\\n"' if tags.on_lines else ""
        return f"{mark(tags.key)} {key} {mark(tags.key_end)} {opening} {value} {self._line}"

    def _value(self, schema: Any, root: Mapping[str, Any]) -> str:
        """Return the rule of a value and of its closing tag. Raises NotExpressible."""
        found = list(alternatives(schema, root))
        written = [self._alternative(each, root) for each in found]
        is_text = ["string" in types_of(each, root) and values_of(each) is None for each in found]
        if any(is_text) and not self._tags.of_text:
            # A text that is a value of another type, too, is read as that.
            others = [each for each, text in zip(found, is_text, strict=True) if not text and values_of(each) is None]
            if any(not set(each) <= {"type"} | SAYS_NOTHING for each in others):
                raise NotExpressible
        return self._rule(" | ".join(written))

    def _alternative(self, schema: Any, root: Mapping[str, Any]) -> str:
        if (values := values_of(schema)) is not None and self._tags.of_text:
            return self._stated_values(values)
        if values is not None:
            texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
            if not texts or any(self._tags.value_end in text for text in texts):
                raise NotExpressible
            written = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts if text)
            if "" in texts:
                written = f"({written})?" if written else ""
            return f"({written}) {self._end}" if written else self._end
        types = types_of(schema, root)
        if "string" not in types:
            shared = {word: root[word] for word in ("$defs", "definitions") if word in root}
            return self._as_json(f"%json {json.dumps(dict(schema) | shared)} {self._end}")
        stated = set(schema) - SAYS_NOTHING if isinstance(schema, Mapping) else set[str]()
        if stated and (schema.get("type") != "string" or not stated <= OF_STRINGS | {"type"}):
            raise NotExpressible
        text = self._as_text(self._text(text_pattern(schema if isinstance(schema, Mapping) else {})))
        if self._tags.of_text and types_of(schema, root) != {"string"}:
            return f"{text} | {self._as_json(f'%json {{}} {self._end}')}"
        return text

    def _stated_values(self, values: Sequence[Any]) -> str:
        """Return the expression of one of these values in a format that says what is a text."""
        texts = [json.dumps(value, ensure_ascii=False) for value in values if isinstance(value, str)]
        others = [json.dumps(json.dumps(value), ensure_ascii=False) for value in values if not isinstance(value, str)]
        if not values or any(self._tags.value_end in text for text in texts):
            raise NotExpressible
        written = [self._as_text("" if text == '""' else text) for text in texts] + [
            self._as_json(text) for text in others
        ]
        return " | ".join(f"{each} {self._end}" for each in written)

    def _as_text(self, value: str) -> str:
        """Return a value after what says that it is a text, where the format does."""
        return f"{self._mark(self._tags.of_text)} {value}" if self._tags.of_text else value

    def _as_json(self, value: str) -> str:
        return f"{self._mark(self._tags.of_json)} {value}" if self._tags.of_json else value

    def _text(self, pattern: str) -> str:
        """Return the rule of a bare text and its closing tag, which no text contains."""
        name, end = f"TAGGED_{len(self.rules)}", self._mark(self._tags.value_end)
        self.rules.append(f"{name}: {pattern}{without(self._tags.value_end)}")
        if not end.startswith('"'):
            return self._rule(f"{name} {end}")
        # One lexeme: a text may end with what begins the tag.
        self.rules.append(f"{name}_CLOSED: {name} {self._end}")
        return self._rule(f"{name}_CLOSED")

    @property
    def _end(self) -> str:
        line = '"\\n" ' if self._tags.on_lines else ""
        return line + self._mark(self._tags.value_end)

    def _rule(self, body: str) -> str:
        name = f"tagged_{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name
