"""``dragoman chat``: a conversation in the terminal. Ctrl-C stops the answer, and only the answer."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from dragoman.cli import console, locallab_session
from dragoman.cli.attached_images import read_image
from dragoman.cli.chat_backend import ChatBackend, SessionBackend
from dragoman.cli.chat_commands import QUOTES, completions, message_and_mode, obey
from dragoman.cli.chat_view import AnswerView, Renderer
from dragoman.cli.conversation import Conversation
from dragoman.cli.session import Mode, Session, find_remote
from dragoman.cli.settings import ChatSettings, RemoteSettings, SamplingSettings
from dragoman.core.errors import ContextOverflow, DragomanError, GenerationFailed
from dragoman.llm.loop_thread import LoopThread
from dragoman.models.source import EMBEDDED

_CONNECTING_S = 30.0
_SILENCE_S = 300.0
_TINY = "It is tiny and often wrong, made to be tried. A real one: dragoman chat qwen3:0.6b"
_INTERRUPTED = 130  # the exit code of shells for a command that Ctrl-C ended


@asynccontextmanager
async def chat_backend(
    model: str | None,
    remote: RemoteSettings,
    chosen: ChatSettings,
    own_engine: Callable[[], AbstractAsyncContextManager[Session]],
) -> AsyncIterator[ChatBackend]:
    """Yield the backend that answers: the server of the options, else the command's own engine.

    Where a mode was chosen, which is LocalLab's option, a server of LocalLab's kind is asked with LocalLab's protocol,
    and one on its usual ports is found. Raises EngineUnavailable when no server answers.
    """
    key = next(iter(remote.api_key), "")
    if remote.url is not None:
        yield await _server(remote.url, model, key, chosen)
    elif chosen.generate is not None and model is None and (found := await locallab_session.detect(key)):
        yield found
    else:
        async with own_engine() as session:
            yield SessionBackend(session)


async def _server(url: str, model: str | None, key: str, chosen: ChatSettings) -> ChatBackend:
    patience_s = chosen.timeout or _CONNECTING_S
    if chosen.generate is not None and (found := await locallab_session.connect(url, model, key, patience_s)):
        return found
    try:
        return SessionBackend(await find_remote(url, model, key, timeout_s=patience_s))
    except GenerationFailed:
        # The server has none of OpenAI's paths: LocalLab's own server has only its own.
        if found := await locallab_session.connect(url, model, key, patience_s):
            return found
        raise


def chat_with(
    model: str | None,
    remote: RemoteSettings,
    own_engine: Callable[[], AbstractAsyncContextManager[Session]],
    options: SamplingSettings,
    chosen: ChatSettings,
    loop: LoopThread,
) -> int:
    """Talk with the backend of the options, or with the command's own engine. Return the exit code."""
    images = [read_image(name) for name in chosen.image]  # before the model is loaded: a name may be misspelt
    with loop.hold(chat_backend(model, remote, chosen, own_engine)) as backend:
        return converse(backend, options, chosen, loop, images)


def converse(
    backend: ChatBackend, options: SamplingSettings, chosen: ChatSettings, loop: LoopThread, images: Sequence[str] = ()
) -> int:
    """Read lines and answer them until the user leaves. Return the exit code: of piped lines, whether all were
    answered. ``images``: URLs of images that go with the first."""
    conversation = Conversation(backend, options, chosen.system, mode=chosen.generate or "chat")
    conversation.verbose = chosen.verbose
    for image in images:
        conversation.attach(image)
    conversation.markdown = not chosen.plain
    conversation.timeout_s = chosen.timeout or (_SILENCE_S if conversation.server else None)
    return _Terminal(conversation, chosen, loop).run()


