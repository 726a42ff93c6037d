"""What lines of a chat ask for, what of a conversation is sent, and conversations in files."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dragoman.cli.chat_backend import SessionBackend
from dragoman.cli.chat_commands import COMMANDS, HELP, completions, message_and_mode, obey
from dragoman.cli.conversation import MOST_SENT, Conversation
from dragoman.cli.session import Delta
from dragoman.cli.settings import SamplingSettings
from dragoman.core.errors import BadRequest, DragomanError, EngineUnavailable, GenerationFailed
from dragoman.llm.loop_thread import loop_thread

Messages = list[dict[str, str]]


class Recorder:
    """A session that keeps what it is sent and answers with the last message's text; ``fail`` and ``sleep`` do so."""

    model = "recorder"

    def __init__(self) -> None:
        self.sent: list[Messages] = []

    async def chat(self, messages: Messages, options: SamplingSettings) -> AsyncGenerator[Delta, None]:
        self.sent.append(list(messages))
        text = messages[-1]["content"]
        if text == "sleep":
            await asyncio.sleep(60)
        if text == "fail":
            raise GenerationFailed("the engine stumbled")
        yield Delta(text=f"<{text}>")


def test_the_last_word_of_a_message_is_its_mode() -> None:
    assert message_and_mode("Hello world --stream") == ("Hello world", "stream")
    assert message_and_mode("Explain  --SIMPLE  ") == ("Explain", "simple")
    assert message_and_mode("a --chat b") == ("a --chat b", None)
    assert message_and_mode("well--chat") == ("well--chat", None)
    with pytest.raises(BadRequest, match="--amend is no mode"):
        message_and_mode("git commit --amend")
    with pytest.raises(BadRequest, match="no message"):
        message_and_mode("--batch")


