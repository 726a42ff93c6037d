"""smolagents: its models for OpenAI's API and for inference endpoints, and its agent that calls tools."""

from __future__ import annotations

import json
from typing import Any

from checking import run
from smolagents import CodeAgent, InferenceClientModel, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessage, MessageRole

CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."
ASK = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": CAPITAL}])]


@tool
def get_weather(city: str) -> str:
    """Get the weather of a city.

    Args:
        city: The city.
    """
    return f"Sunny in {city}, 20 degrees."


def models(url: str, **more: Any) -> dict[str, Any]:
    shared: dict[str, Any] = {"temperature": 0, "max_tokens": 80, **more}
    return {
        "openai": OpenAIModel("embedded", api_base=f"{url}/v1", api_key="none", **shared),
        "endpoint": InferenceClientModel(f"{url}/tgi/v1", token="none", **shared),
    }


def check_an_answer(url: str) -> None:
    for name, model in models(url).items():
        answer = model.generate(ASK)
        assert answer.content == PARIS, (name, answer)
        assert answer.token_usage.output_tokens > 3, (name, answer)


def check_a_stream(url: str) -> None:
    for name, model in models(url).items():
        pieces = [delta.content for delta in model.generate_stream(ASK) if delta.content]
        assert "".join(pieces) == PARIS, (name, pieces)
        assert len(pieces) > 2, name


def check_a_tool_is_called(url: str) -> None:
    asked = [ChatMessage(role=MessageRole.USER, content=[{"type": "text", "text": "What is the weather in Paris?"}])]
    for name, model in models(url).items():
        answer = model.generate(asked, tools_to_call_from=[get_weather])
        (call,) = answer.tool_calls
        assert call.function.name == "get_weather", (name, answer)
        assert list(json.loads(call.function.arguments)) == ["city"], (name, answer)


def check_an_agent_of_tools(url: str) -> None:
    """The agent asks for a call at every step, until one is ``final_answer``."""
    for name, model in models(url).items():
        agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=2, verbosity_level=0)
        agent.prompt_templates["system_prompt"] = "Answer with a call."
        found = agent.run("What is the weather in Paris?", return_full_result=True)
        steps = [step for step in found.steps if step.get("tool_calls")]
        assert steps, (name, found)
        assert all(not step.get("error") for step in steps), (name, steps)


def check_an_agent_of_code_asks_for_its_form(url: str) -> None:
    """Every step is an object of a thought and of code, which the server holds the model to."""
    model = models(url, max_tokens=200)["openai"]  # of others the agent knows named providers only
    agent = CodeAgent(tools=[], model=model, max_steps=1, use_structured_outputs_internally=True, verbosity_level=0)
    agent.prompt_templates["system_prompt"] = "Answer with code."
    found = agent.run(CAPITAL, return_full_result=True)
    said = [step["model_output"] for step in found.steps if step.get("model_output")]
    assert said, found
    assert said[0].startswith('{"thought": "'), said


if __name__ == "__main__":
    run(globals())
