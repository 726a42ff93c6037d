"""Adapters through every dialect that can name one: the same adapter is the same text, whoever asks and however."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from stub_runtime import RunningServer, running_server

from dragoman.core.errors import ModelError
from dragoman.serving.settings import AdapterSettings, CatalogSettings

PROMPT = "hello there"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that starts with one adapter, ``poems``, and offers others."""
    folder = tmp_path_factory.mktemp("adapters")
    for name in ("poems", "recipes", "letters"):
        (folder / name).mkdir()
        (folder / name / "adapter_config.json").write_text(f'{{"name": "{name}"}}')
        (folder / name / "adapter_model.safetensors").touch()
    settings = AdapterSettings(lora_adapters=f"poems={folder / 'poems'}", adapters_folder=str(folder))
    with running_server(adapters=settings) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


@pytest.fixture
def recipes(http: httpx.Client) -> Iterator[str]:
    """The name of an adapter that is loaded for one test."""
    answer = http.post("/v1/load_lora_adapter", json={"lora_name": "recipes"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'recipes' added successfully.")
    yield "recipes"
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "recipes"}).status_code in (200, 404)


def openai_text(
    http: httpx.Client, model: str | None, path: str = "/v1/completions", *, ignore_eos: bool = True
) -> str:
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": ignore_eos}
    answer = http.post(path, json=body if model is None else body | {"model": model})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def tgi_text(http: httpx.Client, adapter: str | None) -> str:
    parameters: dict[str, Any] = {"max_new_tokens": 12}
    answer = http.post("/tgi/generate", json={"inputs": PROMPT, "parameters": parameters | {"adapter_id": adapter}})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["generated_text"])


def test_the_list_of_models_has_the_adapters(http: httpx.Client, recipes: str) -> None:
    listed = {entry["id"]: entry.get("parent") for entry in http.get("/v1/models").json()["data"]}
    assert {"stub": None, "poems": "stub", "recipes": "stub"}.items() <= listed.items()
    assert "letters" not in listed
    assert http.get("/v1/models/poems").json()["parent"] == "stub"
    assert [entry["id"] for entry in http.get("/tgi/v1/models").json()["data"]] == ["stub", "poems", "recipes"]


def test_the_list_of_adapters_says_what_can_be_loaded(http: httpx.Client) -> None:
    listed = {entry["id"]: entry["loaded"] for entry in http.get("/v1/lora_adapters").json()["data"]}
    assert listed == {"poems": True, "letters": False, "recipes": False}


def test_an_adapter_is_a_model_of_its_own_to_openai_s_package(server: RunningServer, recipes: str) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        texts = {}
        for name in ("stub", "poems", recipes):
            answer = client.completions.create(model=name, prompt=PROMPT, max_tokens=12, temperature=0)
            assert answer.model == name
            texts[name] = (answer.choices[0].text, answer.system_fingerprint)
            again = client.completions.create(model=name, prompt=PROMPT, max_tokens=12, temperature=0)
            assert (again.choices[0].text, again.system_fingerprint) == texts[name]
        assert len(set(texts.values())) == 3
        assert len({fingerprint for _, fingerprint in texts.values()}) == 3
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="letters", prompt=PROMPT)


def test_every_dialect_means_the_same_adapter(http: httpx.Client, recipes: str) -> None:
    base, poems, wanted = (openai_text(http, name) for name in (None, "poems", recipes))
    assert len({base, poems, wanted}) == 3
    for adapter in (None, recipes):  # TGI's clients cannot ask to go on after the end of the text
        assert tgi_text(http, adapter) == openai_text(http, adapter, ignore_eos=False)
    shared = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    answer = http.post("/octoai/v1/completions", json=shared | {"model": "stub", "peft": recipes, "ignore_eos": True})
    assert (answer.json()["choices"][0]["text"], answer.json()["model"]) == (wanted, "stub")
    friendli = shared | {"top_k": 1, "eos_token": [511]}
    answer = http.post("/dedicated/v1/completions", json=friendli | {"model": f"stub:{recipes}"})
    assert (answer.json()["choices"][0]["text"], answer.json()["model"]) == (wanted, "stub")
    answer = http.post("/friendli/v1/completions", json=friendli | {"model": recipes})
    assert (answer.json()["choices"][0]["text"], answer.json()["model"]) == (wanted, recipes)


