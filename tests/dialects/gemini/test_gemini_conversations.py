"""Contents of Google's API as the conversation that a chat template takes, and its schemas as JSON Schemas."""

from __future__ import annotations

import base64
import time
from typing import Any

import msgspec
import pytest
from model_cards import card_of

from dragoman.core.errors import DragomanError
from dragoman.core.image_sources import ImageSource
from dragoman.core.images import ImageInfo
from dragoman.core.serving import ModelCard, TemplateRoles, ToolCalls
from dragoman.dialects.gemini.content import Conversation, conversation, signature_of
from dragoman.dialects.gemini.errors import render_error
from dragoman.dialects.gemini.fields import GENERATE
from dragoman.dialects.gemini.names import camel_case, in_camel_case
from dragoman.dialects.gemini.schemas import json_schema
from dragoman.dialects.reasoning import MAX_HIDDEN_CHARS

CARD = card_of(
    tool_calls=ToolCalls(format="hermes"), template_roles=TemplateRoles(system=True, later_system=True, tool=True)
)
BARE = msgspec.structs.replace(
    CARD, tool_calls=None, template_roles=TemplateRoles(system=False, later_system=False, tool=False)
)
SEEING = msgspec.structs.replace(CARD, images=ImageInfo(most_tokens=64, has_detail=True))
FILE = base64.b64encode(b"\xfb\xff\xfe no png").decode()
URL_SAFE = base64.urlsafe_b64encode(b"\xfb\xff\xfe no png").decode().rstrip("=")


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"text": words, **more}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [text(part) if isinstance(part, str) else part for part in parts]}


def model(*parts: Any) -> dict[str, Any]:
    return user(*parts) | {"role": "model"}


def call(name: str, id: str | None = None, **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args} | ({} if id is None else {"id": id})}


