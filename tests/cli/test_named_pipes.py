"""Files that a user names and that are none: to open a named pipe would wait for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from forked_command import run_forked

from dragoman.cli.configuration import load
from dragoman.cli.explain import parsed_file
from dragoman.cli.replay import read_capsules, read_prompts
from dragoman.cli.saved_conversations import load as load_conversation
from dragoman.cli.settings import ExplainOptions
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import irregular
from dragoman.dialects.ollama.derived import DerivedModels
from dragoman.llm.images import url_of_file
from dragoman.models.config import read_json
from dragoman.models.gguf.file import read_gguf
from dragoman.models.safetensors_file import read_header
from dragoman.models.source import find_source
from dragoman.server.keys import Keyring
from dragoman.server.relay import read_secret
from dragoman.server.tls import Certificates

READERS: dict[str, Callable[[Path], object]] = {
    "a configuration": lambda path: load(path, {}),
    "keys": lambda path: Keyring(file=path),
    "a certificate": lambda path: Certificates(str(path)),
    "a secret": lambda path: read_secret(str(path)),
    "an image": url_of_file,
    "prompts": lambda path: list(read_prompts(path)),
    "capsules": lambda path: list(read_capsules(path)),
    "a request": lambda path: parsed_file(ExplainOptions(file=str(path))),
    "a conversation": lambda path: load_conversation(cast(Any, None), str(path)),
    "derived models": lambda path: DerivedModels(str(path)),
    "a model": find_source,
    "a GGUF file": read_gguf,
    "a safetensors file": read_header,
    "JSON": read_json,
}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("what", READERS)
def test_a_named_pipe_in_place_of_a_file_is_refused_at_once(what: str, pipe: Path) -> None:
    said: list[str] = []

    def read() -> None:
        try:
            READERS[what](pipe)
        except DragomanError as error:
            said.append(error.message)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(30)
    assert said
    assert f"{pipe} is not a regular file" in said[0]


@pytest.mark.parametrize("line", ["serve --port 0 --chat-template", "generate hi --grammar", "plan"])
def test_commands_refuse_it_by_its_name(line: str, pipe: Path) -> None:
    done = run_forked(*line.split(), str(pipe), environment=os.environ | {"DRAGOMAN_CONFIG": os.devnull})
    assert (done.returncode, done.stderr) == (1, f"error: {pipe} is not a regular file\n")


def test_what_a_shell_has_opened_is_read(tmp_path: Path) -> None:
    """``--config <(command)``, and /dev/null for nothing."""
    reading, writing = os.pipe()
    os.write(writing, b"")
    os.close(writing)
    assert load(Path(f"/dev/fd/{reading}"), {}).values == load(Path(os.devnull), {}).values == {}
    os.close(reading)
    assert irregular("/dev/zero") == "/dev/zero is not a regular file"
    assert irregular(tmp_path) == irregular(tmp_path / "nothing") == ""