def test_chats_run_with_the_adapter_that_model_names(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hi"}]

    def text(path: str, **more: Any) -> str:
        body = {"messages": messages, "max_tokens": 8, "temperature": 0} | more
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    base, poems = text("/v1/chat/completions", model="stub"), text("/v1/chat/completions", model="poems")
    assert base != poems
    assert text("/tgi/v1/chat/completions", model="poems") == poems
    assert text("/tgi/v1/chat/completions", model="tgi") == base
    assert text("/tgi/v1/chat/completions", model="dummy") == base
    assert text("/octoai/v1/chat/completions", model="stub", peft="poems") == poems
    assert text("/octoai/v1/chat/completions", model="stub", octoai={"loras": ["poems"]}) == poems


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"model": "nothing", "prompt": "x"}, 404),
        ("/octoai/v1/completions", {"model": "stub", "prompt": "x", "peft": "nothing"}, 404),
        ("/dedicated/v1/completions", {"model": "stub:nothing", "prompt": "x"}, 404),
        ("/dedicated/v1/completions", {"model": "nothing:poems", "prompt": "x"}, 404),
        ("/friendli/v1/completions", {"model": "nothing", "prompt": "x"}, 404),
        ("/tgi/generate", {"inputs": "x", "parameters": {"adapter_id": "nothing"}}, 422),
        ("/dedicated/v1/completions", {"model": "poems:poems", "prompt": "x"}, 404),
    ],
)
def test_an_adapter_that_is_not_there(http: httpx.Client, path: str, body: dict[str, Any], status: int) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert "x-dragoman-warnings" not in answer.headers, "refused, not ignored"


