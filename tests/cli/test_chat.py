"""A conversation in a terminal: history, commands, and Ctrl-C, which stops the answer only."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator

import pytest
from pseudo_terminal import PATIENCE_S, Terminal

from dragoman.cli.app import cli
from dragoman.cli.chat_backend import SessionBackend
from dragoman.cli.chat_commands import obey
from dragoman.cli.conversation import Conversation
from dragoman.cli.session import Delta
from dragoman.cli.settings import SamplingSettings
from dragoman.core.errors import BadRequest, GenerationFailed
from dragoman.llm.loop_thread import loop_thread


class Echo:
    """A session that answers with the number of messages it was given; ``fail`` in the last one breaks the answer."""

    model = "echo"

    async def chat(self, messages: list[dict[str, str]], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        yield Delta(text=f"{len(messages)} ")
        if "fail" in messages[-1]["content"]:
            raise GenerationFailed("the engine stumbled")
        yield Delta(text="messages")


def roles(conversation: Conversation) -> list[str]:
    return [message["role"] for message in conversation.messages]


def test_history_grows_with_each_answer() -> None:
    conversation, said = Conversation(SessionBackend(Echo()), SamplingSettings()), []
    with loop_thread() as loop:
        conversation.say("hello", loop, said.append)
        conversation.say("again", loop, said.append)
    assert "".join(said) == "1 messages3 messages"
    assert roles(conversation) == ["user", "assistant"] * 2
    assert conversation.messages[1]["content"] == "1 messages"


def test_locallabs_spellings_of_the_options() -> None:
    known = {option.name: (option.flag, *option.also) for option in cli.commands["chat"]}
    assert known["url"] == ("--url", "-u")
    assert known["generate"] == ("--generate", "-g")
    assert known["max_new_tokens"] == ("--max-new-tokens", "-m", "--max-tokens")
    assert (known["temperature"][1], known["top_p"][1], known["verbose"][1]) == ("-t", "-p", "-v")


def test_failed_answer_takes_its_question_back() -> None:
    conversation = Conversation(SessionBackend(Echo()), SamplingSettings())
    with loop_thread() as loop:
        conversation.say("hello", loop, lambda text: None)
        with pytest.raises(GenerationFailed):
            conversation.say("please fail", loop, lambda text: None)
    assert roles(conversation) == ["user", "assistant"]


def test_reset_keeps_the_system_message_and_system_replaces_it() -> None:
    conversation = Conversation(SessionBackend(Echo()), SamplingSettings(), system="Be brief.")
    with loop_thread() as loop:
        conversation.say("hello", loop, lambda text: None)
    assert obey("/reset", conversation)
    assert conversation.messages == [{"role": "system", "content": "Be brief."}]
    assert obey("/system Be kind.", conversation)
    assert conversation.messages == [{"role": "system", "content": "Be kind."}]
    assert obey("/system", conversation)
    assert conversation.messages == []


def test_only_exit_leaves() -> None:
    conversation = Conversation(SessionBackend(Echo()), SamplingSettings())
    assert not obey("/exit", conversation)
    assert not obey("/GoodBye", conversation)
    assert obey("/help", conversation)
    with pytest.raises(BadRequest, match="no /unknown"):
        obey("/unknown", conversation)


class SlowServer(http.server.BaseHTTPRequestHandler):
    """Answers each chat with one word every 20 ms for ever, or, asked to be quick, with how many messages it got."""

    left = threading.Event()

    def do_GET(self) -> None:
        self._start("application/json")
        self.wfile.write(b'{"data": [{"id": "slow"}]}')

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        self._start("text/event-stream")
        quick = "quick" in messages[-1]["content"]
        words = iter([f"got {len(messages)} messages"]) if quick else iter(lambda: "tick ", None)
        try:
            for word in words:
                self.wfile.write(b"data: %s\n\n" % json.dumps({"choices": [{"delta": {"content": word}}]}).encode())
                time.sleep(0.02)
        except OSError:
            self.left.set()

    def _start(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def slow_server() -> Iterator[str]:
    SlowServer.left.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_interrupt_stops_the_answer_and_only_the_answer(slow_server: str) -> None:
    terminal = Terminal("chat", "--url", slow_server)
    terminal.wait_for("> ")
    terminal.type("tell me everything\n")
    terminal.wait_for("tick tick tick ")
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for("> ")
    assert SlowServer.left.wait(PATIENCE_S), "the connection of the stopped answer stays open"
    terminal.type("quick, how many?\n")
    terminal.wait_for("got 3 messages")
    terminal.wait_for("> ")
    assert terminal.leave("/exit\n") == 0


def test_interrupt_while_nothing_is_answered_leaves_nothing(slow_server: str) -> None:
    terminal = Terminal("chat", "--url", slow_server)
    terminal.wait_for("> ")
    terminal.interrupt("to leave")
    terminal.wait_for("> ")
    terminal.type("quick\n")
    terminal.wait_for("got 1 messages")
    terminal.wait_for("> ")
    assert terminal.leave("\x04") == 0


def test_a_message_of_several_lines_and_what_is_set() -> None:
    terminal = Terminal("chat", "--seed", "1")
    terminal.wait_for("> ")
    terminal.type('"""What is\n')
    terminal.wait_for(r"\.\.\. ")
    terminal.type('the capital of France?"""\n')
    terminal.wait_for("The capital of France is Paris")
    terminal.wait_for("> ")
    terminal.type("/set verbose\n")
    terminal.wait_for("> ")
    terminal.type("What is the capital of Italy?\n")
    terminal.wait_for(r"10 tokens in [\d.]+ s, [\d.,]+ tokens/s after [\d.]+ s")
    terminal.wait_for("> ")
    assert terminal.leave("/exit\n") == 0


def test_chat_with_the_embedded_model() -> None:
    terminal = Terminal("chat", "--max-new-tokens", "40", "--seed", "1", "--system", "Answer in one word.")
    terminal.wait_for(r"tiny.*dragoman chat qwen3:0\.6b")
    terminal.wait_for("> ")
    for _ in range(2):
        terminal.type("Hello!\n")
        terminal.wait_for(r"Hello!\r?\n")
        terminal.wait_for(r"\w")
        terminal.interrupt("stopped|to leave")
        terminal.wait_for("> ")
    terminal.type("/reset\n")
    terminal.wait_for("forgotten")
    terminal.wait_for("> ")
    assert terminal.leave("/exit\n") == 0
