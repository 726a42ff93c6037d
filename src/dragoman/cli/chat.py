"""``dragoman chat``: a conversation in the terminal. Ctrl-C stops the answer, and only the answer."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from dragoman.cli import console
from dragoman.cli.background import Background
from dragoman.cli.session import Message, Session
from dragoman.cli.settings import ChatSettings, SamplingSettings
from dragoman.core.errors import ContextOverflow, DragomanError

HELP = """\
/reset          forget the conversation
/system TEXT    forget it, and start anew with TEXT as the system message
/help           this list
/exit           leave (as Ctrl-D does)
Ctrl-C          stop the answer; what there is of it stays in the conversation"""


class Conversation:
    """The messages so far, and who answers them."""

    def __init__(self, session: Session, options: SamplingSettings, system: str | None = None) -> None:
        self.messages: list[Message] = []
        self._session = session
        self._options = options
        self.reset(system)

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

        async def stream() -> None:
            async with contextlib.aclosing(self._session.chat(self.messages, self._options)) as deltas:
                async for delta in deltas:
                    answer.append(delta.text)
                    write(delta.text)

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
                conversation.say(line, background, write)
                write("\n")
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


def obey(line: str, conversation: Conversation) -> bool:
    """Carry out a line that begins with a slash. False: the user wants to leave."""
    command, _, rest = line.partition(" ")
    match command:
        case "/exit" | "/quit":
            return False
        case "/reset":
            conversation.reset(conversation.system)
            console.notes().print("The conversation is forgotten.")
        case "/system":
            conversation.reset(rest.strip() or None)
            console.notes().print("A new conversation" + (", with this system message." if rest.strip() else "."))
        case "/help":
            console.notes().print(HELP)
        case _:
            console.error(f"there is no {command}; /help lists the commands")
    return True


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
