"""The messages of a conversation, and how each is answered: with the earlier ones, by itself, or with others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from dragoman.cli.attached_images import text_of, with_images
from dragoman.cli.chat_backend import ChatBackend
from dragoman.cli.remote import RateLimited
from dragoman.cli.session import Delta, Message, Mode
from dragoman.cli.settings import SamplingSettings
from dragoman.core.errors import BadRequest, DragomanError, EngineUnavailable
from dragoman.core.events import Usage
from dragoman.llm.loop_thread import LoopThread

MOST_SENT = 50
"""The newest messages of a conversation, which are sent to the model after the system message. Older ones are only
kept."""

_SHORTEST_WAIT_S = 0.1


class Conversation:
    """The messages so far, and the backend that answers them.

    Attributes:
        options: how answers are sampled from now on.
        verbose: print the length and time of each answer.
        markdown: show answers as Markdown, where the terminal can.
        timeout_s: the longest accepted silence; None: any.
        images: URLs of images that go with the next message.
    """

    def __init__(
        self,
        backend: ChatBackend,
        options: SamplingSettings,
        system: str | None = None,
        *,
        mode: Mode = "chat",
    ) -> None:
        self.messages: list[Message] = []
        self.mode: Mode = mode
        self.usage: Usage | None = None
        self.verbose = False
        self.markdown = True
        self._backend = backend
        self.options = options
        self.timeout_s: float | None = None
        self.images: list[str] = []
        self.reset(system)

    @property
    def model(self) -> str:
        return self._backend.model

    @property
    def model_info(self) -> dict[str, Any]:
        """Return the server's data about its model, where it has more than a name."""
        return {"model_id": self.model, **self._backend.info}

    @property
    def server(self) -> str | None:
        """Return the server's address; None for the command's own engine."""
        return self._backend.server

    @property
    def system(self) -> str | None:
        return next((m["content"] for m in self.messages if m["role"] == "system"), None)

    def attach(self, image: str) -> None:
        """Have an image go with the next message. Raises BadRequest for a server whose protocol has none."""
        if not self._backend.takes_images:
            raise BadRequest(f"{self.server} is asked with LocalLab's protocol, which has no images")
        self.images.append(image)

    def reset(self, system: str | None = None) -> None:
        self.messages = [{"role": "system", "content": system}] if system else []

    def said_by(self, role: str) -> list[str]:
        return [text_of(m["content"]) for m in self.messages if m["role"] == role]

    def say(self, text: str, loop: LoopThread, write: Callable[[str], object], mode: Mode | None = None) -> None:
        """Send the user's message and write the answer as it comes, in the conversation's mode or another.

        An interrupted answer is kept as far as it came; a message that could not be answered is removed. Its images go
        with the next one then, unless they were refused.
        """
        images, self.images = self.images, []
        self.messages.append({"role": "user", "content": with_images(text, images)})
        answer: list[str] = []
        self.usage = None

        async def stream() -> None:
            async with contextlib.aclosing(self._answer(mode or self.mode)) as deltas:
                async for delta in deltas:
                    answer.append(delta.text)
                    write(delta.text)
                    self.usage = delta.usage or self.usage

        try:
            loop.run(stream())
        except DragomanError as error:
            self.messages.pop()
            self.images = [] if isinstance(error, BadRequest) else images
            raise
        except KeyboardInterrupt:
            self._keep(answer)
            raise
        self._keep(answer)

    def answer_all(self, prompts: list[str], loop: LoopThread) -> list[str]:
        """Return an answer to each prompt by itself, in their order. They do not become part of the conversation.

        Raises BadRequest where images wait for a message.
        """
        if self.images:
            raise BadRequest("images go with a message by itself, not with a batch; /image without a file drops them")

        async def ask() -> list[str]:
            try:
                async with asyncio.timeout(self.timeout_s):
                    return await self._backend.batch(prompts, self.system, self.options)
            except TimeoutError:
                raise self._too_late() from None

        async def run() -> list[str]:
            waited_s = 0.0
            while True:
                try:
                    return await ask()
                except RateLimited as limit:
                    waited_s = await self._wait(limit, waited_s)

        return loop.run(run())

    async def _answer(self, mode: Mode) -> AsyncGenerator[Delta, None]:
        """Yield the answer, after waiting where the server asks for a retry later, which it does before the first
        delta.

        Raises EngineUnavailable when the backend is silent for too long.
        """
        messages = self._sent(mode)
        waited_s = 0.0
        while True:
            try:
                async with contextlib.aclosing(self._ask(mode, messages)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except RateLimited as limit:
                waited_s = await self._wait(limit, waited_s)

    async def _ask(self, mode: Mode, messages: list[Message]) -> AsyncGenerator[Delta, None]:
        async with contextlib.aclosing(self._backend.answer(mode, messages, self.options)) as deltas:
            while True:
                try:
                    async with asyncio.timeout(self.timeout_s):
                        delta = await anext(deltas)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise self._too_late() from None
                yield delta

    async def _wait(self, limit: RateLimited, waited_s: float) -> float:
        """Wait as long as the server asks for; return the total wait. Raises ``limit`` where it would be too long."""
        pause_s = max(limit.retry_after_s, _SHORTEST_WAIT_S)
        if self.timeout_s is not None and waited_s + pause_s > self.timeout_s:
            raise limit
        await asyncio.sleep(pause_s)
        return waited_s + pause_s

    def _sent(self, mode: Mode) -> list[Message]:
        """Return the messages of the conversation that are sent with the last one. The first of them is the user's."""
        first, rest = [], self.messages
        if self.system is not None:
            first, rest = rest[:1], rest[1:]
        if mode != "chat":
            rest = rest[-1:]
        elif len(rest) > MOST_SENT:
            rest = rest[len(rest) - MOST_SENT :]
            while rest[0]["role"] != "user":
                rest = rest[1:]
        return [*first, *rest]

    def _too_late(self) -> EngineUnavailable:
        return EngineUnavailable(f"no word from {self.server or self.model} for {self.timeout_s:g} s (see --timeout)")

    def _keep(self, answer: list[str]) -> None:
        self.messages.append({"role": "assistant", "content": "".join(answer)})