@pytest.mark.parametrize(
    ("operation", "body", "status", "param"),
    [
        ("load", {"lora_name": "nothing"}, 404, "lora_name"),
        ("load", {"lora_name": "mine", "lora_path": "/etc"}, 404, "lora_path"),
        ("load", {"lora_name": "stub", "lora_path": "recipes"}, 409, "lora_name"),
        ("load", {"lora_name": "poems", "lora_path": "recipes"}, 409, "lora_name"),
        ("unload", {"lora_name": "nothing"}, 404, "lora_name"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_its_field(
    http: httpx.Client, operation: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = http.post(f"/v1/{operation}_lora_adapter", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text


def test_two_adapters_for_one_request_are_refused(http: httpx.Client, recipes: str) -> None:
    chat = {"model": "stub", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    place = [card["path"] for card in http.get("/llamacpp/lora-adapters").json()].index(recipes)
    lora = [{"id": place, "scale": 1}]
    for path, body, status in (
        ("/octoai/v1/completions", {"model": "poems", "prompt": "x", "peft": recipes}, 422),
        ("/octoai/v1/chat/completions", chat | {"octoai": {"loras": ["poems", recipes]}}, 422),
        ("/octoai/v1/chat/completions", chat | {"peft": "poems", "octoai": {"loras": [recipes]}}, 422),
        ("/octoai/v1/chat/completions", chat | {"peft": "poems", "octoai": {"loras": ["poems"]}}, 200),
        ("/dedicated/v1/completions", {"model": f"poems:{recipes}", "prompt": "x"}, 404),
        ("/llamacpp/completion", {"model": "poems", "prompt": "x", "n_predict": 2, "lora": lora}, 400),
        ("/llamacpp/completion", {"model": recipes, "prompt": "x", "n_predict": 2, "lora": lora}, 200),
    ):
        answer = http.post(path, json=body)
        assert answer.status_code == status, (path, body, answer.text)


def test_an_adapter_of_a_client_s_own_name(http: httpx.Client, recipes: str) -> None:
    assert http.post("/v1/load_lora_adapter", json={"lora_name": "mine", "lora_path": "recipes"}).status_code == 200
    assert openai_text(http, "mine") == openai_text(http, recipes)
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
    assert openai_text(http, recipes), "the other name stays"


def test_another_in_the_place_of_one(http: httpx.Client, recipes: str) -> None:
    before = openai_text(http, recipes)
    body = {"lora_name": recipes, "lora_path": "letters", "load_inplace": True}
    assert http.post("/v1/load_lora_adapter", json=body).status_code == 200
    assert openai_text(http, recipes) != before


def test_an_adapter_stays_where_the_one_in_its_place_cannot_be_loaded(http: httpx.Client, recipes: str) -> None:
    before = openai_text(http, recipes)
    body = {"lora_name": recipes, "lora_path": "nothing", "load_inplace": True}
    assert http.post("/v1/load_lora_adapter", json=body).status_code == 404
    assert openai_text(http, recipes) == before


def test_a_name_that_no_adapter_can_have_is_refused_by_its_field(http: httpx.Client) -> None:
    answer = http.post("/v1/load_lora_adapter", json={"lora_name": "a\nb", "lora_path": "recipes"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "lora_name")


def test_loading_twice_changes_nothing(http: httpx.Client, recipes: str) -> None:
    before = openai_text(http, recipes)
    assert http.post("/v1/load_lora_adapter", json={"lora_name": recipes}).status_code == 200
    assert openai_text(http, recipes) == before


def test_an_unloaded_adapter_is_gone(http: httpx.Client, recipes: str) -> None:
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": recipes}).status_code == 200
    assert http.post("/v1/completions", json={"model": recipes, "prompt": "x"}).status_code == 404


def test_an_adapter_of_the_start_comes_and_goes_like_any_other(http: httpx.Client) -> None:
    """Its name stayed one of the model's: Ollama's clients got the base model's text for it, and it was never loaded
    again."""
    options = {"temperature": 0, "num_predict": 12}
    body = {"model": "poems", "prompt": PROMPT, "stream": False, "raw": True, "options": options}
    plain = http.post("/api/generate", json=body | {"model": "stub"}).json()["response"]
    own = http.post("/api/generate", json=body).json()["response"]
    assert own != plain
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "poems"}).status_code == 200
    try:
        for path in ("/api/generate", "/api/show"):
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]) == (404, "model 'poems' not found")
    finally:
        again = http.post("/v1/load_lora_adapter", json={"lora_name": "poems"})
    assert again.status_code == 200, again.text
    assert http.post("/api/generate", json=body).json()["response"] == own


def test_ollama_shows_what_an_adapter_changes(http: httpx.Client) -> None:
    shown = http.post("/api/show", json={"model": "poems"}).json()
    assert shown["details"]["parent_model"] == "stub"
    assert "FROM stub\nADAPTER poems\n" in shown["modelfile"]
    assert "ADAPTER" not in http.post("/api/show", json={"model": "stub"}).json()["modelfile"]


def test_tgi_without_any_adapter_answers_with_the_base_model_and_says_so() -> None:
    with running_server() as server, httpx.Client(base_url=server.url, timeout=20) as http:
        body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "adapter_id": "poems"}}
        answer = http.post("/tgi/generate", json=body)
        assert answer.status_code == 200
        assert answer.json()["generated_text"] == tgi_text(http, None)
        assert answer.headers["x-dragoman-warnings"] == "ignored: parameters.adapter_id"


def test_a_reason_has_no_path_of_the_server_s_machine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The operator's log has it."""
    folder = tmp_path / "my adapters"
    (folder / "drafts").mkdir(parents=True)
    (folder / "drafts" / "adapter_config.json").write_text("{}")
    settings = AdapterSettings(adapters_folder=str(folder))
    with running_server(adapters=settings) as server, httpx.Client(base_url=server.url) as http:
        error = http.post("/v1/load_lora_adapter", json={"lora_name": "drafts"}).json()["error"]
    assert error["code"] == "load_failed"
    assert error["message"].startswith("The adapter 'drafts' cannot be loaded: drafts has no adapter_model.safetensors")
    assert f"{folder / 'drafts'} has no adapter_model.safetensors" in caplog.text


def test_a_start_with_an_adapter_that_cannot_be_loaded_fails(tmp_path: Path) -> None:
    from dragoman.core.errors import ModelError

    settings = AdapterSettings(lora_adapters="poems=missing")
    with pytest.raises(ModelError, match="poems"), running_server(adapters=settings):
        pass


def test_no_adapter_has_the_name_of_a_model_that_can_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "adapter_config.json").write_text("{}")
    (tmp_path / "another" / "adapter_model.safetensors").touch()
    catalog = CatalogSettings(offer=("another=/nowhere",), offer_cached=False)
    folder = AdapterSettings(adapters_folder=str(tmp_path))
    with running_server(adapters=folder, catalog=catalog) as server, httpx.Client(base_url=server.url) as http:
        answer = http.post("/v1/load_lora_adapter", json={"lora_name": "another"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (409, "lora_name"), answer.text
        assert http.post("/v1/load_lora_adapter", json={"lora_name": "mine", "lora_path": "another"}).status_code == 200
    at_start = AdapterSettings(lora_adapters=f"another={tmp_path / 'other'}")
    with (
        pytest.raises(ModelError, match="another is the name of a model"),
        running_server(adapters=at_start, catalog=catalog),
    ):
        pass
