"""instructor: its modes over chat, Responses and Messages, whole, in parts, and as lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import anthropic
import instructor
import openai
from checking import run
from instructor import Mode
from pydantic import BaseModel, Field

ASK: Any = [{"role": "user", "content": "Describe Paris."}]


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    inhabitants: int = Field(ge=0, le=100_000_000)


class Person(BaseModel):
    """A person; its optional properties are left open."""

    name: str = Field(max_length=20)
    nickname: str | None = Field(default=None, max_length=10)


class Anything(BaseModel):
    """Whatever it is."""


class get_weather(BaseModel):
    """Get the weather of a city."""

    city: str


def of_openai(url: str, mode: Mode) -> Any:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode, model="embedded")


def of_anthropic(url: str, mode: Mode) -> Any:
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    return instructor.from_anthropic(client, mode=mode, model="embedded", max_tokens=120)


def clients(url: str) -> dict[str, Any]:
    """Those modes in which the server holds the model to the form. The others only ask for it."""
    modes = (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS)
    return {
        **{str(mode): of_openai(url, mode) for mode in modes},
        "anthropic": of_anthropic(url, Mode.ANTHROPIC_TOOLS),
    }


def check_a_form(url: str) -> None:
    for name, client in clients(url).items():
        city = client.create(response_model=City, messages=ASK)
        assert isinstance(city, City), (name, city)
        person = client.create(response_model=Person, messages=[{"role": "user", "content": "My name is Ada."}])
        assert isinstance(person, Person), (name, person)


def check_the_completion_comes_too(url: str) -> None:
    client = of_openai(url, Mode.TOOLS)
    city, completion = client.create_with_completion(response_model=City, messages=ASK)
    assert isinstance(city, City)
    assert completion.usage.completion_tokens > 3


def check_parts(url: str) -> None:
    for name, client in clients(url).items():
        parts = list(client.create_partial(response_model=City, messages=ASK))
        assert len(parts) > 1, (name, parts)
        City.model_validate(parts[-1].model_dump())


def check_a_list(url: str) -> None:
    """The schema of a list says nothing of other properties, nor of how many elements there are."""
    asked: Any = [{"role": "user", "content": "List two cities."}]
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        cities = of_openai(url, mode).create_iterable(response_model=City, messages=asked, max_tokens=200, seed=1)
        assert isinstance(next(iter(cities)), City), mode


def check_several_tools(url: str) -> None:
    """The model chooses among them, or none; this one calls a tool for the weather."""
    client = of_openai(url, Mode.PARALLEL_TOOLS)
    asked: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    found = list(client.create(response_model=Iterable[get_weather | City], messages=asked, temperature=0))
    assert found == [get_weather(city="Paris")], found


def check_a_json_mode(url: str) -> None:
    """The mode asks for any object, which is what comes."""
    client = of_openai(url, Mode.JSON)
    assert isinstance(client.create(response_model=Anything, messages=ASK), Anything)


async def check_async(url: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    asking = instructor.from_openai(client, mode=Mode.TOOLS, model="embedded")
    assert isinstance(await asking.create(response_model=City, messages=ASK), City)


if __name__ == "__main__":
    run(globals())