def result(name: str, response: Any, id: str | None = None, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": response, **more} | ({} if id is None else {"id": id})}


def converse(*contents: Any, card: ModelCard = CARD, system: Any = None, resolution: Any = None) -> Conversation:
    body = {"contents": list(contents)} | ({} if system is None else {"systemInstruction": system})
    values = GENERATE.read(in_camel_case(GENERATE, body, ())).values
    return conversation(values["systemInstruction"], values["contents"], card, resolution)


def shown(*contents: Any, **more: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in converse(*contents, **more).messages]


def error_of(*contents: Any, **more: Any) -> str:
    with pytest.raises(DragomanError) as raised:
        converse(*contents, **more)
    said: str = render_error(raised.value).body["error"]["message"]
    return said


# Turns ---------------------------------------------------------------------------------------------------------------


def test_neighbours_of_one_role_are_one_turn() -> None:
    """Pieces of the model's turn, which a streamed answer consists of, are joined as they are."""
    assert shown(user("a"), user("b", "c"), model("d"), model("e", "f"), user("g")) == [
        ("user", "a\n\nb\n\nc"),
        ("assistant", "def"),
        ("user", "g"),
    ]


def test_a_content_without_a_role_is_the_users() -> None:
    assert shown({"parts": [text("a")]}, {"role": "function", "parts": [text("b")]}) == [("user", "a\n\nb")]


def test_as_many_pieces_as_a_body_may_hold_take_moments() -> None:
    """Of processor time, which the event loop spends on nothing else."""
    pieces = [model(text("word " * 10)), model(text("hm", thought=True))] * 20_000
    calls = [model(call("f")) for _ in range(20_000)]
    results = [user(result("f", {})) for _ in range(20_000)]
    values = GENERATE.read({"contents": [user("a"), *pieces, *calls, *results]}).values
    began = time.process_time()
    messages = conversation(None, values["contents"], CARD).messages
    assert time.process_time() - began < 3
    assert len(messages[1]["content"]) == 50 * 20_000
    assert len(messages) == 2 + 20_000


def test_the_system_prompt_comes_first() -> None:
    system = {"role": "user", "parts": [text("Calm."), text("Brief.")]}
    assert shown(user("a"), system=system) == [("system", "Calm.\n\nBrief."), ("user", "a")]
    assert shown(user("a"), system=system, card=BARE) == [("user", "Calm.\n\nBrief.\n\na")]
    later = {"role": "system", "parts": [text("Now.")]}
    assert shown(later, user("a"), system=system)[0] == ("system", "Calm.\n\nBrief.\n\nNow.")
    assert shown(user("a"), model("b"), user("c"), later)[-1] == ("system", "Now.")


def test_a_last_turn_of_the_model_is_continued() -> None:
    assert converse(user("a"), model("b")).continues
    assert not converse(user("a"), model("b"), user("c")).continues
    assert not converse(user("a"), model("")).continues
    assert "cannot end with a function call" in error_of(user("a"), model(call("f")))
    assert "cannot end with a thought" in error_of(user("a"), model(text("hm", thought=True)))


# Calls ---------------------------------------------------------------------------------------------------------------


def test_calls_and_results_find_each_other_by_id_or_by_name() -> None:
    for ids in (("a", "b"), (None, None)):
        first, second = call("look", ids[0], at="sea"), call("look", ids[1], at="sky")
        answers = [result("look", {"output": "waves"}, ids[0]), result("look", {"output": "clouds"}, ids[1])]
        messages = converse(user("What?"), model("Hm.", first, second), user(*answers, "Well?")).messages
        calls = messages[1]["tool_calls"]
        assert [each["function"] for each in calls] == [
            {"name": "look", "arguments": {"at": "sea"}},
            {"name": "look", "arguments": {"at": "sky"}},
        ]
        assert len({each["id"] for each in calls}) == 2
        found = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
        assert [found[each["id"]] for each in calls] == ["waves", "clouds"]
        assert (messages[-1]["role"], messages[-1]["content"]) == ("user", "Well?")
    back = [result("look", {"output": "clouds"}, "b"), result("look", {"output": "waves"}, "a")]
    messages = converse(user("?"), model(call("look", "a"), call("look", "b")), user(*back)).messages
    assert [(each["tool_call_id"], each["content"]) for each in messages[2:]] == [("b", "clouds"), ("a", "waves")]
    assert "there is no call of 'look'" in error_of(user("?"), user(result("look", {})))
    assert "there is no call" in error_of(user("?"), model(call("look")), user(result("look", {}), result("look", {})))


@pytest.mark.parametrize(
    ("response", "told"),
    [
        ({"output": "waves"}, "waves"),
        ({"result": {"a": [1]}}, '{"a": [1]}'),
        ({"error": "no ship"}, "Error: no ship"),
        ({"weather": "sunny", "output": 1}, '{"weather": "sunny", "output": 1}'),
        ({}, "{}"),
    ],
)
def test_what_a_result_becomes(response: Any, told: str) -> None:
    assert converse(user("?"), model(call("f")), user(result("f", response))).messages[-1]["content"] == told


def test_calls_and_results_are_text_where_the_template_has_none() -> None:
    turns = shown(user("?"), model(call("f", a=1)), user(result("f", {"output": "x"})), card=BARE)
    assert turns[1] == ("assistant", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    assert turns[2] == ("user", "<tool_response>\nx\n</tool_response>")


# Files ---------------------------------------------------------------------------------------------------------------


def test_images_in_either_alphabet_of_base64() -> None:
    for data in (FILE, URL_SAFE):
        blob = {"inlineData": {"mimeType": "image/png", "data": data}}
        (message,) = converse(user("See:", blob), card=SEEING).messages
        source = message["content"][1]["source"]
        assert source == ImageSource(data=FILE, param="contents[0].parts[1].inlineData.data")
    where = {"fileData": {"fileUri": "https://example.com/a.png", "mimeType": "image/png"}}
    (message,) = converse(user(where), card=SEEING).messages
    param = "contents[0].parts[0].fileData.fileUri"
    assert message["content"][0]["source"] == ImageSource(url="https://example.com/a.png", param=param)


def test_resolutions_are_details() -> None:
    blob = {"inlineData": {"mimeType": "image/png", "data": FILE}}
    own = {**blob, "mediaResolution": {"level": "MEDIA_RESOLUTION_HIGH"}}
    talk = converse(user(blob, own), card=SEEING, resolution="MEDIA_RESOLUTION_LOW")
    assert [part["source"].detail for part in talk.messages[0]["content"]] == ["low", "high"]
    assert talk.detailed == ("contents[0].parts[1].mediaResolution",)


def test_images_of_results_follow_them() -> None:
    parts = [{"inlineData": {"mimeType": "image/png", "data": FILE}}]
    turn = user(result("f", {"output": "done"}, parts=parts))
    *_, answer, shown_image = converse(user("?"), model(call("f")), turn, card=SEEING).messages
    assert answer["content"] == "done\n\n[image: in the next message]"
    source = shown_image["content"][0]["source"]
    assert source.param == "contents[2].parts[0].functionResponse.parts[0].inlineData.data"


def test_texts_in_files_are_documents() -> None:
    data = base64.b64encode("Käse".encode()).decode()
    blob = {"inlineData": {"mimeType": "text/markdown; charset=utf-8", "data": data, "displayName": "a.md"}}
    assert shown(user(blob, "Well?")) == [("user", '<document title="a.md">\nKäse\n</document>\n\nWell?')]
    blob["inlineData"]["data"] = base64.b64encode(b"\xff").decode()
    assert "expected UTF-8 text in base64" in error_of(user(blob))


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"inlineData": {"mimeType": "image/png", "data": FILE}}, "'contents[0].parts[0].inlineData' is not supported"),
        ({"inlineData": {"mimeType": "application/pdf", "data": FILE}}, "inlineData.mimeType': files of type"),
        ({"fileData": {"mimeType": "video/mp4", "fileUri": "https://a/b"}}, "fileData.mimeType': files of type"),
        ({"text": "a", "inlineData": {"mimeType": "image/png", "data": FILE}}, "exclude each other in a part"),
        ({}, "a part has one of text, inlineData"),
        (call("f"), "contents with the role 'model'"),
        (text("a", thought=True), "contents with the role 'model'"),
        ({"executableCode": {"code": "1"}}, "'contents[0].parts[0].executableCode' is not supported"),
        ({"toolCall": {}}, "'contents[0].parts[0].toolCall' is not supported"),
        ({"functionResponse": {"response": {}}}, "'contents[0].parts[0].functionResponse.name' is missing"),
    ],
)
def test_a_wrong_part_is_named(part: dict[str, Any], said: str) -> None:
    assert said in error_of(user(part))


