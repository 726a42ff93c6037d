"""Conversations in files, as LocalLab's terminal client writes and reads them."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from dragoman.cli.attached_images import is_content
from dragoman.cli.conversation import Conversation
from dragoman.cli.session import Message
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import irregular, require_regular
from dragoman.core.user_folders import expand_user
from dragoman.core.whole_file import replace_file

FOLDER = Path("conversations")
_FILE_LIMIT = 1 << 26


def save(conversation: Conversation, name: str = "") -> Path:
    """Write the conversation to the file named, or to a new one in ``conversations/``. Raises DragomanError."""
    now = datetime.now()
    file = expand_user(name) if name else FOLDER / f"conversation_{now:%Y%m%d_%H%M%S}.json"
    counts = {role: len(conversation.said_by(role)) for role in ("user", "assistant")}
    saved = {
        "timestamp": now.isoformat(),
        "mode": conversation.mode,
        "model_info": conversation.model_info,
        "server_url": conversation.server,
        "messages": conversation.messages,
        "stats": {
            "total_messages": len(conversation.messages),
            "user_messages": counts["user"],
            "assistant_messages": counts["assistant"],
        },
    }
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # For their owner alone: they are private texts. What a terminal sent that is no UTF-8 is read back as it was.
        content = f"{json.dumps(saved, indent=2, ensure_ascii=False)}\n".encode("utf-8", "surrogatepass")
        if irregular(file):
            with open(os.open(file, os.O_WRONLY | os.O_NONBLOCK), "wb") as stream:
                stream.write(content)
        else:
            replace_file(file.resolve(), content)  # an earlier one stays where the disk is full
    except OSError as error:
        raise DragomanError(f"{file}: {error.strerror}") from None
    return file


def saved_files() -> list[Path]:
    """Return the files in ``conversations/``, the newest first."""
    return sorted(FOLDER.glob("conversation_*.json"), key=lambda file: (file.stat().st_mtime, file.name), reverse=True)


def load(conversation: Conversation, name: str = "") -> Path:
    """Load the messages of the file named, or of the newest in ``conversations/``. Raises DragomanError, and leaves
    the conversation as it is, where there is none, or it is not a conversation."""
    if not name and not (found := saved_files()):
        raise DragomanError(f"there is no saved conversation in {FOLDER}/")
    file = expand_user(name) if name else found[0]
    require_regular(file)
    try:
        if file.stat().st_size > _FILE_LIMIT:
            raise DragomanError(f"{file} is larger than 64 MiB: it is no conversation")
        saved = json.loads(file.read_bytes())
    except OSError as error:
        raise DragomanError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise DragomanError(f"{file} is not JSON: {error}") from None
    messages = saved.get("messages") if isinstance(saved, dict) else None
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise DragomanError(f"{file} has no messages of a conversation")
    conversation.messages = [_message(message) for message in messages]
    return file


def _is_message(found: object) -> bool:
    return isinstance(found, dict) and isinstance(found.get("role"), str) and is_content(found.get("content"))


def _message(found: dict[str, Any]) -> Message:
    return {"role": found["role"], "content": found["content"]}
