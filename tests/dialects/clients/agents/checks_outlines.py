"""outlines: its models for OpenAI's API, vLLM's server, TGI, Ollama and Anthropic, with the output types of each."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import anthropic
import ollama
import openai
import outlines
from checking import run
from huggingface_hub import InferenceClient
from outlines.types import CFG, JsonSchema, Regex
from pydantic import BaseModel, Field

CAPITAL = "What is the capital of France?"
PARIS = "The capital of France is Paris."


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=100_000_000)


OPEN = JsonSchema({"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]})


def chats(url: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Every model with the options of a greedy answer."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    greedy = {"temperature": 0, "max_tokens": 60}
    return {
        "openai": (outlines.from_openai(client, "embedded"), greedy),
        "vllm": (outlines.from_vllm(client, "embedded"), greedy),
        "anthropic": (
            outlines.from_anthropic(anthropic.Anthropic(base_url=url, api_key="none", max_retries=0), "embedded"),
            {"max_tokens": 60},
        ),
        "ollama": (outlines.from_ollama(ollama.Client(host=url), "embedded"), {"options": {"temperature": 0}}),
    }


def check_an_answer(url: str) -> None:
    for name, (model, greedy) in chats(url).items():
        assert model(CAPITAL, **greedy), name
        if name != "anthropic":
            assert model(CAPITAL, **greedy) == PARIS, name


def check_a_stream(url: str) -> None:
    for name, (model, greedy) in chats(url).items():
        pieces = list(model.stream(CAPITAL, **greedy))
        assert len(pieces) > 2, (name, pieces)
        if name != "anthropic":
            assert "".join(pieces) == PARIS, (name, pieces)


def check_forms(url: str) -> None:
    for name, (model, greedy) in chats(url).items():
        if name == "anthropic":  # outlines has no forms there
            continue
        City.model_validate_json(model("Describe Paris.", City, **greedy))
        assert set(json.loads(model(CAPITAL, OPEN, **greedy))) == {"sure"}, name


def check_types_of_vllm(url: str) -> None:
    model, greedy = chats(url)["vllm"]
    assert model("Is the sky blue?", Literal["yes", "no"], **greedy) in ("yes", "no")
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", model("A number.", Regex("[0-9]{3}-[0-9]{4}"), **greedy))
    int(model("How many days has a week?", int, **greedy))
    float(model("What is pi?", float, **greedy))
    grammar = CFG('start: "yes" | "no" | "perhaps"')
    assert model("Is the sky blue?", grammar, **greedy) in ("yes", "no", "perhaps")


def check_types_of_tgi(url: str) -> None:
    """TGI's root path gives the prompt back too, unless it is told not to."""
    model, asked = outlines.from_tgi(InferenceClient(f"{url}/tgi")), {"return_full_text": False, "max_new_tokens": 80}
    assert model("Once upon a time", max_new_tokens=8)
    assert re.fullmatch("[0-9]{2,4}", model("A number: ", Regex("[0-9]{2,4}"), **asked))
    City.model_validate_json(model("Describe Paris.", City, **asked))
    assert "".join(model.stream("Once upon a time", max_new_tokens=8))


async def check_async(url: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    model = outlines.from_vllm(client, "embedded")
    City.model_validate_json(await model("Describe Paris.", City, temperature=0, max_tokens=60))
    pieces = [piece async for piece in model.stream(CAPITAL, temperature=0, max_tokens=60)]
    assert "".join(pieces) == PARIS


def check_a_template_and_a_generator(url: str) -> None:
    model, greedy = chats(url)["openai"]
    template = outlines.Template.from_string("What is the capital of {{ country }}?")
    application = outlines.Application(template, City)
    City.model_validate_json(application(model, {"country": "France"}, **greedy))
    City.model_validate_json(outlines.Generator(model, City)("Describe Paris.", **greedy))


if __name__ == "__main__":
    run(globals())
