"""The package ``google-genai``, version 3.6: what its users do, with what they must see. Run by
``test_gemini_package``."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

from checking import raised, run
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

ASK = "What is the capital of France?"
PARIS = "The capital of France is Paris."
COLD: Any = {"temperature": 0, "max_output_tokens": 40}
WEATHER = types.FunctionDeclaration(
    name="get_weather",
    description="Get the weather of a city.",
    parameters=types.Schema(
        type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)}, required=["city"]
    ),
)
TOOLS = [types.Tool(function_declarations=[WEATHER])]


KEPT: list[genai.Client] = []
"""A client that nobody holds closes its connections in the middle of a call."""


def client(url: str, **more: Any) -> genai.Client:
    KEPT.append(genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, **more)))
    return KEPT[-1]


def generate(url: str, contents: Any = ASK, **config: Any) -> Any:
    given: Any = COLD | config
    return client(url).models.generate_content(model="embedded", contents=contents, config=given)


def check_a_response(url: str) -> None:
    response = generate(url)
    assert response.text == PARIS, response
    (candidate,) = response.candidates
    assert (candidate.finish_reason, candidate.index) == (types.FinishReason.STOP, 0)
    assert candidate.content.role == "model"
    assert (response.model_version, len(response.response_id)) == ("embedded", 24)
    usage = response.usage_metadata
    assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count
    assert usage.candidates_token_count > 4


def check_a_name_of_googles(url: str) -> None:
    for model in ("gemini-2.5-flash", "models/gemini-2.5-flash"):
        response = client(url).models.generate_content(model=model, contents=ASK, config=COLD)
        assert (response.text, response.model_version) == (PARIS, "embedded")


def check_the_other_version(url: str) -> None:
    asking = client(url, api_version="v1")
    assert asking.models.generate_content(model="embedded", contents=ASK, config=COLD).text == PARIS
    assert asking.models.get(model="embedded").name == "models/embedded"
    assert [model.name for model in asking.models.list()] == ["models/embedded"]
    chunks = asking.models.generate_content_stream(model="embedded", contents=ASK, config=COLD)
    assert "".join(chunk.text or "" for chunk in chunks) == PARIS


def check_a_stream(url: str) -> None:
    chunks = list(client(url).models.generate_content_stream(model="embedded", contents=ASK, config=COLD))
    assert len(chunks) > 3
    assert "".join(chunk.text or "" for chunk in chunks) == PARIS
    assert [chunk.candidates[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    last, whole = chunks[-1], generate(url)
    assert last.candidates[0].finish_reason is types.FinishReason.STOP
    assert last.usage_metadata.total_token_count == whole.usage_metadata.total_token_count
    assert len({chunk.response_id for chunk in chunks}) == 1


async def check_the_async_client(url: str) -> None:
    asking = client(url).aio
    response = await asking.models.generate_content(model="embedded", contents=ASK, config=COLD)
    assert response.text == PARIS
    stream = await asking.models.generate_content_stream(model="embedded", contents=ASK, config=COLD)
    assert "".join([chunk.text or "" async for chunk in stream]) == PARIS
    counted = await asking.models.count_tokens(model="embedded", contents=ASK)
    assert counted.total_tokens == response.usage_metadata.prompt_token_count
    assert [model.name async for model in await asking.models.list()] == ["models/embedded"]


async def check_many_at_once(url: str) -> None:
    asking = client(url).aio
    asked = [asking.models.generate_content(model="embedded", contents=ASK, config=COLD) for _ in range(6)]
    assert {response.text for response in await asyncio.gather(*asked)} == {PARIS}


def check_a_chat(url: str) -> None:
    for streams in (False, True):
        chat = client(url).chats.create(model="embedded", config=COLD)
        for asked in (ASK, "And of Germany?"):
            if streams:
                said = "".join(chunk.text or "" for chunk in chat.send_message_stream(asked))
            else:
                said = chat.send_message(asked).text or ""
            assert said
        history = chat.get_history(curated=True)
        roles = [content.role for content in history]
        assert roles[0] == "user"
        assert roles.count("user") == 2, roles
        assert set(roles) == {"user", "model"}
        counted = client(url).models.count_tokens(model="embedded", contents=history)
        assert counted.total_tokens > 20


def check_a_streamed_chat_is_the_same(url: str) -> None:
    """The pieces of a streamed answer come back as contents of their own, and are one turn."""
    whole, streamed = (client(url).chats.create(model="embedded", config=COLD) for _ in range(2))
    whole.send_message(ASK)
    for _ in streamed.send_message_stream(ASK):
        pass
    counts = {
        client(url).models.count_tokens(model="embedded", contents=[*chat.get_history(), _user("Why?")]).total_tokens
        for chat in (whole, streamed)
    }
    assert len(counts) == 1, counts


def _user(text: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text)])


def check_system_instruction(url: str) -> None:
    calm = generate(url, system_instruction="Answer calmly and at length.")
    assert calm.usage_metadata.prompt_token_count > generate(url).usage_metadata.prompt_token_count
    several = generate(url, system_instruction=["Be calm.", "Be brief."])
    assert several.usage_metadata.prompt_token_count > generate(url).usage_metadata.prompt_token_count


def check_a_call_and_its_response(url: str) -> None:
    turns = [_user("What is the weather in Paris?")]
    forced = types.ToolConfig(function_calling_config=types.FunctionCallingConfig(mode="ANY"))
    asked = generate(url, turns, tools=TOOLS, tool_config=forced)
    (call,) = asked.function_calls
    assert (call.name, call.args) == ("get_weather", {"city": "Paris"})
    assert call.id
    assert asked.candidates[0].finish_reason is types.FinishReason.STOP
    result = types.Part.from_function_response(name="get_weather", response={"result": "Sunny, 20 degrees."})
    turns = [*turns, asked.candidates[0].content, types.Content(role="user", parts=[result])]
    answer = generate(url, turns, tools=TOOLS)
    assert answer.text, answer


def check_streamed_calls_come_whole(url: str) -> None:
    forced = {"function_calling_config": {"mode": "ANY", "allowed_function_names": ["get_weather"]}}
    config: Any = COLD | {"tools": TOOLS, "tool_config": forced}
    chunks = client(url).models.generate_content_stream(
        model="embedded", contents="What is the weather in Paris?", config=config
    )
    calls = [call for chunk in chunks for call in chunk.function_calls or ()]
    assert [(call.name, call.args) for call in calls] == [("get_weather", {"city": "Paris"})]


def check_no_calls(url: str) -> None:
    config: Any = {"function_calling_config": {"mode": "NONE"}}
    assert not generate(url, "What is the weather in Paris?", tools=TOOLS, tool_config=config).function_calls
    validated: Any = {"function_calling_config": {"mode": "VALIDATED"}}
    assert generate(url, "What is the weather in Paris?", tools=TOOLS, tool_config=validated).candidates


def check_automatic_function_calling(url: str) -> None:
    for streams in (False, True):
        asked = []

        def get_weather(city: str) -> str:
            """Get the weather of a city."""
            asked.append(city)  # noqa: B023
            return "Sunny, 20 degrees."

        config: Any = {"temperature": 0, "max_output_tokens": 60, "tools": [get_weather]}
        question = "What is the weather in Paris?"
        if streams:
            chunks = client(url).models.generate_content_stream(model="embedded", contents=question, config=config)
            said = "".join(chunk.text or "" for chunk in chunks)
        else:
            response = client(url).models.generate_content(model="embedded", contents=question, config=config)
            said = response.text or ""
            assert len(response.automatic_function_calling_history) == 3, response
        assert asked == ["Paris"], (streams, asked)
        assert said, streams


async def check_automatic_function_calling_in_an_async_chat(url: str) -> None:
    asked = []

    async def get_weather(city: str) -> dict[str, Any]:
        """Get the weather of a city."""
        asked.append(city)
        return {"weather": "sunny", "degrees": 20}

    config: Any = {"temperature": 0, "max_output_tokens": 60, "tools": [get_weather]}
    chat = client(url).aio.chats.create(model="embedded", config=config)
    answer = await chat.send_message("What is the weather in Paris?")
    assert asked == ["Paris"]
    assert answer.text
    assert [content.role for content in chat.get_history()] == ["user", "model", "user", "model"]


class Place(BaseModel):
    name: str
    is_capital: bool
    population: int | None


def check_a_parsed_answer(url: str) -> None:
    for schema in ({"response_schema": Place}, {"response_json_schema": Place.model_json_schema()}):
        config = {"response_mime_type": "application/json", "max_output_tokens": 80, **schema}
        response = generate(url, "Describe Paris as JSON.", **config)
        assert Place.model_validate_json(response.text), response
        if "response_schema" in schema:
            assert isinstance(response.parsed, Place), response.parsed
    many = generate(
        url,
        "List a city.",
        response_mime_type="application/json",
        response_schema=types.Schema(
            type=types.Type.ARRAY, max_items=1, min_items=1, items=types.Schema(type=types.Type.STRING, max_length=10)
        ),
    )
    assert isinstance(many.parsed, list), many.text


def check_an_enum(url: str) -> None:
    schema: Any = {"type": "STRING", "enum": ["red", "blue", "green"]}
    response = generate(url, "Which colour has the sky?", response_mime_type="text/x.enum", response_schema=schema)
    assert response.text in ("red", "blue", "green")


def check_candidates_and_stops(url: str) -> None:
    response = generate(url, candidate_count=3, temperature=1, seed=5, max_output_tokens=8, top_k=40, top_p=0.9)
    assert [candidate.index or 0 for candidate in response.candidates] == [0, 1, 2]
    again = generate(url, candidate_count=3, temperature=1, seed=5, max_output_tokens=8, top_k=40, top_p=0.9)
    assert [c.content for c in response.candidates] == [c.content for c in again.candidates]
    assert generate(url, stop_sequences=["France"]).text == "The capital of "
    short = generate(url, max_output_tokens=2)
    assert short.candidates[0].finish_reason is types.FinishReason.MAX_TOKENS
    assert generate(url, presence_penalty=0.5, frequency_penalty=0.5).text
    config: Any = COLD | {"candidate_count": 2, "temperature": 1, "seed": 5}
    chunks = list(client(url).models.generate_content_stream(model="embedded", contents=ASK, config=config))
    assert {candidate.index or 0 for chunk in chunks for candidate in chunk.candidates} == {0, 1}
    assert [candidate.finish_reason is not None for candidate in chunks[-1].candidates] == [True, True]


def check_logprobs(url: str) -> None:
    response = generate(url, response_logprobs=True, logprobs=2)
    (candidate,) = response.candidates
    result = candidate.logprobs_result
    assert "".join(each.token for each in result.chosen_candidates) == PARIS
    assert all(len(each.candidates) == 2 for each in result.top_candidates)
    best = [each.candidates[0].token for each in result.top_candidates]
    assert best == [each.token for each in result.chosen_candidates]
    total = sum(each.log_probability for each in result.chosen_candidates)
    assert abs(total / len(best) - candidate.avg_logprobs) < 1e-9
    config: Any = COLD | {"response_logprobs": True, "logprobs": 1}
    chunks = client(url).models.generate_content_stream(model="embedded", contents=ASK, config=config)
    found = [c.candidates[0].logprobs_result for c in chunks]
    assert "".join(each.token for one in found if one for each in one.chosen_candidates) == PARIS


def check_what_has_no_effect_is_accepted(url: str) -> None:
    settings = types.SafetySetting(
        category=types.HarmCategory.HARM_CATEGORY_HARASSMENT, threshold=types.HarmBlockThreshold.BLOCK_NONE
    )
    response = generate(url, safety_settings=[settings])
    headers = response.sdk_http_response.headers
    assert headers["x-dragoman-warnings"] == "ignored: safetySettings", headers
    thinking = types.ThinkingConfig(include_thoughts=True, thinking_budget=-1)
    assert generate(url, thinking_config=thinking).text == PARIS


def check_tokens_are_counted(url: str) -> None:
    counted = client(url).models.count_tokens(model="embedded", contents=ASK)
    assert counted.total_tokens == generate(url).usage_metadata.prompt_token_count


def check_embeddings(url: str) -> None:
    asking = client(url)
    found = asking.models.embed_content(model="embedded", contents=["a cat", "a dog"])
    assert len(found.embeddings) == 2
    values = found.embeddings[0].values
    assert abs(sum(value * value for value in values) - 1) < 1e-5
    (one,) = asking.models.embed_content(model="embedded", contents="a cat").embeddings
    assert one.values == values
    cut = asking.models.embed_content(model="embedded", contents="a cat", config={"output_dimensionality": 8})
    assert len(cut.embeddings[0].values) == 8


def check_models(url: str) -> None:
    asking = client(url)
    (model,) = list(asking.models.list(config={"page_size": 1}))
    assert (model.name, model.output_token_limit) == ("models/embedded", 2047)
    assert "generateContent" in model.supported_actions
    assert asking.models.get(model="embedded").input_token_limit == 2048


def check_every_field_of_the_types_is_known(url: str) -> None:
    """Each is honoured, refused or reported: none is unknown to the server's table."""
    with urllib.request.urlopen(f"{url}/gemini/openapi.json", timeout=30) as answer:
        schemas = json.load(answer)["components"]["schemas"]
    body = schemas["gemini.generateContent"]["properties"]

    def inside(schema: Any, *names: str) -> dict[str, Any]:
        """The properties of what these fields hold, one in the other; ``[]`` is the item of a list."""
        for name in names:
            plain = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
            schema = plain["items"] if name == "[]" else plain["properties"][name]
        found: Any = next((each for each in schema.get("anyOf", ()) if each.get("type") != "null"), schema)
        known: dict[str, Any] = found["properties"]
        return known

    top = {"properties": body}
    part = ("contents", "[]", "parts", "[]")
    declared = ("tools", "[]", "functionDeclarations", "[]")
    for kind, path in (
        (types.GenerationConfig, ("generationConfig",)),
        (types.ThinkingConfig, ("generationConfig", "thinkingConfig")),
        (types.Content, ("contents", "[]")),
        (types.Part, part),
        (types.Blob, (*part, "inlineData")),
        (types.FileData, (*part, "fileData")),
        (types.PartMediaResolution, (*part, "mediaResolution")),
        (types.FunctionCall, (*part, "functionCall")),
        (types.FunctionResponse, (*part, "functionResponse")),
        (types.FunctionResponsePart, (*part, "functionResponse", "parts", "[]")),
        (types.Tool, ("tools", "[]")),
        (types.FunctionDeclaration, declared),
        (types.ToolConfig, ("toolConfig",)),
        (types.FunctionCallingConfig, ("toolConfig", "functionCallingConfig")),
    ):
        names = {field.alias or name for name, field in kind.model_fields.items()}
        assert names <= set(inside(top, *path)), (kind.__name__, names - set(inside(top, *path)))
    of_config = {field.alias or name for name, field in types.GenerateContentConfig.model_fields.items()}
    of_client = {"httpOptions", "shouldReturnHttpResponse", "automaticFunctionCalling", "automaticContinuation"}
    renamed = {"generationOutputConfig"}  # ``outputConfig`` on the wire
    config = set(inside(top, "generationConfig"))
    assert of_config <= config | set(body) | of_client | renamed, of_config - config - set(body) - of_client


