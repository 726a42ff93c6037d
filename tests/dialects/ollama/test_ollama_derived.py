"""Derived models of the Ollama dialect: made, copied, deleted, and there again after a restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted import ScriptedServer, scripted_server

from dragoman.core.errors import BadRequest, DragomanError
from dragoman.dialects.ollama import derived as derived_models
from dragoman.dialects.ollama.derived import DerivedModel, DerivedModels
from dragoman.dialects.ollama.settings import OllamaSettings
from dragoman.text import ChatTemplate

ASK: dict[str, Any] = {"model": "pirate", "messages": [{"role": "user", "content": "Hi."}], "stream": False}
PIRATE: dict[str, Any] = {
    "model": "Pirate",
    "from": "stub",
    "system": "Talk like a pirate.",
    "parameters": {"num_predict": 3, "stop": ["Land", "\n"], "temperature": 0.25, "seed": None},
    "messages": [{"role": "user", "content": "Ahoy?"}, {"role": "assistant", "content": "Arr."}],
    "license": ["Free.", "Of charge."],
}
BY_OPERATOR = "models are offered by the operator of this server; see --offer NAME=SOURCE"


def served(template: ChatTemplate, file: Path, **more: Any) -> AbstractContextManager[ScriptedServer]:
    return scripted_server(template, ollama=OllamaSettings(derived_models=str(file), **more))


@pytest.fixture
def server(template: ChatTemplate, tmp_path: Path) -> Iterator[ScriptedServer]:
    options = '{"top_k": 7, "temperature": 0.5}'
    with served(template, tmp_path / "new" / "derived.json", ollama_options=options) as server:
        yield server


def call(server: ScriptedServer, path: str, body: Any = None, method: str = "POST") -> httpx.Response:
    return httpx.request(method, f"{server.url}/api{path}", json=body, timeout=20)


def names(server: ScriptedServer) -> list[str]:
    return [tag["name"] for tag in call(server, "/tags", method="GET").json()["models"]]


def test_what_it_adds_to_requests(server: ScriptedServer) -> None:
    lines = call(server, "/create", PIRATE).text.splitlines()
    statuses = [json.loads(line)["status"] for line in lines]
    assert (statuses[0], statuses[-1], len(statuses)) == ("reading model metadata", "success", 7)
    server.engine.texts = ["One two three four five"]
    answer = call(server, "/chat", ASK).json()
    assert (answer["model"], answer["done_reason"], answer["eval_count"]) == ("pirate", "length", 3)
    request = server.engine.requests[-1]
    assert request.sampling.temperature == 0.5, "the operator's options go before a model's"
    assert request.sampling.top_k == 7
    prompt = server.engine.prompt()
    places = [prompt.index(text) for text in ("Talk like a pirate.", "Ahoy?", "Arr.", "Hi.")]
    assert places == sorted(places)
    call(server, "/generate", {"model": "pirate:latest", "prompt": "Hi.", "stream": False})
    assert server.engine.prompt() == prompt
    call(server, "/chat", ASK | {"options": {"temperature": 0.1, "num_predict": 5}})
    assert (server.engine.requests[-1].sampling.temperature, server.engine.requests[-1].max_tokens) == (0.1, 5)
    own = [{"role": "system", "content": "Be calm."}, *ASK["messages"]]
    call(server, "/chat", ASK | {"messages": own})
    assert "pirate" not in server.engine.prompt()
    call(server, "/generate", {"model": "pirate", "prompt": "Hi.", "stream": False, "raw": True})
    assert server.engine.prompt().endswith("Hi.")
    assert "Ahoy" not in server.engine.prompt()
    loaded = call(server, "/generate", {"model": "pirate"}).json()
    assert (loaded["model"], loaded["done_reason"]) == ("pirate", "load")
    assert call(server, "/embed", {"model": "pirate", "input": []}).json()["model"] == "pirate"


def test_it_is_listed_and_shown(server: ScriptedServer) -> None:
    assert call(server, "/create", PIRATE | {"stream": False}).json() == {"status": "success"}
    assert names(server) == ["stub:latest", "Pirate:latest"]
    base, own = call(server, "/tags", method="GET").json()["models"]
    assert own["details"] == base["details"] | {"parent_model": "stub"}
    assert own["digest"] != base["digest"]
    shown = call(server, "/show", {"model": "pirate"}).json()
    assert (shown["system"], shown["license"]) == ("Talk like a pirate.", "Free.\nOf charge.")
    assert shown["messages"] == PIRATE["messages"]
    lines = shown["parameters"].splitlines()
    assert f'{"stop":<30} "Land"' in lines
    assert f'{"stop":<30} "\\n"' in lines
    assert "FROM stub\n" in shown["modelfile"]
    again = call(server, "/create", {"model": "two", "from": "pirate", "template": shown["template"], "system": "No."})
    assert again.text.endswith('{"status":"success"}\n')
    two = call(server, "/show", {"model": "two"}).json()
    assert (two["system"], two["parameters"], two["messages"]) == ("No.", shown["parameters"], shown["messages"])
    assert call(server, "/pull", {"model": "two", "stream": False}).json() == {"status": "success"}


def test_instructions_of_a_modelfile_without_meaning_here_are_reported_by_name(server: ScriptedServer) -> None:
    body = PIRATE | {"renderer": "qwen3", "parser": "qwen3", "requires": "0.14.0", "info": {"a": 1}, "stream": False}
    made = call(server, "/create", body)
    assert made.json() == {"status": "success"}
    assert made.headers["x-dragoman-warnings"] == "ignored: renderer, parser, requires, info"
    silent = call(server, "/create", PIRATE | {"renderer": "", "parser": "", "requires": "", "stream": False})
    assert "x-dragoman-warnings" not in silent.headers
    refused = call(server, "/create", PIRATE | {"remote_host": "https://ollama.example"})
    assert (refused.status_code, "remote_host" in refused.json()["error"]) == (400, True)


def test_it_is_there_after_a_restart(template: ChatTemplate, tmp_path: Path) -> None:
    file = tmp_path / "derived.json"
    with served(template, file) as server:
        call(server, "/create", PIRATE)
        copied = call(server, "/copy", {"source": "pirate", "destination": "corsair:v2"})
        assert (copied.status_code, copied.content) == (200, b"")
        call(server, "/copy", {"source": "stub", "destination": "plain"})
    with served(template, file) as server:
        assert names(server) == ["stub:latest", "Pirate:latest", "corsair:v2", "plain:latest"]
        gone = call(server, "/delete", {"model": "pirate:latest"}, "DELETE")
        assert (gone.status_code, gone.content) == (200, b"")
    with served(template, file) as server:
        assert names(server) == ["stub:latest", "corsair:v2", "plain:latest"]
        assert call(server, "/chat", ASK).json() == {"error": "model 'pirate' not found"}
        server.engine.texts = ["Arr."]
        assert call(server, "/chat", ASK | {"model": "CORSAIR:v2"}).json()["message"]["content"] == "Arr."
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/create", {"model": "a b", "from": "stub"}, 400, "invalid model name"),
        ("/create", {"model": "a:cloud", "from": "stub"}, 400, "invalid model name"),
        ("/create", {"model": "../a", "from": "stub"}, 400, "invalid model name"),
        ("/create", {"from": "stub"}, 400, "model is required"),
        ("/create", {"model": "a"}, 400, "neither 'from' or 'files' was specified"),
        ("/create", {"model": "a", "from": "nobody"}, 404, "model 'nobody' not found"),
        ("/create", {"model": "STUB:latest", "from": "stub"}, 403, BY_OPERATOR),
        ("/create", {"model": "a", "from": "stub", "files": {"a": "b"}}, 400,
         "'files' is not supported by this server."),
        ("/create", {"model": "a", "from": "stub", "template": "{{ .Prompt }}"}, 400,
         "this server renders the model's own chat template"),
        ("/create", {"model": "a", "from": "stub", "parameters": {"top_k": "x"}}, 400,
         'option "top_k" must be of type integer'),
        ("/create", {"model": "a", "from": "stub", "messages": [{"role": "x"}]}, 400, None),
        ("/create", {"model": "a", "from": "stub", "messages": [{"role": "user", "images": ["eA=="]}]}, 400,
         "a derived model does not support vision"),
        ("/create", {"model": "a", "from": "stub", "system": "x" * 1_100_000}, 400,
         "a derived model has at most 1048576 bytes"),
        ("/copy", {"source": "nobody", "destination": "a"}, 404, "model 'nobody' not found"),
        ("/copy", {"source": "stub"}, 400, None),
        ("/copy", {"source": "stub", "destination": "stub"}, 403, BY_OPERATOR),
        ("/delete", {"model": "nobody"}, 404, "model 'nobody' not found"),
        ("/delete", {"model": "stub"}, 403, BY_OPERATOR),
        ("/push", {"model": "stub"}, 403, BY_OPERATOR),
    ],
)  # fmt: skip
def test_what_is_refused(server: ScriptedServer, path: str, body: Any, status: int, message: str | None) -> None:
    answer = call(server, path, body, "DELETE" if path == "/delete" else "POST")
    assert answer.status_code == status, answer.text
    assert message is None or answer.json() == {"error": message}
    assert names(server) == ["stub:latest"]


def test_parameters_without_effect_are_named(server: ScriptedServer) -> None:
    answer = call(server, "/create", {"model": "a", "from": "stub", "parameters": {"num_gpu": 3, "x": 1}})
    assert answer.headers["x-dragoman-warnings"] == "unknown: parameters.x; ignored: parameters.num_gpu"


def test_two_servers_lose_nothing_of_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "derived.json")
    one, two = DerivedModels(file), DerivedModels(file)

    def put(models: DerivedModels, prefix: str) -> None:
        for number in range(20):
            models.put(DerivedModel(name=f"{prefix}{number}", base="stub"))

    threads = [threading.Thread(target=put, args=each) for each in ((one, "a"), (two, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(DerivedModels(file).all()) == 40
    monkeypatch.setattr(derived_models, "MOST_MODELS", 40)
    with pytest.raises(BadRequest, match="40 derived models already"):
        one.put(DerivedModel(name="more", base="stub"))
    one.put(DerivedModel(name="a1:latest", base="other"))
    assert len(DerivedModels(file).all()) == 40


@pytest.mark.parametrize("content", [b'{"keys": []}', b'{"derived_models": [{"name": "\xff"}]}'], ids=["form", "utf-8"])
def test_a_file_of_another_form_is_left_alone(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(content)
    with pytest.raises(DragomanError, match="--derived-models"):
        DerivedModels(str(file))
    assert file.read_bytes() == content