def test_set_changes_how_answers_are_sampled(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(SessionBackend(Recorder()), SamplingSettings(top_k=5))
    for line in ("/set temperature 0.2", "/set --max-new-tokens 20", "/set stop END", "/set verbose"):
        assert obey(line, conversation)
    assert conversation.options == SamplingSettings(top_k=5, temperature=0.2, max_new_tokens=20, stop=("END",))
    assert conversation.verbose
    obey("/set", conversation)
    shown = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert (shown["temperature"], shown["top_p"], shown["stop"], shown["verbose"]) == ("0.2", "default", "'END'", "yes")
    obey("/set temperature default", conversation)
    obey("/set quiet", conversation)
    assert (conversation.options.temperature, conversation.verbose) == (None, False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set warmth 1", "there is no warmth to set; /set lists what there is"),
        ("/set temperature", "/set temperature needs a value, or default"),
        ("/set temperature hot", "temperature cannot be hot: expected a number"),
        ("/set top_p 7", "top_p cannot be 7: expected a number <= 1"),
    ],
)
def test_what_cannot_be_set_is_told(line: str, words: str) -> None:
    conversation = Conversation(SessionBackend(Recorder()), SamplingSettings())
    with pytest.raises(BadRequest) as raised:
        obey(line, conversation)
    assert words in raised.value.message
    assert conversation.options == SamplingSettings()


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("", "/s", ["/system ", "/set ", "/stats ", "/save "]),
        ("", "hello", []),
        ("/set ", "mirostat", ["mirostat_mode ", "mirostat_tau ", "mirostat_eta "]),
        ("/set ", "mark", ["markdown "]),
        ("/SET ", "pl", ["plain "]),
        ("/set early_stopping ", "", ["default ", "false ", "true ", "never "]),
        ("/set temperature ", "d", ["default "]),
        ("/set nonsense ", "", []),
        ("/set temperature 1 ", "", []),
        ("hello ", "--s", ["--stream ", "--simple "]),
        ("/history ", "--s", []),
        ("/load ", "conversations/conv", ["conversations/conversation_1.json"]),
        ("/save ", "conv", ["conversations/"]),
        ("/load ", "", ["conversations/conversation_1.json"]),
        ("/load ", "no/such/", []),
    ],
)
def test_completions(
    before: str, word: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conversations").mkdir()
    (tmp_path / "conversations" / "conversation_1.json").touch()
    assert completions(before, word) == expected


def test_help_fits_a_terminal_and_names_every_command() -> None:
    assert max(map(len, HELP.splitlines())) < 80
    for command in COMMANDS:
        if command not in ("/exit", "/batch", "/clear", "/load"):  # which end, read lines, clear or need a file
            assert obey(command, Conversation(SessionBackend(Recorder()), SamplingSettings()))


def test_only_mode_chat_sends_what_was_said_before() -> None:
    session = Recorder()
    conversation = Conversation(SessionBackend(session), SamplingSettings(), "Be brief.", mode="chat")
    with loop_thread() as loop:
        for mode in (None, "stream", "simple", "chat"):
            conversation.say("hello", loop, lambda text: None, mode)
    assert [len(messages) for messages in session.sent] == [2, 2, 2, 8]
    assert {messages[0]["role"] for messages in session.sent} == {"system"}


def test_the_newest_messages_are_sent_and_all_are_kept() -> None:
    session = Recorder()
    conversation = Conversation(SessionBackend(session), SamplingSettings(), "Be brief.")
    with loop_thread() as loop:
        for number in range(MOST_SENT):
            conversation.say(str(number), loop, lambda text: None)
    first, second = session.sent[-1][:2]
    assert (first["role"], second["role"], len(session.sent[-1])) == ("system", "user", MOST_SENT)
    assert len(conversation.messages) == 2 * MOST_SENT + 1


def test_a_batch_is_answered_in_its_order_and_is_not_remembered() -> None:
    conversation = Conversation(SessionBackend(Recorder()), SamplingSettings(), "Be brief.")
    with loop_thread() as loop:
        assert conversation.answer_all([str(n) for n in range(20)], loop) == [f"<{n}>" for n in range(20)]
        with pytest.raises(GenerationFailed, match="stumbled"):
            conversation.answer_all(["one", "fail", "sleep"], loop)
    assert len(conversation.messages) == 1


def test_a_silent_partner_is_given_up() -> None:
    conversation = Conversation(SessionBackend(Recorder()), SamplingSettings())
    conversation.timeout_s = 0.05
    with loop_thread() as loop:
        with pytest.raises(EngineUnavailable, match="no word from recorder for"):
            conversation.say("sleep", loop, lambda text: None)
        with pytest.raises(EngineUnavailable):
            conversation.answer_all(["one", "sleep"], loop)
    assert conversation.messages == []


def test_a_conversation_is_saved_as_locallab_does_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    conversation = Conversation(SessionBackend(Recorder()), SamplingSettings(), mode="stream")
    with pytest.raises(DragomanError, match="no saved conversation"):
        obey("/load", conversation)
    assert obey("/save", conversation), "nothing is said, and nothing saved"
    assert not Path("conversations").exists()
    with loop_thread() as loop:
        conversation.say("hello", loop, lambda text: None)
    messages = conversation.messages
    assert obey("/save", conversation)
    (file,) = Path("conversations").glob("conversation_????????_??????.json")
    assert file.stat().st_mode & 0o777 == 0o600
    saved = json.loads(file.read_text())
    assert list(saved) == ["timestamp", "mode", "model_info", "server_url", "messages", "stats"]
    assert (saved["mode"], saved["model_info"], saved["server_url"]) == ("stream", {"model_id": "recorder"}, None)
    assert saved["stats"] == {"total_messages": 2, "user_messages": 1, "assistant_messages": 1}
    assert obey("/save elsewhere/one.json", conversation)
    assert obey("/reset", conversation)
    assert obey("/load", conversation)
    assert conversation.messages == saved["messages"] == messages
    os.utime(file, (1, 1))
    older = Path("conversations/conversation_19990101_000000.json")
    older.write_text('{"messages": [{"role": "user", "content": "newer"}]}')
    assert obey("/load", conversation)
    assert conversation.messages == [{"role": "user", "content": "newer"}]
    assert obey("/load elsewhere/one.json", conversation)
    assert conversation.messages == messages
    older.write_text('{"messages": [{"role": "user"}]}')
    for wrong in (older, "none.json", tmp_path):
        with pytest.raises(DragomanError):
            obey(f"/load {wrong}", conversation)
    with pytest.raises(DragomanError):
        obey("/save /proc/none/one.json", conversation)
    assert conversation.messages == messages


def test_a_full_disk_takes_no_conversation_that_was_saved(tmp_path: Path) -> None:
    conversation = Conversation(SessionBackend(Recorder()), SamplingSettings())
    conversation.messages = [{"role": "user", "content": "one \udcff"}]
    file = tmp_path / "one.json"
    assert obey(f"/save {file}", conversation)
    conversation.messages = [{"role": "user", "content": "two " * 500}]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with pytest.raises(DragomanError, match=r"one\.json: File too large"):
            obey(f"/save {file}", conversation)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert obey(f"/load {file}", conversation)
    assert conversation.messages == [{"role": "user", "content": "one \udcff"}]
    assert [found.name for found in tmp_path.iterdir()] == ["one.json"]
    link = tmp_path / "link.json"
    link.symlink_to(file)
    conversation.messages = [{"role": "user", "content": "three"}]
    assert obey(f"/save {link}", conversation)
    assert link.is_symlink()
    assert json.loads(file.read_bytes())["messages"] == conversation.messages


def test_statistics_history_and_clear(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(SessionBackend(Recorder()), SamplingSettings(), mode="simple")
    with loop_thread() as loop:
        conversation.say("four", loop, lambda text: None)
        conversation.say("fourteen", loop, lambda text: None)
    for command in ("/stats", "/History", "/clear"):
        assert obey(command, conversation)
    shown = capsys.readouterr().out
    assert "user  2 messages, 12 characters, 6 on average" in shown
    assert "assistant  2 messages, 16 characters, 8 on average" in shown
    assert "simple" in shown
    assert "assistant: <four>" in shown
    assert len(conversation.messages) == 4, "/clear is for the screen"


def test_a_bad_word_has_a_character() -> None:
    """Of an empty one, the space before it would be banned."""
    with pytest.raises(BadRequest, match="a bad word must not be empty"):
        SamplingSettings(bad_words=("north", "")).sampling()
