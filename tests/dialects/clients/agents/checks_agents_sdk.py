"""OpenAI's Agents SDK: agents over Responses and over chat, with tools, handoffs, forms and sessions."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    ToolsToFinalOutputResult,
    function_tool,
    set_tracing_disabled,
)
from checking import run
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(True)
CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
WEATHER = "What is the weather in Paris?"
GREEDY = ModelSettings(temperature=0, max_tokens=80)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=100_000_000)


@function_tool
def get_weather(city: str) -> str:
    """Get the weather of a city."""
    return f"Sunny in {city}, 20 degrees."


def models(url: str) -> dict[str, Any]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return {
        "responses": OpenAIResponsesModel("embedded", client),
        "chat": OpenAIChatCompletionsModel("embedded", client),
    }


async def check_an_answer(url: str) -> None:
    for name, model in models(url).items():
        result = await Runner.run(Agent("a", model=model, model_settings=GREEDY), CAPITAL)
        assert result.final_output == PARIS, (name, result)
        assert result.context_wrapper.usage.output_tokens > 3, name


async def check_a_stream(url: str) -> None:
    for name, model in models(url).items():
        streamed = Runner.run_streamed(Agent("a", model=model, model_settings=GREEDY), CAPITAL)
        events = [event async for event in streamed.stream_events()]
        deltas = [
            event.data.delta
            for event in events
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        assert "".join(deltas) == streamed.final_output == PARIS, (name, deltas)
        assert len(deltas) > 2, name


async def check_a_loop_of_tools(url: str) -> None:
    for name, model in models(url).items():
        agent = Agent("a", model=model, model_settings=GREEDY, tools=[get_weather])
        for result in (await Runner.run(agent, WEATHER), Runner.run_streamed(agent, WEATHER)):
            if hasattr(result, "stream_events"):
                assert [event async for event in result.stream_events()], name
            outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
            assert outputs == ["Sunny in Paris, 20 degrees."], (name, result.new_items)
            assert result.final_output, name


async def check_a_form(url: str) -> None:
    for name, model in models(url).items():
        agent = Agent("a", model=model, model_settings=GREEDY, output_type=City)
        result = await Runner.run(agent, "Describe Paris.")
        assert isinstance(result.final_output, City), (name, result.final_output)


async def check_tools_and_a_form(url: str) -> None:
    """Every turn sends the tools and the form: a turn is calls by their schemas, or a message by the form."""
    for name, model in models(url).items():

        def agent(choice: str, model: Any = model) -> Any:
            settings = ModelSettings(temperature=0, max_tokens=80, tool_choice=choice)
            return Agent(
                "a",
                model=model,
                model_settings=settings,
                tools=[get_weather],
                output_type=City,
                tool_use_behavior=lambda _, results: ToolsToFinalOutputResult(True, results[0].output),
            )

        called = await Runner.run(agent("required"), WEATHER)
        assert called.final_output == "Sunny in Paris, 20 degrees.", (name, called)
        described = await Runner.run(agent("none"), called.to_input_list())
        assert isinstance(described.final_output, City), (name, described)
        free = await Runner.run(agent("auto"), WEATHER)
        assert isinstance(free.final_output, City) or free.final_output.startswith("Sunny"), (name, free)


async def check_a_handoff(url: str) -> None:
    for name, model in models(url).items():
        second = Agent("geographer", model=model, model_settings=GREEDY)
        forced = ModelSettings(temperature=0, max_tokens=80, tool_choice="transfer_to_geographer")
        first = Agent("first", model=model, model_settings=forced, handoffs=[second])
        result = await Runner.run(first, CAPITAL)
        assert result.last_agent.name == "geographer", (name, result)
        assert result.final_output, name


async def check_a_chain_of_responses(url: str) -> None:
    agent = Agent("a", model=models(url)["responses"], model_settings=GREEDY, tools=[get_weather])
    first = await Runner.run(agent, WEATHER, auto_previous_response_id=True)
    assert len(first.raw_responses) == 2, first.raw_responses
    second = await Runner.run(agent, CAPITAL, previous_response_id=first.last_response_id)
    assert second.final_output, second


async def check_sessions(url: str) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    stored = OpenAIConversationsSession(openai_client=client)
    cases = [("responses", stored), ("responses", SQLiteSession("s")), ("chat", SQLiteSession("s"))]
    for name, session in cases:
        agent = Agent("a", model=models(url)[name], model_settings=GREEDY, tools=[get_weather])
        await Runner.run(agent, WEATHER, session=session, run_config=RunConfig(tracing_disabled=True))
        await Runner.run(agent, CAPITAL, session=session)
        kinds = [item.get("type", "message") for item in await session.get_items()]
        expected = ["message", "function_call", "function_call_output", "message", "message", "message"]
        assert kinds == expected, (name, kinds)
        await session.clear_session()


if __name__ == "__main__":
    run(globals())
