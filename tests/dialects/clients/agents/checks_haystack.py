"""haystack: its chat generators, its agent, and a pipeline."""

from __future__ import annotations

import os
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

from checking import run
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, Document, StreamingChunk
from haystack.tools import tool
from haystack.utils import Secret
from pydantic import BaseModel, Field

CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
WEATHER = "What is the weather in Paris?"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=100_000_000)


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"Sunny in {city}, 20 degrees."


def generators(url: str, **more: Any) -> dict[str, Any]:
    shared: dict[str, Any] = {"api_key": Secret.from_token("none"), "model": "embedded", "api_base_url": f"{url}/v1"}
    shared |= {"max_retries": 0}
    greedy = {"temperature": 0} | more
    return {
        "chat": OpenAIChatGenerator(**shared, generation_kwargs={"max_tokens": 80} | greedy),
        "responses": OpenAIResponsesChatGenerator(**shared, generation_kwargs={"max_output_tokens": 80} | greedy),
    }


def check_an_answer(url: str) -> None:
    for name, generator in generators(url).items():
        (reply,) = generator.run([ChatMessage.from_user(CAPITAL)])["replies"]
        assert reply.text == PARIS, (name, reply)


async def check_async(url: str) -> None:
    for name, generator in generators(url).items():
        (reply,) = (await generator.run_async([ChatMessage.from_user(CAPITAL)]))["replies"]
        assert reply.text == PARIS, (name, reply)


def check_a_stream(url: str) -> None:
    for name, generator in generators(url).items():
        chunks: list[StreamingChunk] = []
        generator.run([ChatMessage.from_user(CAPITAL)], streaming_callback=chunks.append)
        assert "".join(chunk.content for chunk in chunks) == PARIS, (name, chunks)


def check_a_form(url: str) -> None:
    asked = [ChatMessage.from_user("Describe Paris.")]
    for name, form in (("chat", {"response_format": City}), ("responses", {"text_format": City})):
        (reply,) = generators(url, **form)[name].run(asked)["replies"]
        City.model_validate_json(reply.text)


def check_an_agent(url: str) -> None:
    for name, generator in generators(url).items():
        for callback in (None, lambda chunk: None):
            agent = Agent(chat_generator=generator, tools=[get_weather], streaming_callback=callback)
            found = agent.run([ChatMessage.from_user(WEATHER)])
            results = [m.tool_call_result.result for m in found["messages"] if m.tool_call_result]
            assert results == ["Sunny in Paris, 20 degrees."], (name, found)
            assert found["last_message"].text, (name, found)


def check_a_pipeline(url: str) -> None:
    for name, generator in generators(url).items():
        pipeline = Pipeline()
        template = [ChatMessage.from_user("What is the capital of {{ country }}?")]
        pipeline.add_component("prompt", ChatPromptBuilder(template=template, required_variables=["country"]))
        pipeline.add_component("model", generator)
        pipeline.connect("prompt.prompt", "model.messages")
        found = pipeline.run({"prompt": {"country": "France"}})
        assert found["model"]["replies"][0].text == PARIS, (name, found)


def check_vectors(url: str) -> None:
    base: dict[str, Any] = {"api_key": Secret.from_token("none"), "model": "embedded", "api_base_url": f"{url}/v1"}
    query = OpenAITextEmbedder(**base).run(CAPITAL)["embedding"]
    (document,) = OpenAIDocumentEmbedder(**base, progress_bar=False).run([Document(content=CAPITAL)])["documents"]
    assert len(query) > 8
    assert query == document.embedding


if __name__ == "__main__":
    run(globals())
