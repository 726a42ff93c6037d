"""The same request in another dialect, found from its tables alone.

For each parameter of the core the other table has a field that becomes it. Values of the wire that may mean the
parameter are tried there until one is converted to it. What comes of them is not assumed: the body is handed to the
other dialect's own handler (``dry_run``), and its request of the core is compared with the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.core.constraint import Constraint, JsonObject, JsonSchema, Lark, Regex
from dragoman.core.errors import DragomanError
from dragoman.core.request import ChatPrompt, FillPrompt, GenerationRequest, TextPrompt, TokenPrompt
from dragoman.dialects.api import Dialect, Operation
from dragoman.dialects.explain_contents import calling_forms, contents, declared_forms
from dragoman.dialects.explain_fields import inner_table, shown
from dragoman.dialects.explain_messages import choice_forms, conversations, tool_forms
from dragoman.dialects.field import Field, Row, Table, Treatment
from dragoman.dialects.field_types import Boolean, ListOf, OneOf, String, Wrapped

OWN = frozenset({"request_id", "constraint_param", "images_param", "unset_sampling", "resumable", "resumed"})
OWN |= {"sampling", "ending"}
"""Fields of ``GenerationRequest`` that a dialect decides by itself, or that are compared by their members."""

_GROUPS = ("sampling", "ending", "logprobs", "beams", "embeddings")
_MESSAGES = "prompt.messages"
_TEXTS = ("prompt", "prompt.text")
_LENGTH = "ending.max_tokens"


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the core that the other dialect gives another value: what was asked for, and what it gets."""

    parameter: str
    asked: Any
    gets: Any


class Source(NamedTuple):
    """A request to express in other dialects.

    ``values``: its parameters, as ``flattened`` returns them. ``wires``: by parameter, the wire's values of the first
    dialect. ``body``: its body. ``text``: its prompt as text; None where that is unknown. ``messages``: of a chat, as
    the core was asked, with the sources of images.
    """

    values: dict[str, Any]
    wires: dict[str, Any]
    body: Mapping[str, Any]
    text: str | None
    messages: Sequence[Mapping[str, Any]] = ()


def generates(operation: Operation) -> bool:
    """Return whether the operation generates from a JSON body, as far as its table says."""
    return operation.method == "POST" and operation.scope == "infer" and prompt_rows(operation) != ()


def prompt_rows(operation: Operation) -> tuple[str, ...]:
    """Return the parameters of its table that are the prompt; none where nothing in it limits an output."""
    rows = {} if operation.table is None else operation.table.rows
    return tuple(each for each in (_MESSAGES, *_TEXTS) if each in rows) if _LENGTH in rows else ()


def counterpart(dialect: Dialect, like: Sequence[str]) -> Operation | None:
    """Return the first operation of a dialect that takes such a prompt, or else the first that generates."""
    found = [operation for operation in dialect.operations if generates(operation)]
    is_chat = _MESSAGES in like
    same = (operation for operation in found if (_MESSAGES in prompt_rows(operation)) is is_chat)
    return next(same, found[0] if found else None)


def flattened(request: GenerationRequest) -> dict[str, Any]:
    """Return the parameters of a request by their names in ``field.PARAMETERS``."""
    values = {name: getattr(request, name) for name in request.__struct_fields__ if name not in OWN}
    values["images"] = tuple(image.digest.hex() for image in request.images)
    if isinstance(request.constraint, Lark):  # where its schemas are in the request differs by dialect
        values["constraint"] = msgspec.structs.replace(request.constraint, parts=())
    for group in _GROUPS:
        struct = getattr(request, group)
        if struct is not None:
            values |= {f"{group}.{name}": getattr(struct, name) for name in struct.__struct_fields__}
    prompt = values.pop("prompt")
    match prompt:
        case TextPrompt():
            values |= {"prompt": prompt.text, "prompt.text": prompt.text}
            values["prompt.add_special_tokens"] = prompt.add_special_tokens
        case TokenPrompt():
            values |= {"prompt": prompt.token_ids, "prompt.token_ids": prompt.token_ids}
        case FillPrompt():
            values |= {"prompt": prompt.prefix, "prompt.suffix": prompt.suffix}
        case ChatPrompt():
            values |= {f"prompt.{name}": getattr(prompt, name) for name in prompt.__struct_fields__}
    return values


def wires_of(table: Table, body: Any) -> dict[str, Any]:
    """Return by parameter the wire's value of the first field that sets it."""
    found: dict[str, Any] = {}
    for target, rows in table.rows.items():
        for row in rows:
            value = body
            for name in row.path:
                value = value.get(name) if isinstance(value, Mapping) else None
            if value is not None:
                found.setdefault(target, value)
    return found


