"""Messages of Anthropic's API as the conversation that a chat template takes."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_cards import card_of

from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.serving import ModelCard, TemplateRoles, ToolCalls
from dragoman.dialects.anthropic.content import Conversation, conversation
from dragoman.dialects.anthropic.errors import render_error
from dragoman.dialects.anthropic.fields import MESSAGES
from dragoman.dialects.anthropic.json_prefix import closed_object
from dragoman.dialects.anthropic.thinking import reasoning_of, signature
from dragoman.dialects.reasoning import MAX_HIDDEN_CHARS

CARD = card_of(
    tool_calls=ToolCalls(format="hermes"), template_roles=TemplateRoles(system=True, later_system=True, tool=True)
)
BARE = msgspec.structs.replace(
    CARD, tool_calls=None, template_roles=TemplateRoles(system=False, later_system=False, tool=False)
)
IN_LINE = msgspec.structs.replace(CARD, template_roles=TemplateRoles(system=True, later_system=False, tool=True))
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sea"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "waves"}
LOOK = {"name": "look", "description": "Look.", "input_schema": {"type": "object"}, "defer_loading": True}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if len(content) == 1 and isinstance(content[0], str) else [*content]}


def assistant(*content: Any) -> dict[str, Any]:
    return {**user(*content), "role": "assistant"}


def system(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": text, **more}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def converse(*messages: dict[str, Any], card: ModelCard = CARD, first: Any = None, **more: Any) -> Conversation:
    body = {"model": "m", "max_tokens": 1, "messages": list(messages)} | ({} if first is None else {"system": first})
    values = MESSAGES.read(body).values
    return conversation(values["system"], values["messages"], card, **more)


def shown(*messages: dict[str, Any], **more: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in converse(*messages, **more).messages]


def error_of(*messages: dict[str, Any], **more: Any) -> str:
    with pytest.raises(DragomanError) as raised:
        converse(*messages, **more)
    said: str = render_error(raised.value).body["error"]["message"]
    return said


# Turns ---------------------------------------------------------------------------------------------------------------


def test_neighbours_of_one_role_are_one_turn() -> None:
    assert shown(user("a"), user(text("b"), text("c")), assistant("d"), assistant(text("e"), text("f")), user("g")) == [
        ("user", "a\n\nb\n\nc"),
        ("assistant", "def"),
        ("user", "g"),
    ]


def test_as_many_neighbours_as_a_body_may_hold_take_moments() -> None:
    """Of processor time, which the event loop spends on nothing else: their text is put together once."""
    many = [{"role": "user", "content": "a" * 100, "clear_at": None}] * 37_000
    began = time.process_time()
    (turn,) = conversation(None, many, CARD).messages
    assert time.process_time() - began < 2
    assert len(turn["content"]) == 37_000 * 102 - 2


def test_texts_with_line_ends_are_joined_as_they_are() -> None:
    assert shown(user(text("a\n"), text("b"), text("\nc"), text(""))) == [("user", "a\nb\nc")]


@pytest.mark.parametrize("first", ["Calm.", [text("Calm.")]])
def test_the_system_prompt_comes_first(first: Any) -> None:
    assert shown(user("a"), first=first) == [("system", "Calm."), ("user", "a")]
    assert shown(user("a"), first=first, card=BARE) == [("user", "Calm.\n\na")]
    assert shown(assistant("b"), user("a"), first=first, card=BARE) == [
        ("user", "Calm."),
        ("assistant", "b"),
        ("user", "a"),
    ]


@pytest.mark.parametrize(
    "first",
    [
        [text("x-anthropic-billing-header: nonce=17"), text("Calm.")],
        "x-anthropic-billing-header: nonce=17\nCalm.",
    ],
)
def test_a_billing_header_is_no_part_of_the_prompt(first: Any) -> None:
    assert shown(user("a"), first=first)[0] == ("system", "Calm.")


def test_an_early_system_message_joins_the_system_prompt() -> None:
    assert shown(system("Be brief."), user("a"), first="Calm.") == [("system", "Calm.\n\nBe brief."), ("user", "a")]


@pytest.mark.parametrize("told", ["Now.", [text("Now.")]])
def test_a_later_system_message_stays_where_it_is(told: Any) -> None:
    messages = (user("a"), system(told), assistant("b"), user("c"))
    assert shown(*messages) == [("user", "a"), ("system", "Now."), ("assistant", "b"), ("user", "c")]
    assert shown(*messages, card=IN_LINE) == [
        ("user", "a\n\n<system-reminder>\nNow.\n</system-reminder>"),
        ("assistant", "b"),
        ("user", "c"),
    ]


def test_a_system_message_between_a_call_and_its_result_moves_behind_it() -> None:
    messages = (user("a"), assistant(USE), system("Now."), user(RESULT, text("b")))
    assert shown(*messages) == [
        ("user", "a"),
        ("assistant", ""),
        ("tool", "waves"),
        ("system", "Now."),
        ("user", "b"),
    ]
    assert shown(*messages, card=IN_LINE)[2:] == [
        ("tool", "waves\n\n<system-reminder>\nNow.\n</system-reminder>"),
        ("user", "b"),
    ]


def test_a_system_message_behind_an_answer_becomes_a_users_turn() -> None:
    assert shown(user("a"), assistant("b"), system("Now."), card=IN_LINE)[-1] == (
        "user",
        "<system-reminder>\nNow.\n</system-reminder>",
    )
    assert not converse(user("a"), assistant("b"), system("Now.")).continues


def test_a_system_message_may_be_cleared() -> None:
    now = system("Now.", clear_at="next_user_message")
    assert shown(user("a"), now, assistant("b"), user("c")) == [("user", "a"), ("assistant", "b"), ("user", "c")]
    assert shown(user("a"), now) == [("user", "a"), ("system", "Now.")]


def test_a_longer_conversation_begins_with_the_shorter_one() -> None:
    said = [user("a"), system("One."), assistant(text("b"), USE), user(RESULT), system("Two."), assistant("c")]
    for card in (CARD, IN_LINE):
        whole = shown(*said, user("d"), card=card, first="Calm.")
        for count in (2, 5):
            part = shown(*said[:count], card=card, first="Calm.")
            assert whole[: len(part)] == part


# Tools ---------------------------------------------------------------------------------------------------------------


def test_calls_and_results() -> None:
    second = {**USE, "id": "toolu_2", "name": "dip"}
    answers = {**RESULT, "content": [text("waves"), text("gulls")]}, {"type": "tool_result", "tool_use_id": "toolu_2"}
    made = converse(user("a"), assistant(text("Let me."), USE, second), user(text("and?"), *answers)).messages
    assert made[1]["tool_calls"] == [
        {"id": "toolu_1", "type": "function", "function": {"name": "look", "arguments": {"at": "sea"}}},
        {"id": "toolu_2", "type": "function", "function": {"name": "dip", "arguments": {"at": "sea"}}},
    ]
    assert made[2:] == (
        {"role": "tool", "tool_call_id": "toolu_1", "name": "look", "content": "waves\n\ngulls"},
        {"role": "tool", "tool_call_id": "toolu_2", "name": "dip", "content": ""},
        {"role": "user", "content": "and?"},
    )


def test_calls_and_results_as_text_where_the_template_has_none() -> None:
    assert shown(user("a"), assistant(text("Let me."), USE), user(RESULT), card=BARE) == [
        ("user", "a"),
        ("assistant", 'Let me.\n<tool_call>\n{"name": "look", "arguments": {"at": "sea"}}\n</tool_call>'),
        ("user", "<tool_response>\nwaves\n</tool_response>"),
    ]


@pytest.mark.parametrize(
    ("content", "told"), [("no sea", "Error: no sea"), ("ENOENT error", "ENOENT error"), (None, "Error: ")]
)
def test_an_error_is_told(content: str | None, told: str) -> None:
    result = {**RESULT, "content": content, "is_error": True}
    assert shown(user("a"), assistant(USE), user(result))[-1] == ("tool", told)


def test_mistral_takes_ids_of_nine_characters_only() -> None:
    card = msgspec.structs.replace(CARD, tool_calls=ToolCalls(format="mistral"))
    made = converse(user("a"), assistant(USE), user(RESULT), card=card).messages
    ids = {made[1]["tool_calls"][0]["id"], made[2]["tool_call_id"]}
    assert [len(each) for each in ids] == [9]


def test_references_to_deferred_tools_are_described() -> None:
    found = {"type": "tool_reference", "tool_name": "look"}
    talk = converse(user("a"), assistant(USE), user({**RESULT, "content": [found]}), tools=[LOOK])
    assert talk.referenced == {"look"}
    described = json.dumps({"description": "Look.", "name": "look", "parameters": {"type": "object"}})
    assert talk.messages[-1]["content"] == f"<functions>\n<function>{described}</function>\n</functions>"
    with pytest.raises(BadRequest) as raised:
        converse(user("a"), assistant(USE), user({**RESULT, "content": [found]}))
    assert render_error(raised.value).body["error"]["details"] == {"error_code": "tool_reference_unresolved"}


# Documents -----------------------------------------------------------------------------------------------------------


def test_documents_are_text() -> None:
    document = {
        "type": "document",
        "title": "Log",
        "context": "of 1851",
        "source": {"type": "text", "media_type": "text/plain", "data": "Calm sea."},
    }
    result = {"type": "search_result", "source": "a.example", "title": "Sea", "content": [text("Wide.")]}
    assert shown(user(document, result)) == [
        (
            "user",
            '<document title="Log">\nof 1851\nCalm sea.\n</document>\n\n'
            '<document title="Sea">\nsource: a.example\nWide.\n</document>',
        )
    ]
    cited = {**document, "citations": {"enabled": True}}
    assert (converse(user(document)).cited, converse(user(cited)).cited) == (False, True)


# Continuing ----------------------------------------------------------------------------------------------------------


def test_a_last_turn_of_the_assistant_is_continued() -> None:
    assert converse(user("a"), assistant("b ")) == (
        ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b "}),
        True,
        frozenset(),
        False,
        False,
    )
    assert converse(user("a"), assistant("")).messages == ({"role": "user", "content": "a"},)
    assert not converse(user("a"), assistant("")).continues


def test_reasoning_is_given_back_and_may_be_cleared() -> None:
    hidden = {"type": "thinking", "thinking": "", "signature": signature("deep", hidden=True)}
    known = {"type": "thinking", "thinking": "hm", "signature": "of another model"}
    said = (user("a"), assistant(known, text("b")), user("c"), assistant(hidden, known, text("d")), user("e"))
    made = [message.get("reasoning_content") for message in converse(*said).messages]
    assert made == [None, "hm", None, "deep\n\nhm", None]
    made = [message.get("reasoning_content") for message in converse(*said, kept_turns=1).messages]
    assert made == [None, None, None, "deep\n\nhm", None]
    assert shown(user("a"), assistant({"type": "redacted_thinking", "data": "x"}, text("b")), user("c"))[1] == (
        "assistant",
        "b",
    )


@given(st.text(st.characters(codec="utf-8")))
def test_a_hidden_text_is_in_its_signature(thought: str) -> None:
    assert reasoning_of("", signature(thought, hidden=True)) == thought
    assert signature(thought, hidden=False) == signature(thought, hidden=False) != ""


@pytest.mark.parametrize("signed", ["dgm1z.", "dgm1z.!!", "dgm1z.AAAA"])
def test_a_damaged_signature_is_refused(signed: str) -> None:
    with pytest.raises(BadRequest):
        reasoning_of("", signed)


def test_signatures_hold_so_much_together_and_no_more() -> None:
    """Their texts are compressed: those of one body could be a thousand times as large."""
    third = {"type": "thinking", "thinking": "", "signature": signature("a" * (MAX_HIDDEN_CHARS // 3), hidden=True)}
    thoughts = [assistant(third, text("so")), user("go on")]
    talk = converse(user("think"), *3 * thoughts)
    assert [len(m["reasoning_content"]) for m in talk.messages if m["role"] == "assistant"] == 3 * [
        MAX_HIDDEN_CHARS // 3
    ]
    said = error_of(user("think"), *4 * thoughts)
    assert said == f"the signatures of thinking blocks hold more than {MAX_HIDDEN_CHARS} bytes of text"


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            {"type": "image", "source": {}},
            "messages.0.content.1.image: Could not process image: the model 'm' reads text only",
        ),
        ({"type": "text"}, "messages.0.content.1.text: Field required"),
        ({"text": "a"}, "messages.0.content.1.type: Field required"),
        ({"type": "tool_addition"}, "messages.0.content.1: `tool_addition` blocks are not supported on this model"),
        (
            {"type": "container_upload"},
            "messages.0.content.1: `container_upload` blocks are written by Anthropic's servers only",
        ),
        (
            {"type": "song"},
            "messages.0.content.1.type: Input should be 'text', 'image', 'document', 'search_result' or 'tool_result'",
        ),
        (RESULT, "messages.0.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1"),
        (
            {"type": "document", "source": {"type": "base64"}},
            "messages.0.content.1.source: documents of type `base64` are not read; send their text",
        ),
        ({"type": "text", "text": 5}, "messages.0.content.1.text: Input should be a valid string"),
    ],
)
def test_a_wrong_block_is_named(block: dict[str, Any], said: str) -> None:
    assert error_of(user(text("a"), block)) == said


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ((system("a"),), "messages: at least one user message is required"),
        ((user("a"), assistant(USE)), "messages: the final assistant message cannot end with a `tool_use` block"),
        ((), "messages: at least one message is required"),
        (({"role": "bot", "content": "a"},), "messages.0.role: Input should be 'user', 'assistant' or 'system'"),
        (({"role": "user"},), "messages.0.content: Field required"),
    ],
)
def test_a_wrong_conversation_is_named(messages: tuple[dict[str, Any], ...], said: str) -> None:
    assert error_of(*messages) == said


# Cut arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "whole"),
    [
        ("", {}),
        ("{", {}),
        ('{"a"', {}),
        ('{"a": ', {}),
        ('{"a": 1', {}),
        ('{"a": 1,', {"a": 1}),
        ('{"a": "x', {}),
        ('{"a": "x"', {"a": "x"}),
        ('{"a": "x", "b', {"a": "x"}),
        ('{"a": [1, 2', {"a": [1]}),
        ('{"a": {"b": true', {"a": {"b": True}}),
        ('{"a": {"b": "c\\"}"}, "d": tru', {"a": {"b": 'c"}'}}),
        ("[1, 2]", {}),
        ("nonsense", {}),
    ],
)
def test_cut_arguments_are_closed_behind_the_last_value(cut: str, whole: dict[str, Any]) -> None:
    assert closed_object(cut) == whole


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=3), st.data())
def test_what_is_left_of_cut_arguments_is_part_of_them(value: dict[str, Any], data: st.DataObject) -> None:
    written = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    left = closed_object(written[: data.draw(st.integers(0, len(written)))])
    assert left.keys() <= value.keys()
    assert closed_object(written) == value
    assert is_part(left, value)


def is_part(left: Any, whole: Any) -> bool:
    if isinstance(left, dict) and isinstance(whole, dict):
        return all(name in whole and is_part(inner, whole[name]) for name, inner in left.items())
    if isinstance(left, list) and isinstance(whole, list):
        return len(left) <= len(whole) and all(map(is_part, left, whole))
    return bool(left == whole)
