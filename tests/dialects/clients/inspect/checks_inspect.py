"""inspect-ai: evaluations over its providers for OpenAI's chat and Responses, Anthropic, vLLM and Ollama."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"INSPECT_DISPLAY": "none", "INSPECT_LOG_DIR": tempfile.mkdtemp()}

from checking import run
from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel, Field

CAPITAL = Sample(input="What is the capital of France?", target="Paris")
WEATHER = Sample(input="What is the weather in Paris?", target="Paris")


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=100_000_000)


@tool
def get_weather() -> Tool:
    async def execute(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: The city.
        """
        return f"Sunny in {city}, 20 degrees."

    return execute


def models(url: str, **config: Any) -> dict[str, Any]:
    shared = GenerateConfig(**{"temperature": 0, "max_tokens": 80, "max_retries": 0} | config)
    v1 = {"base_url": f"{url}/v1", "api_key": "none", "config": shared, "memoize": False}
    return {
        "chat": get_model("openai/embedded", **v1, responses_api=False),
        "responses": get_model("openai/embedded", **v1, responses_api=True),
        "openai-api": get_model("openai-api/dragoman/embedded", **v1),
        "vllm": get_model("vllm/embedded", **v1),
        "ollama": get_model("ollama/embedded", **v1),
        "anthropic": get_model("anthropic/embedded", **v1 | {"base_url": url}),
    }


def evaluated(model: Any, task: Task) -> Any:
    (log,) = eval(task, model=model, log_dir=tempfile.mkdtemp(), fail_on_error=True)
    assert log.status == "success", (log.error, [sample.error for sample in log.samples or []])
    return log


def check_an_evaluation(url: str) -> None:
    for name, model in models(url).items():
        log = evaluated(model, Task(dataset=[CAPITAL], epochs=3, solver=generate(), scorer=includes()))
        assert log.results.scores[0].metrics["accuracy"].value == 1, (name, log.samples)
        assert next(iter(log.stats.model_usage.values())).output_tokens > 9, (name, log.stats)


def check_a_loop_of_tools(url: str) -> None:
    for name, model in models(url).items():
        log = evaluated(model, Task(dataset=[WEATHER], solver=[use_tools(get_weather()), generate()]))
        texts = [message.text for message in log.samples[0].messages if message.role == "tool"]
        assert texts == ["Sunny in Paris, 20 degrees."], (name, log.samples[0].messages)


def check_an_agent(url: str) -> None:
    for name, model in models(url).items():
        agent = react(prompt=None, tools=[get_weather()], submit=False, attempts=1)
        log = evaluated(model, Task(dataset=[WEATHER], solver=agent, message_limit=6))
        assert any(message.role == "tool" for message in log.samples[0].messages), (name, log.samples[0].messages)


def check_a_form(url: str) -> None:
    form = ResponseSchema(name="city", json_schema=json_schema(City), strict=True)
    for name, model in models(url, response_schema=form).items():
        if name == "anthropic":  # it knows which of Anthropic's models have that
            continue
        log = evaluated(model, Task(dataset=[Sample(input="Describe Paris.")], solver=generate()))
        City.model_validate_json(log.samples[0].output.completion)


def check_batches(url: str) -> None:
    """Its batches are files and batches of OpenAI's, and message batches of Anthropic's."""
    for name in ("chat", "responses", "anthropic"):
        model = models(url, batch={"size": 4, "send_delay": 0.5, "tick": 0.5})[name]
        log = evaluated(model, Task(dataset=[CAPITAL], epochs=4, solver=generate(), scorer=includes()))
        assert log.results.scores[0].metrics["accuracy"].value == 1, (name, log.samples)
        assert Path(os.environ["INSPECT_LOG_DIR"]).exists()


if __name__ == "__main__":
    run(globals())
