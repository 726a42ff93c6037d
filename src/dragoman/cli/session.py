"""Sessions with a model: the command's own engine, or a running server. Both answer in the same deltas."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Literal, Protocol

import msgspec

from dragoman.cli.address import Address
from dragoman.cli.attached_images import core_content
from dragoman.cli.output_format import option_of, structured_outputs
from dragoman.cli.remote import fetch_json, stream_json
from dragoman.cli.server_calls import entries
from dragoman.cli.settings import STOPPING, SamplingSettings
from dragoman.core.constraint import Constraint
from dragoman.core.errors import BadRequest, GenerationFailed, NotFound
from dragoman.core.events import FinishReason, GenerationDone, TextDelta, Usage
from dragoman.core.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from dragoman.core.serving import Serving

Message = dict[str, Any]
"""A ``role`` and a ``content``: a text, or parts as OpenAI has them."""

Mode = Literal["stream", "simple", "chat", "batch"]
"""The mode of an answer. chat: to the whole conversation; otherwise to the message by itself; simple: written when
it is whole; batch: several messages at a time."""


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """New text. The last delta with text may carry ``finish``; ``usage`` comes once, at the end, where it is known."""

    text: str = ""
    finish: str | None = None
    usage: Usage | None = None


class Session(Protocol):
    """A model that answers. Closing a generator ends its answer; errors are those of ``core.errors``."""

    model: str

    def chat(self, messages: list[Message], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        """Yield the assistant's next message."""

    def complete(
        self, prompt: str, options: SamplingSettings, constraint: Constraint | None = None
    ) -> AsyncGenerator[Delta, None]:
        """Yield the text that follows ``prompt``, in the form that ``constraint`` demands."""


class RemoteSession:
    """A running server with OpenAI's dialect."""

    def __init__(self, address: Address, model: str) -> None:
        self.model = model
        self.address = address

    def chat(self, messages: list[Message], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        body = {"messages": messages, "max_completion_tokens": options.max_new_tokens}
        return self._stream("/v1/chat/completions", body, options)

    def complete(
        self, prompt: str, options: SamplingSettings, constraint: Constraint | None = None
    ) -> AsyncGenerator[Delta, None]:
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": options.max_new_tokens}
        if constraint is not None:
            body["structured_outputs"] = structured_outputs(constraint)
        return self._stream("/v1/completions", body, options)

    async def _stream(self, path: str, body: dict[str, Any], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        # Only given options are sent: a server may lack our extensions.
        asked = {k: v for k, v in msgspec.to_builtins(options).items() if v != getattr(SamplingSettings(), k)}
        asked.pop("max_new_tokens", None)
        if "early_stopping" in asked:
            asked["early_stopping"] = STOPPING[options.early_stopping]
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **body, **asked}
        body = {key: value for key, value in body.items() if value is not None}
        async with aclosing(stream_json(self.address, path, body)) as events:
            async for event in events:
                usage = event.get("usage")
                choice = (event.get("choices") or [{}])[0]
                yield Delta(
                    text=choice.get("text") or (choice.get("delta") or {}).get("content") or "",
                    finish=choice.get("finish_reason"),
                    usage=usage and Usage(**{name: usage[name] for name in ("prompt_tokens", "completion_tokens")}),
                )


class LocalSession:
    """An engine that this command started."""

    def __init__(self, serving: Serving) -> None:
        self.model = serving.models()[0].name
        self.serving = serving
        self._count = 0

    def chat(self, messages: list[Message], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        shown = tuple({**message, "content": core_content(message["content"])} for message in messages)
        return self._stream(ChatPrompt(messages=shown), options)

    def complete(
        self, prompt: str, options: SamplingSettings, constraint: Constraint | None = None
    ) -> AsyncGenerator[Delta, None]:
        return self._stream(TextPrompt(text=prompt), options, constraint)

    async def _stream(
        self, prompt: Prompt, options: SamplingSettings, constraint: Constraint | None = None
    ) -> AsyncGenerator[Delta, None]:
        self._count += 1
        request = GenerationRequest(
            request_id=f"command-{self._count}",
            prompt=prompt,
            seeds=None if options.seed is None else (options.seed,),
            sampling=options.sampling(),
            unset_sampling=options.unset_sampling,
            beams=options.beams(),
            ending=options.ending(),
            constraint=constraint,
            constraint_param="" if constraint is None else option_of(constraint),
        )
        try:
            async with aclosing(self.serving.stream(request)) as events:
                async for event in events:
                    if isinstance(event, TextDelta):
                        if event.finish is FinishReason.ERROR:
                            raise GenerationFailed(event.message)
                        yield Delta(text=event.text, finish=event.finish)
                    elif isinstance(event, GenerationDone):
                        yield Delta(usage=event.usage)
        except BadRequest as error:
            error.message = _with_options(error.message)
            raise


def _with_options(message: str) -> str:
    """Return a message about a request with the command's options in place of the request's fields."""

    def option(found: re.Match[str]) -> str:
        name = found[1]
        return f"'--{name.replace('_', '-')}'" if name in SamplingSettings.__struct_fields__ else found[0]

    return re.sub(r"'(\w+)'", option, message)


async def find_remote(url: str, model: str | None, key: str = "", *, timeout_s: float = 30) -> RemoteSession:
    """Return the server at ``url``, which may ask for a key, with the model named, or the first that it serves."""
    address = Address.parse(url, key)
    answer = await fetch_json(address, "/v1/models", timeout_s=timeout_s)
    served = [str(entry["id"]) for entry in entries(answer, address, "/v1/models")]
    if not served:
        raise NotFound(f"{address} serves no model")
    if model is not None and model not in served:
        raise NotFound(f"{address} serves {', '.join(served)}, not {model}")
    return RemoteSession(address, model or served[0])


@asynccontextmanager
async def remote_session(url: str, model: str | None, key: str = "") -> AsyncIterator[RemoteSession]:
    """Return ``find_remote`` as a context manager."""
    yield await find_remote(url, model, key)
