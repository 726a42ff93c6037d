"""Backends that answer in ``dragoman chat``: any session, message by message, or a server that supports LocalLab's
modes itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from dragoman.cli.session import Delta, Message, Mode, RemoteSession, Session
from dragoman.cli.settings import SamplingSettings

_AT_ONCE = 8


class ChatBackend(Protocol):
    """A backend that answers messages. Errors are those of ``core.errors``.

    Attributes:
        model: the model's name.
        info: the server's data about the model, besides the name.
        server: the server's address; None for the command's own engine.
        takes_images: whether messages may have images, as far as the protocol goes.
    """

    takes_images: bool

    @property
    def model(self) -> str: ...
    @property
    def info(self) -> dict[str, Any]: ...
    @property
    def server(self) -> str | None: ...

    def answer(self, mode: Mode, messages: list[Message], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        """Yield the next message, after ``messages``. Closing the generator ends the answer."""

    async def batch(self, prompts: list[str], system: str | None, options: SamplingSettings) -> list[str]:
        """Return an answer to each prompt by itself, in their order."""


class SessionBackend:
    """A session as a backend. Modes differ only in the messages that the session gets."""

    takes_images = True

    def __init__(self, session: Session) -> None:
        self.model = session.model
        self.info: dict[str, Any] = {}
        self.server = str(session.address) if isinstance(session, RemoteSession) else None
        self._session = session

    def answer(self, mode: Mode, messages: list[Message], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        return self._session.chat(messages, options)

    async def batch(self, prompts: list[str], system: str | None, options: SamplingSettings) -> list[str]:
        gate = asyncio.Semaphore(_AT_ONCE)
        first = [{"role": "system", "content": system}] if system else []

        async def one(prompt: str) -> str:
            messages = [*first, {"role": "user", "content": prompt}]
            async with gate, aclosing(self._session.chat(messages, options)) as deltas:
                return "".join([delta.text async for delta in deltas])

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(prompt)) for prompt in prompts]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]
