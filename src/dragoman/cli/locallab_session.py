"""A client with the protocol of LocalLab's terminal client: a path for each way to answer, and few options.

It is for LocalLab's own servers, and for users who chose a mode with ``--generate``. Connections are made for each
message, so a server may restart between two.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from dragoman.cli.address import Address
from dragoman.cli.remote import fetch_json, stream_lines
from dragoman.cli.session import Delta, Message, Mode
from dragoman.cli.settings import SamplingSettings
from dragoman.core.errors import DragomanError, GenerationFailed
from dragoman.core.events import Usage

PORTS = (8000, 8080, 3000)
"""The ports on which LocalLab's client looks for a server on this machine."""

MOST_TOKENS = 8192
_DETECTION_S = 3.0
_NONE_LOADED = "no_model_loaded"
_WHOLE = ("response", "text", "content", "generated_text", "output")
_PIECE = ("token", "text", "content")


class LocalLabSession:
    """A ``ChatBackend``. ``info``: of the server's current model; ``named``: the model to ask for instead."""

    takes_images = False

    def __init__(self, address: Address, info: dict[str, Any], named: str | None = None) -> None:
        self.address = address
        self.server = str(address)
        self.info = info
        self.model = named or next((str(info[k]) for k in ("model_id", "id", "name") if info.get(k)), "no model")
        self._named = named

    def answer(self, mode: Mode, messages: list[Message], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        """Yield the next message: an answer to all messages in mode chat, otherwise to the last one alone."""
        match mode:
            case "stream":
                return self._stream({**_alone(messages), "stream": True, "stream_format": "json"}, options)
            case "simple":
                return self._whole("/generate", {**_alone(messages), "stream": False}, options)
            case _:
                return self._whole("/chat", {"messages": messages, "stream": False}, options)

    async def batch(self, prompts: list[str], system: str | None, options: SamplingSettings) -> list[str]:
        """Return an answer to each prompt, in their order."""
        body = {"prompts": prompts, **({"system_prompt": system} if system else {})}
        answer = await fetch_json(self.address, "/generate/batch", self._body(body, options), timeout_s=None)
        found = answer.get("responses") if isinstance(answer, dict) else None
        if not isinstance(found, list) or len(found) != len(prompts):
            raise GenerationFailed(f"{self.address} gave no answer to each of the {len(prompts)} prompts")
        return [str(text) for text in found]

    async def _whole(self, path: str, body: dict[str, Any], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        answer = await fetch_json(self.address, path, self._body(body, options), timeout_s=None)
        yield Delta(text=whole_text(answer), usage=_usage(answer))

    async def _stream(self, body: dict[str, Any], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        async with aclosing(stream_lines(self.address, "/generate", self._body(body, options))) as lines:
            async for line in lines:
                data = line.decode(errors="replace").rstrip("\r").removeprefix("data: ")
                if data == "[DONE]":
                    return
                if line.startswith(b"data: "):
                    yield Delta(text=piece_text(data))
        raise GenerationFailed(f"the connection to {self.address} ended in the middle of the answer")

    def _body(self, body: dict[str, Any], options: SamplingSettings) -> dict[str, Any]:
        said = {
            "max_tokens": options.max_new_tokens or MOST_TOKENS,
            "temperature": options.temperature,
            "top_p": options.top_p,
        }
        # The protocol has these too, with the server's defaults: sent only where they were given.
        said |= {
            name: value
            for name in ("top_k", "repetition_penalty")
            if (value := getattr(options, name)) != getattr(SamplingSettings(), name)
        }
        return {**body, **said, **({"model_id": self._named} if self._named else {})}


def _alone(messages: list[Message]) -> dict[str, Any]:
    system = next((m["content"] for m in messages if m["role"] == "system"), None)
    return {"prompt": messages[-1]["content"], **({"system_prompt": system} if system else {})}


def whole_text(answer: Any) -> str:
    """Return the text of an answer of any version of the protocol. Raises GenerationFailed where there is none."""
    if isinstance(answer, dict):
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
        message = choice.get("message")
        found = [message.get("content") if isinstance(message, dict) else None, choice.get("text")]
        found += [answer.get(name) for name in _WHOLE]
        for text in found:
            if isinstance(text, str):
                return text
    raise GenerationFailed("the answer has no text")


def piece_text(data: str) -> str:
    r"""Return the text of one event: inside an object, or plain with line ends as ``\n``. Raises GenerationFailed for
    an error of the server's."""
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):  # plain text, which includes numbers and quoted words
        if data.startswith(("Error:", "[ERROR]")):
            raise GenerationFailed(data)
        return data.replace("\\r", "\r").replace("\\n", "\n")
    if "error" in event:
        raise GenerationFailed(str(event["error"]))
    choices = event.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta = choice.get("delta")
    found = [delta.get("content") if isinstance(delta, dict) else None, choice.get("text")]
    found += [event.get(name) for name in _PIECE]
    return next((text for text in found if isinstance(text, str)), "")


def _usage(answer: Any) -> Usage | None:
    usage = answer.get("usage")
    try:
        return Usage(prompt_tokens=int(usage["prompt_tokens"]), completion_tokens=int(usage["completion_tokens"]))
    except (KeyError, TypeError, ValueError):
        return None


async def connect(url: str, named: str | None, key: str, timeout_s: float) -> LocalLabSession | None:
    """Return a session with the server, or None where it does not answer as LocalLab's do.

    Raises EngineUnavailable when no server answers.
    """
    address = Address.parse(url, key)
    try:
        health = await fetch_json(address, "/health", timeout_s=timeout_s)
        if not isinstance(health, dict) or health.get("status") != "healthy":
            return None
        info = await fetch_json(address, "/models/current", timeout_s=timeout_s)
    except GenerationFailed as error:
        if "No model" not in error.message:
            return None
        info = {"model_id": None, "status": _NONE_LOADED}
    return LocalLabSession(address, info, named) if isinstance(info, dict) else None


async def detect(key: str) -> LocalLabSession | None:
    """Return a session with the first such server on the usual ports of this machine."""
    for port in PORTS:
        try:
            if found := await connect(f"http://localhost:{port}", None, key, _DETECTION_S):
                return found
        except DragomanError:
            continue
    return None