def test_files_of_googles_are_refused_by_name() -> None:
    for uri in ("gs://bucket/a.png", "https://generativelanguage.googleapis.com/v1beta/files/a", "files/a"):
        part = {"fileData": {"fileUri": uri, "mimeType": "image/png"}}
        assert "files of Google's are not there" in error_of(user(part), card=SEEING), uri


def test_the_model_shows_no_files() -> None:
    blob = {"inlineData": {"mimeType": "image/png", "data": FILE}}
    assert "contents[1].parts[0].inlineData" in error_of(user("a"), model(blob), user("b"), card=SEEING)
    assert "contents[1].parts[0].functionResponse" in error_of(user("a"), model(result("f", {})), user("b"))


# Reasoning -----------------------------------------------------------------------------------------------------------


def test_reasoning_comes_back_from_parts_and_from_signatures() -> None:
    for turn in (
        [model(text("Is ", thought=True)), model(text("it?", thought=True)), model("It is.")],
        [model(text("It is.", thoughtSignature=signature_of("Is it?")))],
        [model({"thoughtSignature": signature_of("Is it?")}, "It is.")],
        [model({"text": "It is.", "thought_signature": signature_of("Is it?")})],
    ):
        message = converse(user("a"), *turn, user("b")).messages[1]
        assert message == {"role": "assistant", "content": "It is.", "reasoning_content": "Is it?"}


def test_signatures_of_others_mean_nothing() -> None:
    for signed in ("", "not base64!", base64.b64encode(b"theirs").decode(), base64.b64encode(b"\xff\x00").decode()):
        message = converse(user("a"), model(text("It is.", thoughtSignature=signed)), user("b")).messages[1]
        assert message == {"role": "assistant", "content": "It is."}


def test_damaged_signatures_are_refused_and_hold_so_much_together() -> None:
    damaged = base64.b64encode(b"dgm1z.AAAA").decode()
    assert "the signature is damaged" in error_of(user("a"), model(text("b", thoughtSignature=damaged)), user("c"))
    half = signature_of("a" * (MAX_HIDDEN_CHARS // 2))
    turns = [model(text("b", thoughtSignature=half)), user("c")] * 2
    assert converse(user("a"), *turns).messages
    assert "hold more than" in error_of(user("a"), *turns, model(text("b", thoughtSignature=half)), user("c"))


# Names and schemas ---------------------------------------------------------------------------------------------------


def test_names_in_camel_case() -> None:
    for snake, camel in (
        ("max_output_tokens", "maxOutputTokens"),
        ("_response_json_schema", "_responseJsonSchema"),
        ("topP", "topP"),
        ("a__b", "a__b"),
    ):
        assert camel_case(snake) == camel


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "STRING", "format": "enum", "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"type": "INTEGER", "format": "int32", "minimum": 1}, {"type": "integer", "minimum": 1}),
        ({"type": "STRING", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        (
            {"type": "ARRAY", "items": {"type": "NUMBER"}, "minItems": "1", "max_items": 3.0},
            {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
        ),
        (
            {"anyOf": [{"type": "NULL"}, {"type": "BOOLEAN"}], "title": "T", "example": 1},
            {"anyOf": [{"type": "null"}, {"type": "boolean"}], "title": "T", "examples": [1]},
        ),
        (
            {"ref": "#/defs/A", "nullable": True},
            {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]},
        ),
        ({"defs": {"A": {"type": "OBJECT"}}}, {"$defs": {"A": {"type": "object"}}}),
        ({"type": "OBJECT", "additionalProperties": {"type": "STRING"}}, None),
        ({"type": "OBJECT", "properties": {"type": {"type": "STRING"}, "nullable": {"type": "STRING"}}}, None),
        ({"type": "TYPE_UNSPECIFIED"}, {}),
    ],
)
def test_schemas(theirs: dict[str, Any], ours: dict[str, Any] | None) -> None:
    """None: the same in small letters."""
    small = msgspec.json.decode(msgspec.json.encode(theirs).replace(b"STRING", b"string").replace(b"OBJECT", b"object"))
    assert json_schema(theirs, ()) == (small if ours is None else ours)
