"""``dragoman run``: download a model, load it and talk with it, in one command. Pipes work."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from dragoman.cli import console
from dragoman.cli.attached_images import read_image, with_images
from dragoman.cli.generate import write_answer
from dragoman.cli.session import Message, Session
from dragoman.cli.settings import SamplingSettings
from dragoman.cli.standard_input import read_standard_input
from dragoman.core.errors import BadRequest
from dragoman.core.serving import Serving
from dragoman.llm.loop_thread import LoopThread

WAIT_S = 3.0
"""Seconds of waiting for a silent pipe before a remark is printed."""


def question_of(prompt: str) -> str | None:
    """Return the prompt with the text of standard input; None: it is a terminal, and the prompt is empty."""
    if sys.stdin is not None and sys.stdin.isatty():
        return prompt or None
    return "\n\n".join(filter(None, (prompt, _piped())))


def _piped() -> str:
    if sys.stdin is None:
        return ""
    told = threading.Timer(
        WAIT_S, lambda: console.remarks(["reading standard input to its end; with < /dev/null there is none"])
    )
    told.daemon = True
    told.start()
    try:
        return read_standard_input().strip()
    finally:
        told.cancel()


def images_of(names: Sequence[str]) -> list[str]:
    """Return the URLs of images, by their files or addresses. Raises BadRequest for a file that cannot be read."""
    return [read_image(name) for name in names]


def answer(
    session: Session,
    question: str,
    images: Sequence[str],
    system: str | None,
    options: SamplingSettings,
    loop: LoopThread,
) -> None:
    """Write the answer to standard output as it comes; for a model without a chat template, a continuation of the
    text. ``images``: URLs. Raises BadRequest for images with such a model."""
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    if has_chats(session):
        deltas = session.chat([*messages, {"role": "user", "content": with_images(question, images)}], options)
    elif images:
        raise BadRequest(f"{session.model} has no chats, and only messages have images: --image cannot be used")
    else:
        deltas = session.complete(question, options)
    write_answer(deltas, loop)


def has_chats(session: Session) -> bool:
    """Return whether the session's model answers messages; of a server this is not known, and assumed."""
    serving: Serving | None = getattr(session, "serving", None)
    return serving is None or serving.model(None).has_chat_template