def first_bodies(table: Table, source: Source, model: str) -> list[dict[str, Any]]:
    """Return the smallest bodies with the prompt: the fields that the table requires, and no parameters.

    They differ in how the prompt is given: as it was, in other forms of a conversation, as text, as token ids.
    """
    wanted = next((each for each in (_MESSAGES, *_TEXTS) if each in table.rows), "")
    given = (source.wires.get(wanted), *(source.wires.get(each) for each in _TEXTS), source.values.get(wanted))
    forms = [_builtins(each) for each in (*given, source.text, source.values.get("prompt")) if each is not None]
    if wanted == _MESSAGES:
        # Of texts alone there is one form, which the first dialect may not have used.
        as_given = [_builtins(list(source.messages))] if source.messages else []
        forms[1:1] = list(conversations(source.messages)) or as_given
        texts = [form for form in forms if isinstance(form, str)]
        forms += [[{"role": "user", "content": text}] for text in texts]
        forms += [contents(source.messages or [{"role": "user", "content": text}]) for text in texts or [""]]
    texts_first = sorted(forms, key=lambda form: form == _builtins(source.values.get("prompt.token_ids")))
    found: list[dict[str, Any]] = []
    for form in texts_first:
        row = next((each for each in table.rows.get(wanted, ()) if _takes(each.field, form)), None)
        if row is not None:
            body: dict[str, Any] = {}
            _put(body, row.path, _known_members(row.field.kind, form))
            _require(table, body, model)
            if body not in found:
                found.append(body)
    return found


def _known_members(kind: Any, form: Any) -> Any:
    """Return a list of objects with the members that its kind knows: others, as images where there are none, would be
    read by nobody."""
    if not isinstance(form, list) or not isinstance(kind, ListOf) or (item := inner_table(kind.item)) is None:
        return form
    names = {field.name for field in item.fields}
    return [{n: value for n, value in each.items() if n in names} if isinstance(each, dict) else each for each in form]


def _require(table: Table, body: dict[str, Any], model: str) -> None:
    """Give the body something for each field that the table requires."""
    for field in table.fields:
        if field.required and field.name not in body:
            guesses: tuple[Any, ...] = (model if field.becomes == "model" else "explained", 1, True, {}, [])
            guess = next((each for each in guesses if _takes(field, each)), None)
            if guess is not None:
                body[field.name] = guess


