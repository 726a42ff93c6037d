"""Images in ``dragoman chat`` and ``dragoman run``: files that go with a message, and what is said of other files."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dragoman.cli.address import Address
from dragoman.cli.app import cli
from dragoman.cli.attached_images import read_image
from dragoman.cli.chat_backend import SessionBackend
from dragoman.cli.chat_commands import completions, obey
from dragoman.cli.conversation import Conversation
from dragoman.cli.locallab_session import LocalLabSession
from dragoman.cli.session import Delta
from dragoman.cli.settings import SamplingSettings
from dragoman.core.errors import BadRequest, DragomanError, EngineUnavailable, UnsupportedFeature
from dragoman.llm.images import MAX_FILE_BYTES
from dragoman.llm.loop_thread import LoopThread, loop_thread

FILE = b"an image, as far as this command knows"
URL = f"data:;base64,{base64.b64encode(FILE).decode()}"
PART = {"type": "image_url", "image_url": {"url": URL}}


class Recorder:
    """A session that keeps what it is sent. ``faults``: what it raises, one by one, before it answers."""

    model = "recorder"

    def __init__(self, *faults: DragomanError) -> None:
        self.sent: list[Any] = []
        self.faults = list(faults)

    async def chat(self, messages: list[dict[str, Any]], options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        self.sent.append(messages[-1]["content"])
        if self.faults:
            raise self.faults.pop(0)
        yield Delta(text="Seen.")


def talk(session: Recorder) -> Conversation:
    return Conversation(SessionBackend(session), SamplingSettings())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my cat.png"
    path.write_bytes(FILE)
    return path


@pytest.fixture
def loop() -> Any:
    with loop_thread() as loop:
        yield loop


def say(conversation: Conversation, text: str, loop: LoopThread) -> None:
    conversation.say(text, loop, lambda text: None)


@pytest.mark.parametrize("name", ["my cat.png", "'my cat.png'", r"my\ cat.png", "./my cat.png"])
def test_images_go_with_the_next_message(file: Path, loop: LoopThread, name: str) -> None:
    session = Recorder()
    conversation = talk(session)
    assert obey(f"/image {name}", conversation)
    say(conversation, "What is this?", loop)
    say(conversation, "And now?", loop)
    assert session.sent == [[PART, {"type": "text", "text": "What is this?"}], "And now?"]


def test_several_images_and_none(file: Path, loop: LoopThread, capsys: pytest.CaptureFixture[str]) -> None:
    session = Recorder()
    conversation = talk(session)
    for line in ("/image my cat.png", "/image", "/image https://example.com/dog.png", "/image my cat.png"):
        obey(line, conversation)
    assert [line.split()[0] for line in capsys.readouterr().err.splitlines()] == ["1", "No", "1", "2"]
    say(conversation, "Which?", loop)
    assert [part.get("image_url", {}).get("url") for part in session.sent[0]] == [
        *("https://example.com/dog.png", URL),
        None,
    ]


def test_images_stay_until_a_message_with_them_is_answered_or_refused(file: Path, loop: LoopThread) -> None:
    session = Recorder(EngineUnavailable("no word"), UnsupportedFeature("sees nothing", param="image"))
    conversation = talk(session)
    obey("/image my cat.png", conversation)
    for fault in (EngineUnavailable, UnsupportedFeature):
        with pytest.raises(fault):
            say(conversation, "What is this?", loop)
    say(conversation, "And without?", loop)
    assert [isinstance(content, list) for content in session.sent] == [True, True, False]
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]


def test_a_batch_and_locallabs_protocol_have_none(file: Path, loop: LoopThread) -> None:
    conversation = talk(Recorder())
    obey("/image my cat.png", conversation)
    with pytest.raises(BadRequest, match="images go with a message by itself"):
        conversation.answer_all(["one"], loop)
    locallab = Conversation(LocalLabSession(Address.parse("http://localhost:1", ""), {}), SamplingSettings())
    with pytest.raises(BadRequest, match="LocalLab's protocol, which has no images"):
        obey("/image my cat.png", locallab)


def test_files_that_are_none(file: Path) -> None:
    with pytest.raises(BadRequest, match=r"none\.png cannot be read: No such file or directory\."):
        read_image("none.png")
    with pytest.raises(BadRequest, match="'odd cannot be read"):
        read_image("'odd")
    with pytest.raises(BadRequest, match="Is a directory"):
        read_image(str(file.parent))
    with file.open("wb") as large:
        large.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(BadRequest, match="more than 20 MiB"):
        read_image("my cat.png")
    told = CliRunner().invoke(cli.typer, ["run", "no-such-model", "Hi", "--image", "none.png"])
    assert (told.exit_code, "none.png cannot be read" in told.stderr) == (1, True), "told before a model is looked for"


def test_a_conversation_with_images_is_shown_saved_and_loaded(
    file: Path, loop: LoopThread, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = talk(Recorder())
    obey("/image my cat.png", conversation)
    say(conversation, "What is this?", loop)
    for line in ("/history", "/stats", "/save one.json"):
        obey(line, conversation)
    shown = capsys.readouterr().out
    assert "user: [image] What is this?" in shown
    assert "1 messages, 21 characters" in shown
    loaded = talk(Recorder())
    obey("/load one.json", loaded)
    assert loaded.messages == conversation.messages
    saved = json.loads(Path("one.json").read_text())
    saved["messages"][0]["content"] = [{"type": "image_url", "image_url": {"url": 7}}]
    Path("one.json").write_text(json.dumps(saved))
    with pytest.raises(DragomanError, match="no messages of a conversation"):
        obey("/load one.json", loaded)


def test_tab_completes_files_of_images(file: Path) -> None:
    assert completions("/image", "my") == ["my cat.png"]
