"""Answers of the Gemini dialect, whole and streamed, to a model that says what the test wants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from gemini_calls import CALL, CITY, HI, NOW, SOURCE, THOUGHT, TOOLS, V1BETA, WEATHER, ask, choice, parts, post
from scripted import ScriptedServer, can_follow, scripted_server

from dragoman.dialects.gemini.content import signature_of
from dragoman.text import ChatTemplate


@pytest.fixture(scope="module")
def calling(template: ChatTemplate) -> Iterator[ScriptedServer]:
    with scripted_server(template) as server:
        yield server


@pytest.fixture(scope="module")
def reasoning() -> Iterator[ScriptedServer]:
    template = ChatTemplate({"default": SOURCE})
    with scripted_server(template) as server:
        yield server
    template.close()


# Text ----------------------------------------------------------------------------------------------------------------


def test_a_text(calling: ScriptedServer) -> None:
    answer = ask(calling, "It is four.", {"maxOutputTokens": 200})
    assert list(answer) == ["candidates", "usageMetadata", "modelVersion", "responseId"]
    assert answer["candidates"] == [
        {"content": {"parts": [{"text": "It is four."}], "role": "model"}, "finishReason": "STOP", "index": 0}
    ]
    usage = answer["usageMetadata"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]
    assert usage["promptTokenCount"] == len(calling.engine.requests[-1].prompt)
    assert calling.engine.requests[-1].max_tokens == 200


def test_nothing_is_one_empty_text(calling: ScriptedServer) -> None:
    assert parts(ask(calling, "")) == [{"text": ""}]


def test_names_may_be_in_snake_case(calling: ScriptedServer) -> None:
    calling.engine.texts = ["Hm."]
    snake = {
        "contents": HI,
        "system_instruction": {"parts": [{"text": "Calm."}]},
        "generation_config": {"max_output_tokens": 7.0, "top_k": 3.0, "thinking_config": {"include_thoughts": False}},
        "tools": [{"function_declarations": [WEATHER]}],
        "tool_config": {"function_calling_config": {"mode": "any", "allowed_function_names": ["weather"]}},
    }
    answer = post(calling, f"{V1BETA}:generateContent", snake)
    assert answer.status_code == 200, answer.text
    assert "x-dragoman-warnings" not in answer.headers
    made = calling.engine.requests[-1]
    assert (made.max_tokens, made.sampling.top_k) == (7, 3)
    assert "Calm." in calling.engine.prompt()
    assert "weather" in calling.engine.prompt()
    twice = post(calling, f"{V1BETA}:generateContent", snake | {"generationConfig": {}})
    assert (twice.status_code, twice.json()["error"]["message"]) == (
        400,
        "'generationConfig' is given twice, in camel case and in snake case.",
    )


def test_one_object_is_a_list_of_one(calling: ScriptedServer) -> None:
    """As many examples have it."""
    calling.engine.texts = ["Hm."]
    body = {
        "contents": {"role": "user", "parts": {"text": "Hi."}},
        "system_instruction": {"parts": {"text": "Calm."}},
        "tools": {"function_declarations": WEATHER},
    }
    answer = post(calling, f"{V1BETA}:generateContent", body)
    assert answer.status_code == 200, answer.text
    prompt = calling.engine.requests[-1].prompt
    ask(calling, "Hm.", systemInstruction={"parts": [{"text": "Calm."}]}, tools=[{"functionDeclarations": [WEATHER]}])
    assert calling.engine.requests[-1].prompt == prompt
    for wrong in ({"contents": {}}, {"contents": HI, "tools": {}}, {"contents": {"text": "Hi."}}):
        assert post(calling, f"{V1BETA}:generateContent", wrong).status_code == 400, wrong
    nothing = post(calling, f"{V1BETA}:generateContent", [])
    assert nothing.json()["error"]["message"] == "Invalid JSON payload received: it is no object."


def test_the_names_of_a_clients_own_objects_stay(calling: ScriptedServer) -> None:
    schema = {"type": "OBJECT", "properties": {"in_line": {"type": "STRING"}}}
    ask(calling, "Hm.", tools=[{"functionDeclarations": [{"name": "f_g", "parameters": schema}]}])
    assert '"in_line"' in calling.engine.prompt()
    turns = [*HI, {"role": "model", "parts": [{"functionCall": {"name": "f_g", "args": {"in_line": 1}}}]}]
    turns += [{"role": "user", "parts": [{"functionResponse": {"name": "f_g", "response": {"so_it": "is"}}}]}]
    ask(calling, "Hm.", contents=turns)
    assert '"in_line"' in calling.engine.prompt()
    assert '{"so_it": "is"}' in calling.engine.prompt()


def test_a_length_that_does_not_fit_is_lowered(calling: ScriptedServer) -> None:
    assert ask(calling, "Hm.", {"maxOutputTokens": 128_000})["candidates"][0]["finishReason"] == "STOP"
    cut = ask(calling, "Once upon a time", {"maxOutputTokens": 2})
    assert (cut["candidates"][0]["finishReason"], cut["usageMetadata"]["candidatesTokenCount"]) == ("MAX_TOKENS", 2)


def test_candidates_have_their_numbers(calling: ScriptedServer) -> None:
    answer = ask(calling, ["It is one.", "It is two."], {"candidateCount": 2})
    texts = [candidate["content"]["parts"][0]["text"] for candidate in answer["candidates"]]
    assert texts == ["It is one.", "It is two."]
    assert [candidate["index"] for candidate in answer["candidates"]] == [0, 1]


def test_a_turn_of_the_model_is_continued(calling: ScriptedServer) -> None:
    turns = [*HI, {"role": "model", "parts": [{"text": "It is "}]}]
    assert parts(ask(calling, "four.", contents=turns)) == [{"text": "four."}]
    assert calling.engine.prompt().endswith("assistant\nIt is ")


def test_logprobs(calling: ScriptedServer) -> None:
    (candidate,) = ask(calling, "It is four.", {"responseLogprobs": True, "logprobs": 2})["candidates"]
    result = candidate["logprobsResult"]
    assert "".join(each["token"] for each in result["chosenCandidates"]) == "It is four."
    assert {each["logProbability"] for each in result["chosenCandidates"]} == {-0.5}
    assert candidate["avgLogprobs"] == -0.5
    assert [len(each["candidates"]) for each in result["topCandidates"]] == [2] * len(result["chosenCandidates"])
    assert result["logProbabilitySum"] == -0.5 * len(result["chosenCandidates"])
    assert "logprobsResult" not in ask(calling, "It is four.")["candidates"][0]


def test_each_name_of_gemini_means_the_default_model(calling: ScriptedServer) -> None:
    calling.engine.texts = ["Hm."]
    for name in ("gemini-2.5-flash", "Gemini-9-pro", "gemini-2.5-flash:latest"):
        answer = post(calling, f"/v1beta/models/{name}:generateContent", {"contents": HI})
        assert (answer.status_code, answer.json()["modelVersion"]) == (200, "stub"), name
    missing = post(calling, "/v1beta/models/gpt-5:generateContent", {"contents": HI})
    assert missing.status_code == 404
    assert missing.json()["error"]["status"] == "NOT_FOUND"
    assert missing.json()["error"]["message"].startswith("models/gpt-5 is not found")


def test_prompts_are_counted_as_they_run(calling: ScriptedServer) -> None:
    system = {"systemInstruction": {"parts": [{"text": "Calm."}]}}
    ask(calling, "Hm.", **system, **TOOLS)
    expected = {"totalTokens": len(calling.engine.requests[-1].prompt)}
    body = {"contents": HI, **system, **TOOLS}
    assert post(calling, f"{V1BETA}:countTokens", body).json() == expected
    whole = {"generateContentRequest": {"model": "models/stub", **body, "generationConfig": {"temperature": 1}}}
    answer = post(calling, f"{V1BETA}:countTokens", whole)
    assert answer.json() == expected
    assert answer.headers["x-dragoman-warnings"] == "ignored: generateContentRequest.generationConfig"
    beside = {"contents": [*HI, *HI], "systemInstruction": {"parts": [{"text": "Hm."}]}}
    answer = post(calling, f"{V1BETA}:countTokens", whole | beside)
    assert answer.json() == expected
    assert answer.headers["x-dragoman-warnings"].endswith(", contents, systemInstruction")
    assert post(calling, f"{V1BETA}:countTokens", {}).status_code == 400


# Calls ---------------------------------------------------------------------------------------------------------------


def test_calls_behind_text(calling: ScriptedServer) -> None:
    answer = ask(calling, f"Let me look.\n{CALL}\n{NOW}", **TOOLS)
    text, first, second = parts(answer)
    assert text == {"text": "Let me look."}
    assert [(each["functionCall"]["name"], each["functionCall"]["args"]) for each in (first, second)] == [
        ("weather", {"city": "Köln"}),
        ("get_time", {}),
    ]
    assert first["functionCall"]["id"] != second["functionCall"]["id"]
    assert answer["candidates"][0]["finishReason"] == "STOP"


def test_templates_see_json_schemas(calling: ScriptedServer) -> None:
    ask(calling, "Hm.", **TOOLS)
    assert '"city": {"type": ["string", "null"]}' in calling.engine.prompt()
    assert "STRING" not in calling.engine.prompt()


def test_calls_that_the_model_chooses_follow_a_grammar(calling: ScriptedServer) -> None:
    other = CALL.replace("city", "town")
    ask(calling, CALL, **TOOLS)
    assert can_follow(calling, f"Hm. {CALL}\n{NOW}")
    assert can_follow(calling, other)
    assert not can_follow(calling, "<tool_call>\nHm")
    ask(calling, CALL, **TOOLS, **choice("VALIDATED"))
    assert can_follow(calling, f"Hm. {CALL}")
    assert not can_follow(calling, other)
    ask(calling, CALL, **TOOLS, **choice("VALIDATED", "get_time"))
    assert not can_follow(calling, CALL)
    ask(calling, CALL, **TOOLS, **choice("ANY"))
    assert can_follow(calling, CALL)
    assert not can_follow(calling, "Hm.")
    ask(calling, CALL, **TOOLS, **choice("ANY", "weather"))
    assert not can_follow(calling, NOW)
    ask(calling, "Hm.", **TOOLS, **choice("NONE"))
    assert calling.engine.requests[-1].grammar is None
    assert "weather" not in calling.engine.prompt()


def test_a_call_or_a_form(calling: ScriptedServer) -> None:
    config = {"responseMimeType": "application/json", "responseSchema": CITY}
    ask(calling, '{"city": "Köln"}', config, **TOOLS)
    assert can_follow(calling, CALL)
    assert can_follow(calling, '{"city": "Köln"}')
    assert not can_follow(calling, "Hm.")


def test_a_cut_call_is_left_out_and_told(calling: ScriptedServer) -> None:
    """Clients run every call that they find, whatever the reason for the end."""
    answer = ask(calling, f"Hm. {CALL}", {"maxOutputTokens": 16}, **TOOLS)
    (candidate,) = answer["candidates"]
    assert candidate["content"]["parts"] == [{"text": "Hm."}]
    assert candidate["finishReason"] == "MAX_TOKENS"
    assert candidate["finishMessage"].startswith("The arguments of the last function call are incomplete")


def test_arguments_that_are_no_object_are_told(calling: ScriptedServer) -> None:
    answer = ask(calling, '<tool_call>\n{"name": "weather", "arguments": {"city": oops}}\n</tool_call>', **TOOLS)
    (candidate,) = answer["candidates"]
    assert candidate["content"]["parts"] == [{"text": ""}]
    assert candidate["finishReason"] == "MALFORMED_FUNCTION_CALL"


# Forms ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "fits", "fails"),
    [
        ({"responseMimeType": "application/json"}, '[{"a": 1}]', '"a"'),
        ({"responseMimeType": "application/json", "responseSchema": CITY}, '{"city": "K"}', "{}"),
        ({"responseSchema": CITY}, '{"city": "K"}', "{}"),
        ({"responseJsonSchema": {"type": "array", "items": {"const": 1}}}, "[1, 1]", "[2]"),
        ({"_responseJsonSchema": {"type": "array", "items": {"const": 1}}}, "[1, 1]", "[2]"),
        ({"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a", "b"]}}, "a", '"a"'),
        ({"responseSchema": {"type": "ARRAY", "items": {"type": "INTEGER"}, "maxItems": "1"}}, "[1]", "[1, 2]"),
        ({"responseSchema": {"type": "BOOLEAN", "nullable": True}}, "null", "1"),
        ({"responseSchema": {"anyOf": [{"type": "BOOLEAN"}, {"type": "NULL"}]}}, "null", "1"),
    ],
)  # fmt: skip
def test_forms(calling: ScriptedServer, config: dict[str, Any], fits: str, fails: str) -> None:
    ask(calling, fits, config)
    assert can_follow(calling, fits)
    assert not can_follow(calling, fails)


def test_properties_come_in_their_order(calling: ScriptedServer) -> None:
    schema = {
        "type": "OBJECT",
        "properties": {"a": {"type": "INTEGER"}, "b": {"type": "INTEGER"}},
        "required": ["a", "b"],
        "property_ordering": ["b", "a"],
    }
    ask(calling, '{"b": 1, "a": 2}', {"responseSchema": schema})
    assert can_follow(calling, '{"b": 1, "a": 2}')
    assert not can_follow(calling, '{"a": 1, "b": 2}')


# Reasoning -----------------------------------------------------------------------------------------------------------


def test_reasoning_is_kept_in_a_signature_where_it_is_not_shown(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, THOUGHT)
    assert parts(answer) == [{"text": "It is.", "thoughtSignature": signature_of("Is it?")}]
    usage = answer["usageMetadata"]
    assert usage["thoughtsTokenCount"] > 0
    counts = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    assert usage["totalTokenCount"] == sum(usage[name] for name in counts)
    ask(reasoning, "Hm.", contents=[*HI, answer["candidates"][0]["content"], *HI])
    assert "It is.Is it?" in reasoning.engine.prompt()


def test_reasoning_is_shown_where_it_is_asked_for(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, THOUGHT, {"thinkingConfig": {"includeThoughts": True}})
    assert parts(answer) == [{"text": "Is it?", "thought": True}, {"text": "It is."}]
    assert reasoning.engine.prompt().endswith("]True")
    ask(reasoning, "Hm.", contents=[*HI, answer["candidates"][0]["content"], *HI])
    assert "It is.Is it?" in reasoning.engine.prompt()


def test_budgets_and_levels(reasoning: ScriptedServer) -> None:
    for config, end, most in (
        ({"thinkingBudget": 0}, "]False", None),
        ({"thinkingBudget": -1}, "]True", None),
        ({"thinkingBudget": 3}, "]True", 3),
        ({"thinkingLevel": "low"}, "]Truelow", None),
        ({"thinkingLevel": "XHIGH"}, "]Truehigh", None),
        ({}, "]", None),
    ):
        ask(reasoning, THOUGHT, {"thinkingConfig": config})
        assert reasoning.engine.prompt().endswith(end), config
        limit = reasoning.engine.requests[-1].reasoning
        assert (limit and limit.tokens) == most, config
    both = {"thinkingConfig": {"thinkingBudget": 3, "thinkingLevel": "LOW"}}
    answer = post(reasoning, f"{V1BETA}:generateContent", {"contents": HI, "generationConfig": both})
    assert (answer.status_code, "exclude each other" in answer.text) == (400, True)


def test_a_cut_thought_is_the_whole_answer(reasoning: ScriptedServer) -> None:
    config = {"thinkingConfig": {"includeThoughts": True}, "maxOutputTokens": 8}
    answer = ask(reasoning, "<think>\nIs it? Is it not?", config)
    assert [part["thought"] for part in parts(answer)] == [True]
    assert answer["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert answer["usageMetadata"]["candidatesTokenCount"] == 0


def test_stop_sequences_count_in_the_answer_only(reasoning: ScriptedServer) -> None:
    answer = ask(reasoning, THOUGHT, {"stopSequences": ["it?", "is."]})
    assert parts(answer)[0]["text"] == "It "