class _Terminal:
    """Standard input, as a user types or a file holds it, and the answers on standard output."""

    def __init__(self, conversation: Conversation, chosen: ChatSettings, loop: LoopThread) -> None:
        self._conversation = conversation
        self._chosen = chosen
        self._loop = loop
        self._interactive = sys.stdin.isatty()
        self._answering = False
        self._failed = False
        self._renderer: Renderer | None = None
        self._prompts: list[str] = []
        """Piped lines that are answered together in mode batch."""

    def run(self) -> int:
        if self._interactive:
            _use_readline()
            server = self._conversation.server
            where = f" at {server}" if server else ""
            console.notes().print(
                f"Talking to {self._conversation.model}{where}. /help lists the commands.", markup=False
            )
            if not server and self._conversation.model == EMBEDDED:
                console.notes().print(_TINY, markup=False)
        going = True
        while going:
            try:
                going = self._turn()
            except KeyboardInterrupt:
                if not self._interactive:
                    return _INTERRUPTED
                console.notes().print("[dim]stopped[/]" if self._answering else "\n/exit or Ctrl-D to leave")
            except ContextOverflow as error:
                self._complain(f"{error.message} /reset begins anew.")
            except DragomanError as error:
                self._complain(error.message)
            self._answering = False
        return 1 if self._failed and not self._interactive else 0

    def _turn(self) -> bool:
        """Read a line and carry it out. Return False when there are no more lines, or the user leaves."""
        try:
            line = self._read("> ")
        except EOFError:
            self._answer_prompts()
            return False
        if line.lower().split(" ")[0] == "/batch":
            self._answer_prompts()
            self._read_batch()
        elif line.startswith(QUOTES):
            self._take(self._read_lines(line.removeprefix(QUOTES)), None)
        elif line.startswith("/"):
            self._answer_prompts()
            return obey(line, self._conversation)
        elif line:
            self._take(*message_and_mode(line))
        return True

    def _read_lines(self, first: str) -> str:
        """Return the whole text of a message of several lines, given its first."""
        lines, line = [], first
        while QUOTES not in line:
            lines.append(line)
            try:
                line = input("... " if self._interactive else "")
            except EOFError:
                return "\n".join(lines).strip()
        return "\n".join([*lines, line.partition(QUOTES)[0]]).strip()

    def _take(self, message: str, mode: Mode | None) -> None:
        mode = mode or self._conversation.mode
        if mode != "batch":
            self._answer_prompts()
            self._answer(message, mode)
        elif self._interactive:
            self._answer_batch([message])
        else:
            self._prompts.append(message)

    def _answer_prompts(self) -> None:
        prompts, self._prompts = self._prompts, []
        if prompts:
            self._answer_batch(prompts)

    def _answer(self, message: str, mode: Mode) -> None:
        began = time.perf_counter()
        first: float | None = None
        self._answering = True
        with self._view(streamed=mode != "simple") as view:

            def show(text: str) -> None:
                nonlocal first
                first = first or time.perf_counter()
                view.write(text)

            self._conversation.say(message, self._loop, show, mode)
        self._tell(began, self._conversation.usage.completion_tokens if self._conversation.usage else None, first)

    def _answer_batch(self, prompts: list[str]) -> None:
        """Answer the prompts together. Several are numbered, and shown with their answers."""
        began = time.perf_counter()
        self._answering = True
        with self._view(streamed=False, as_markdown=len(prompts) == 1) as view:
            answers = self._conversation.answer_all(prompts, self._loop)
            if len(prompts) == 1:
                view.write(answers[0])
            else:
                blocks = (f"{i}. {p}\n{a}\n" for i, (p, a) in enumerate(zip(prompts, answers, strict=True), 1))
                view.write("\n".join(blocks).removesuffix("\n"))
        self._tell(began, None)

    def _view(self, *, streamed: bool, as_markdown: bool = True) -> AnswerView:
        """Return the view of the next answer."""
        is_animated = self._interactive and sys.stdout.isatty() and console.can_move()
        if is_animated and self._renderer is None:
            from dragoman.cli.markdown_lines import MarkdownLines

            self._renderer = MarkdownLines()
        shown = self._renderer if as_markdown and self._conversation.markdown else None
        return AnswerView(shown, streamed=streamed, is_animated=is_animated)

    def _read_batch(self) -> None:
        """Read prompts, one a line, up to an empty line, ``/done`` or the end; then answer them."""
        if self._interactive:
            console.notes().print("A prompt a line; an empty line answers them. Also /list, /clear, /cancel.")
        prompts: list[str] = []
        while True:
            try:
                line = self._read(f"{len(prompts) + 1}> ")
            except EOFError:
                break
            match line.lower():
                case "" | "/done":
                    break
                case "/cancel":
                    prompts.clear()
                    break
                case "/clear":
                    prompts.clear()
                case "/list":
                    console.output().print("\n".join(f"{i}. {p}" for i, p in enumerate(prompts, 1)), markup=False)
                case _:
                    prompts.append(line)
        if prompts:
            self._answer_batch(prompts)
        else:
            console.notes().print("Nothing is asked.")

    def _tell(self, began: float, tokens: int | None, first: float | None = None) -> None:
        """Print the statistics of an answer. ``first``: when its first text came."""
        if not self._conversation.verbose:
            return
        ended = time.perf_counter()
        words = f"{tokens} tokens in " if tokens is not None else ""
        words += f"{ended - began:.1f} s"
        if tokens is not None and tokens > 1 and first is not None and ended > first:
            words += f", {console.rate((tokens - 1) / (ended - first))} tokens/s after {first - began:.2f} s"
        console.notes().print(f"[dim]{words}[/]")

    def _read(self, prompt: str) -> str:
        return input(prompt if self._interactive else "").strip()

    def _complain(self, message: str) -> None:
        self._failed = True
        console.error(message)


def _use_readline() -> None:
    """Have ``input`` edit its line, remember lines, and complete commands, where this Python can do that."""
    try:
        import readline
    except ImportError:
        return
    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        nonlocal found
        if state == 0:
            found = completions(readline.get_line_buffer()[: readline.get_begidx()], text)
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" \t\n")
    readline.set_completer(complete)
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
