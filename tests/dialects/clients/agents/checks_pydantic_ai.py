"""pydantic-ai: agents over chat, Responses, Messages and Ollama, with tools, forms, streams and histories."""

from __future__ import annotations

from typing import Any

from checking import raised, run
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
WEATHER = "What is the weather in Paris?"
GREEDY = ModelSettings(temperature=0, max_tokens=80)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=100_000_000)


class Anything(BaseModel):
    """Whatever it is."""


def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"Sunny in {city}, 20 degrees."


def models(url: str, name: str = "embedded") -> dict[str, Any]:
    openai = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    return {
        "chat": OpenAIChatModel(name, provider=openai),
        "responses": OpenAIResponsesModel(name, provider=openai),
        "anthropic": AnthropicModel(name, provider=AnthropicProvider(base_url=url, api_key="none")),
        "ollama": OpenAIChatModel(name, provider=OllamaProvider(base_url=f"{url}/v1")),
    }


async def check_an_answer(url: str) -> None:
    for name, model in models(url).items():
        result = await Agent(model, model_settings=GREEDY).run(CAPITAL)
        assert result.output == PARIS, (name, result)
        assert result.usage.output_tokens > 3, (name, result.usage)


async def check_a_stream(url: str) -> None:
    for name, model in models(url).items():
        async with Agent(model, model_settings=GREEDY).run_stream(CAPITAL) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
        assert "".join(pieces) == PARIS, (name, pieces)
        assert len(pieces) > 2, (name, pieces)


async def check_a_loop_of_tools(url: str) -> None:
    for name, model in models(url).items():
        agent = Agent(model, tools=[get_weather], model_settings=GREEDY)
        result = await agent.run(WEATHER)
        returned = [part.content for message in result.all_messages() for part in message.parts if is_result(part)]
        assert returned == ["Sunny in Paris, 20 degrees."], (name, result.all_messages())
        assert result.output, name
        again = await agent.run(CAPITAL, message_history=result.all_messages())
        assert again.output, name
        async with agent.run_stream(WEATHER) as streamed:
            assert await streamed.get_output(), name


def is_result(part: Any) -> bool:
    return isinstance(part, ToolReturnPart)


async def check_forms(url: str) -> None:
    for name, model in models(url).items():
        kinds: list[Any] = [ToolOutput(City)]
        kinds += [] if name == "anthropic" else [NativeOutput(City)]  # it knows which of Anthropic's models have that
        for kind in kinds:
            agent = Agent(model, output_type=kind, model_settings=GREEDY)
            result = await agent.run("Describe Paris.")
            assert isinstance(result.output, City), (name, kind, result)
            async with agent.run_stream("Describe Paris.") as streamed:
                assert isinstance(await streamed.get_output(), City), (name, kind)


async def check_a_prompted_form(url: str) -> None:
    """The mode asks for any object, which is what comes."""
    model = models(url)["chat"]
    result = await Agent(model, output_type=PromptedOutput(Anything), model_settings=GREEDY).run("Describe Paris.")
    assert isinstance(result.output, Anything), result


def check_an_unknown_model(url: str) -> None:
    for name, model in models(url, "other").items():
        error = raised(ModelHTTPError, Agent(model).run_sync, CAPITAL)
        assert error.status_code == 404, (name, error)


if __name__ == "__main__":
    run(globals())
