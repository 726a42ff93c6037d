"""``dragoman chat``: a conversation in the terminal. Ctrl-C stops the answer, and only the answer."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from dragoman.cli import console
from dragoman.cli.background import Background
from dragoman.cli.session import Message, Session
from dragoman.cli.settings import ChatSettings, SamplingSettings
from dragoman.core.errors import ContextOverflow, DragomanError
from dragoman.core.events import Usage

HELP = """\
/reset          forget the conversation (or /clear)
/system TEXT    forget it, and start anew with TEXT as the system message
/history        show it
/save [FILE]    write it to a file, by default in conversations/
/help           this list
/exit           leave (as Ctrl-D does; or /quit, /bye, /goodbye)
Ctrl-C          stop the answer; what there is of it stays in the conversation"""


class Conversation:
    """The messages so far, and who answers them."""

    def __init__(self, session: Session, options: SamplingSettings, system: str | None = None) -> None:
        self.messages: list[Message] = []
        self._session = session
        self._options = options
        self.usage: Usage | None = None
        self.reset(system)

    @property
    def model(self) -> str:
        return self._session.model

    def reset(self, system: str | None = None) -> None:
        self.messages = [{"role": "system", "content": system}] if system else []

    @property
    def system(self) -> str | None:
        return next((m["content"] for m in self.messages if m["role"] == "system"), None)

    def say(self, text: str, background: Background, write: Callable[[str], object]) -> None:
        """Send the user's message and write the answer as it comes.

        An interrupted answer stays as far as it came; a message that could not be answered is taken back.
        """
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        self.usage = None

        async def stream() -> None:
            async with contextlib.aclosing(self._session.chat(self.messages, self._options)) as deltas:
                async for delta in deltas:
                    answer.append(delta.text)
                    write(delta.text)
                    self.usage = delta.usage or self.usage

        try:
            background.run(stream())
        except DragomanError:
            self.messages.pop()
            raise
        except KeyboardInterrupt:
            self._keep(answer)
            raise
        self._keep(answer)

    def _keep(self, answer: list[str]) -> None:
        self.messages.append({"role": "assistant", "content": "".join(answer)})


def converse(session: Session, options: SamplingSettings, chosen: ChatSettings, background: Background) -> None:
    """Read lines and answer them until the user leaves."""
    conversation = Conversation(session, options, chosen.system)
    interactive = sys.stdin.isatty()
    if interactive:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (editing and history for input())
        console.notes().print(f"Talking to [bold]{session.model}[/]. /help lists the commands.")
    while True:
        asked = False
        try:
            line = input("> " if interactive else "").strip()
            asked = bool(line) and not line.startswith("/")
            if asked:
                _answer(conversation, line, chosen, background)
            elif line and not obey(line, conversation):
                return
        except EOFError:
            return
        except KeyboardInterrupt:
            console.notes().print("\n[dim]stopped[/]" if asked else "\n/exit or Ctrl-D to leave")
        except ContextOverflow as error:
            console.error(f"{error.message} /reset begins anew.")
        except DragomanError as error:
            console.error(error.message)


def _answer(conversation: Conversation, line: str, chosen: ChatSettings, background: Background) -> None:
    began = time.perf_counter()
    held: list[str] = []
    conversation.say(line, background, held.append if chosen.generate == "simple" else write)
    write("".join(held) + "\n")
    if chosen.verbose and conversation.usage is not None:
        seconds = time.perf_counter() - began
        console.notes().print(f"[dim]{conversation.usage.completion_tokens} tokens in {seconds:.1f} s[/]")


def obey(line: str, conversation: Conversation) -> bool:
    """Carry out a line that begins with a slash. False: the user wants to leave."""
    command, _, rest = line.partition(" ")
    match command:
        case "/exit" | "/quit" | "/bye" | "/goodbye":
            return False
        case "/reset" | "/clear":
            conversation.reset(conversation.system)
            console.notes().print("The conversation is forgotten.")
        case "/system":
            conversation.reset(rest.strip() or None)
            console.notes().print("A new conversation" + (", with this system message." if rest.strip() else "."))
        case "/history":
            for message in conversation.messages:
                console.output().print(f"{message['role']}: {message['content']}", markup=False)
        case "/save":
            _save(conversation, rest.strip())
        case "/help":
            console.notes().print(HELP)
        case _:
            console.error(f"there is no {command}; /help lists the commands")
    return True


def _save(conversation: Conversation, name: str) -> None:
    """As JSON: when, with which model, and the messages."""
    now = datetime.now()
    file = Path(name).expanduser() if name else Path("conversations") / f"conversation_{now:%Y%m%d_%H%M%S}.json"
    saved = {"timestamp": now.isoformat(), "model_info": conversation.model, "messages": conversation.messages}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n", "utf-8")
    except OSError as error:
        console.error(f"{file}: {error.strerror}")
    else:
        console.notes().print(f"Saved in {file}", markup=False)


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
