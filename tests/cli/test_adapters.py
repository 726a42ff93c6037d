"""``dragoman adapters`` speaks with a running server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_command import run_forked
from stub_runtime import running_server

from dragoman.serving.settings import AdapterSettings


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "poems").mkdir()
    (folder / "poems" / "adapter_config.json").write_text("{}")
    (folder / "poems" / "adapter_model.safetensors").touch()
    with running_server(adapters=AdapterSettings(adapters_folder=str(folder))) as server:
        yield server.url


def adapters(*arguments: str, code: int = 0) -> str:
    done = run_forked("adapters", *arguments, environment={**os.environ, "DRAGOMAN_CONFIG": os.devnull})
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_an_adapter_comes_and_goes(url: str) -> None:
    assert "can be loaded" in adapters("list", "--url", url)
    assert "'mine' added" in adapters("load", "mine", "--adapter-source", "poems", "--url", url)
    [row] = [line for line in adapters("list", "--url", url).splitlines() if line.startswith("mine")]
    assert "loaded" in row
    assert "'mine' removed" in adapters("unload", "mine", "--url", url)
    assert "mine" not in adapters("list", "--url", url)


def test_what_goes_wrong_is_said_in_the_server_s_words(url: str, tmp_path: Path) -> None:
    assert "There is no adapter 'nothing'" in adapters("load", "nothing", "--url", url, code=1)
    assert "is not loaded" in adapters("unload", "nothing", "--url", url, code=1)
    assert "nobody answers" in adapters("list", "--url", "http://127.0.0.1:9", code=1)