def check_errors(url: str) -> None:
    asking = client(url)
    for model, config, code, status, words in (
        ("gpt-5", {}, 404, "NOT_FOUND", "models/gpt-5 is not found"),
        ("embedded", {"temperature": 9}, 400, "INVALID_ARGUMENT", "generationConfig.temperature"),
        ("embedded", {"cached_content": "cachedContents/a"}, 400, "INVALID_ARGUMENT", "cachedContent"),
        ("embedded", {"tools": [{"google_search": {}}]}, 400, "INVALID_ARGUMENT", "tools[0].googleSearch"),
        ("embedded", {"tools": [{"code_execution": {}}]}, 400, "INVALID_ARGUMENT", "tools[0].codeExecution"),
        ("embedded", {"response_modalities": ["AUDIO"]}, 400, "INVALID_ARGUMENT", "responseModalities"),
        ("embedded", {"logprobs": 2}, 400, "INVALID_ARGUMENT", "responseLogprobs"),
    ):
        given: Any = config
        error = raised(errors.ClientError, asking.models.generate_content, model=model, contents=ASK, config=given)
        assert (error.code, error.status) == (code, status), error
        assert words in error.message, error.message

        def stream(model: str = model, given: Any = given) -> Any:
            return list(asking.models.generate_content_stream(model=model, contents=ASK, config=given))

        assert raised(errors.ClientError, stream).code == code
    long = raised(errors.ClientError, generate, url, "a " * 9000)
    assert "exceeds the maximum number of tokens allowed (2047)" in long.message, long
    image = types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")
    assert "contents[0].parts[0].inlineData" in raised(errors.ClientError, generate, url, [image]).message


if __name__ == "__main__":
    run(globals())