def with_switches(table: Table, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the body with each of the dialect's own switches turned on that it does not have; and turned off, of a
    switch that has other values too and may be on where it is absent."""
    for path, field in _fields_of(table, ()):
        if field.becomes or field.treatment is not Treatment.HONOURED:
            continue
        is_plain = isinstance(field.kind, Boolean)
        is_switch = is_plain or any(isinstance(each, Boolean) for each in _kinds(field.kind))
        for value in (True,) if is_plain else (False, True) if is_switch else ():
            copied: dict[str, Any] = _builtins(body)
            place: Any = copied
            for name in path[:-1]:
                place = place.setdefault(name, {}) if isinstance(place, dict) else None
            if isinstance(place, dict) and path[-1] not in place:
                place[path[-1]] = value
                yield copied


def _fields_of(table: Table, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Field]]:
    for field in table.fields:
        yield (*path, field.name), field
        inner = inner_table(field.kind)
        if inner is not None and field.treatment is Treatment.HONOURED:
            yield from _fields_of(inner, (*path, field.name))


def with_parameters(table: Table, body: dict[str, Any], source: Source, has: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with a field for each parameter that it does not have as the source has it.

    ``has``: the parameters of the body as it is.
    """
    body = _builtins(body)
    for target, rows in table.rows.items():
        if target in ("model", *_TEXTS, _MESSAGES) or not _is_wanted(target, source, has):
            continue
        for row in rows:
            value = _wire_of(row, target, source)
            if value is not None and value != {}:
                _put(body, row.path, value)
                break
    for field in table.fields:  # what the dialects call alike and keep to themselves
        given = source.body.get(field.name)
        is_own = not field.becomes and field.treatment is Treatment.HONOURED and inner_table(field.kind) is None
        if given is not None and is_own and field.name not in body and _takes(field, given):
            body[field.name] = given
    return body


def without(body: dict[str, Any], error: DragomanError) -> dict[str, Any] | None:
    """Return the body without the field that an error names; None where it names none of the body's."""
    place: Any = body
    names = (error.param or "").split(".")
    for name in names[:-1]:
        place = place.get(name) if isinstance(place, dict) else None
    if not isinstance(place, dict) or names[-1] not in place:
        return None
    copied: dict[str, Any] = _builtins(body)
    place = copied
    for name in names[:-1]:
        place = place[name]
    del place[names[-1]]
    return copied


_NEEDS = {
    "ending.include_stop": "ending.stop",
    "ending.stop_at_token_ends": "ending.stop",
    "ending.stop_in_answer": "ending.stop",
    "eos_after_constraint": "constraint",
    "open_schemas": "constraint",
    "constraint_behind_reasoning": "constraint",
}
"""Parameters that mean nothing where another one is not set."""


def losses(asked: Mapping[str, Any], gets: Mapping[str, Any], ignored: Iterable[str] = ()) -> list[Lost]:
    """Return the parameters in which two requests differ, in the order of their names; not those of the prompt, of
    which the tokens are compared."""
    names = sorted((asked.keys() | gets.keys()) - {"model", "truncate", "ending.clamp_to_context", *ignored})
    found = []
    for name in names:
        needs = _NEEDS.get(name)
        if name.partition(".")[0] == "prompt" or (needs and not (asked.get(needs) or gets.get(needs))):
            continue
        first, second = asked.get(name), gets.get(name)
        if not _equal(first, second):
            found.append(Lost(parameter=name, asked=shown(first), gets=shown(second)))
    return found


def _is_wanted(target: str, source: Source, has: Mapping[str, Any]) -> bool:
    if target in source.values:
        return not _equal(source.values[target], has.get(target))
    return target in source.wires


def _wire_of(row: Row, target: str, source: Source) -> Any:
    """Return a value of the wire that becomes the parameter; None where none is found."""
    field = row.field
    wanted = source.values.get(target)
    near: Any = None
    for candidate in _candidates(field, target, source):
        try:
            checked = field.kind.check(candidate, row.path)
            value = checked if field.convert is None else field.convert(checked)
            if row.place is not None and value is not None:
                value = value[row.place]
        except (DragomanError, TypeError, ValueError, KeyError, IndexError, AttributeError):
            continue
        if target not in source.values or _equal(value, wanted):
            return candidate
        if near is None and target == "constraint" and _equal(_free(value), _free(wanted)):
            near = candidate  # a dialect may write JSON on one line only: that is shown as lost
    return near


def _free(constraint: Any) -> Any:
    """Return a constraint that leaves line breaks open."""
    has_lines = isinstance(constraint, JsonSchema | JsonObject | Lark)
    return msgspec.structs.replace(constraint, one_line=False) if has_lines else constraint


def _candidates(field: Field, target: str, source: Source) -> Iterator[Any]:
    if target in source.wires:
        wire = source.wires[target]
        yield wire
        if target == "tools.functions":
            yield from tool_forms(wire)
            yield from declared_forms(wire)
        elif target == "tools.choice":
            yield from choice_forms(wire)
            yield from calling_forms(wire)
    value = source.values.get(target)
    if value is None:
        return
    plain = _builtins(value)
    yield plain
    if target == "constraint":
        yield from _formats(value)
    match plain:
        case bool():
            yield not plain
        case int() | float():
            yield from (int(plain), plain * 1e6, int(plain * 1e6), [plain], True, False)
        case list():
            yield from plain[:1]
            yield [{"tokens": each if isinstance(each, list) else [each]} for each in plain]
            yield [{"tokens": each} for each in source.values.get("sampling.banned_phrases", ()) if plain]
        case dict() if "top" in plain or target == "logprobs":
            yield from (plain.get("top", 0), True)
    for kind in _kinds(field.kind):
        if isinstance(kind, String) and kind.choices:
            yield from kind.choices


def _formats(constraint: Constraint) -> Iterator[Any]:
    """Yield the forms in which a constraint may be written on the wire."""
    match constraint:
        case JsonSchema():
            schema = msgspec.json.decode(constraint.schema)
            yield from (schema, {"type": "json", "value": schema}, {"type": "json_object", "schema": schema})
            yield {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        case JsonObject():
            yield from ({"type": "json_object"}, {"json_object": True}, {"type": "json", "value": {"type": "object"}})
        case Regex():
            pattern = constraint.pattern
            yield from (pattern, {"type": "regex", "value": pattern}, {"type": "regex", "schema": pattern})
        case Lark():
            yield constraint.grammar
        case _:
            yield list(constraint.strings)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, JsonSchema) and isinstance(second, JsonSchema) and first.one_line == second.one_line:
        return bool(msgspec.json.decode(first.schema) == msgspec.json.decode(second.schema))
    return bool(_plain(first) == _plain(second))


def _plain(value: Any) -> Any:
    """Return a value with lists as tuples, so that both are equal; of a list of one item, the item."""
    match value:
        case list() | tuple():
            return _plain(value[0]) if len(value) == 1 else tuple(map(_plain, value))
        case dict():
            return {name: _plain(inner) for name, inner in value.items()}
    return value


def _builtins(value: Any) -> Any:
    """Return a copy of a value, of JSON's types."""
    return msgspec.to_builtins(value, str_keys=True)


def _takes(field: Field, value: Any) -> bool:
    if value is None:
        return False
    try:
        field.kind.check(value, (field.name,))
    except DragomanError:
        return False
    return True


def _kinds(kind: Any) -> Iterator[Any]:
    yield kind
    if isinstance(kind, Wrapped):
        yield from _kinds(kind.inner)
    elif isinstance(kind, OneOf):
        for each in kind.alternatives:
            yield from _kinds(each)


def _put(body: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        body = body.setdefault(name, {})
    body[path[-1]] = value
