"""The playground beside what a server has: who runs, the limit of memory, loads of real models, adapters, dialects."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from playground_page import Playground
from sockets import until
from stub_runtime import FOLDER, STUB, RunningServer, running_server
from test_playground import SETTINGS

from dragoman.dialects import DIALECTS, made_dialects
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.engine.messages import LoadModel
from dragoman.models.settings import ModelSettings
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.serving.settings import AdapterSettings, CatalogSettings

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

ANN, BOB = "ann-has-a-long-enough-key", "bob-has-a-long-enough-key"
RING = Keyring([hashed(ANN, "ann"), hashed(BOB, "bob", ("infer",))])
WATCH_STATUS = """() => {
    const place = document.querySelector("section:has(> #models)");
    window.said = [];
    const note = () => window.said.push(place.querySelector("[role=status]").innerText);
    new MutationObserver(note).observe(place, { subtree: true, childList: true, characterData: true });
}"""
"""Has the page remember what it says of a load."""
SERIOUS = ("serious", "critical")
SLOW = msgspec.structs.replace(STUB, step_s=0.05)


@pytest.fixture(scope="module")
def server(chromium: BrowserContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The embedded model, another one that can be loaded, and one that is damaged."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("second", "damaged"):
        shutil.copytree(FOLDER, folder / name)
    with (folder / "damaged" / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    catalog = CatalogSettings(models_folder=str(folder), offer_cached=False)
    quiet = LocalLabSettings(locallab_rate_limit=0, locallab_burst=0, locallab_folder=str(folder / "state"))
    dialects = made_dialects({"locallab": quiet})
    model = LoadModel(settings=ModelSettings(max_sequences=8, max_context=1024))
    settings = msgspec.structs.replace(SETTINGS, name="first")
    with running_server(settings, model, FOLDER, catalog=catalog, dialects=dialects) as server:
        yield server


@pytest.fixture(scope="module")
def locked(chromium: BrowserContext) -> Iterator[RunningServer]:
    """One that asks for keys, and whose answers take seconds."""
    with running_server(SETTINGS, SLOW, keys=RING) as server:
        yield server


@contextmanager
def asked_by(server: RunningServer, *keys: str) -> Iterator[list[Any]]:
    """Have long requests of these keys running, each under the name of its key's first letters."""

    def ask(key: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}", "x-request-id": f"of-{key[:3]}"}
        body = {"prompt": "Open sesame", "max_tokens": 200, "ignore_eos": True}
        return httpx.post(f"{server.url}/openai/v1/completions", json=body, headers=headers, timeout=60)

    with ThreadPoolExecutor(len(keys)) as pool:
        tasks = [pool.submit(ask, key) for key in keys]
        until(lambda: len(listed(server)) == len(keys))
        yield tasks
        for each in listed(server):
            httpx.delete(f"{server.url}/requests/{each['id']}", headers={"authorization": f"Bearer {ANN}"})


def listed(server: RunningServer) -> list[dict[str, Any]]:
    answer = httpx.get(f"{server.url}/requests", headers={"authorization": f"Bearer {ANN}"})
    found: list[dict[str, Any]] = answer.json()["requests"]
    return found


def opened(page: Page, server: RunningServer, key: str) -> Playground:
    playground = Playground(page, server.url)
    page.goto(server.url)
    page.locator("#key").fill(key)
    page.get_by_role("button", name="Use this key").click()
    page.locator("#model option").first.wait_for(state="attached")
    playground.view("Server")
    return playground


def check_with_axe(page: Page) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed: make browser")
    page.wait_for_timeout(300)
    found = axe.Axe().run(page).response["violations"]
    assert not [(each["id"], each["nodes"][0]["html"][:200]) for each in found if each["impact"] in SERIOUS]


def test_a_key_sees_and_cancels_its_own_requests(page: Page, locked: RunningServer) -> None:
    with asked_by(locked, ANN, BOB) as (of_ann, of_bob):
        opened(page, locked, BOB)
        rows = page.locator("section:has(> #running) tbody tr")
        rows.first.wait_for()
        assert rows.count() == 1
        text = rows.inner_text()
        assert "of-bob" in text
        assert "running" in text
        assert re.search(r"[1-9]\d* of at most 200", text), text
        assert "POST /v1/completions" in text
        assert page.get_by_role("columnheader", name="Holder").count() == 0
        page.locator("[data-figure=generated]", has_text=re.compile(r"[1-9]\d*(\.\d)?/s")).wait_for()
        content = page.content()
        assert "sesame" not in content
        assert "of-ann" not in content
        page.get_by_role("button", name="Cancel of-bob").click()
        page.get_by_text("of-bob is cancelled.").wait_for()
        assert of_bob.result(60).status_code == 500
        page.get_by_text("There are none that you may see.").wait_for()
        assert not of_ann.done()
        page.get_by_role("button", name="Measure the limit of memory").click()
        page.get_by_text("The API key is not good for this").wait_for()


def test_an_admin_sees_all_requests_with_their_holders(page: Page, locked: RunningServer) -> None:
    with asked_by(locked, ANN, BOB) as (of_ann, of_bob):
        opened(page, locked, ANN)
        rows = page.locator("section:has(> #running) tbody tr")
        rows.nth(1).wait_for()
        texts = "\n".join(rows.all_inner_texts())
        assert "ann (this key)" in texts
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            check_with_axe(page)
        page.set_viewport_size({"width": 360, "height": 640})
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert "bob" in texts
        page.get_by_role("button", name="Cancel of-bob").click()
        assert of_bob.result(60).status_code == 500
        assert not of_ann.done()


def test_what_is_read_stands_beside_the_limit_of_the_machine(playground: Playground) -> None:
    page = playground.page
    playground.view("Server")
    page.locator("[data-figure=read]", has_text=re.compile(r"\d")).wait_for()
    assert page.locator("[data-figure=readLimit]").inner_text().startswith("–"), "nothing is measured unasked"
    page.get_by_role("button", name="Measure the limit of memory").click()
    page.get_by_text(re.compile(r"This machine reads at most \d")).wait_for(timeout=90_000)
    body = {"prompt": "Once upon a time", "max_tokens": 300, "ignore_eos": True}
    httpx.post(f"{playground.url}/openai/v1/completions", json=body, timeout=60).raise_for_status()
    page.locator("[data-figure=readLimit]", has_text=re.compile(r"\d")).wait_for()
    page.locator("[data-figure=readBusy]", has_text=re.compile(r"[1-9]")).wait_for()


def test_a_real_model_is_loaded_and_chosen(playground: Playground) -> None:
    page = playground.page
    playground.view("Server")
    models = page.locator("section:has(> #models)")
    models.get_by_text("second, not loaded").wait_for()
    page.evaluate(WATCH_STATUS)
    models.get_by_role("listitem").filter(has_text="damaged").get_by_role("button").click()
    page.wait_for_function("window.said.length && !window.said.at(-1).includes('…')", timeout=90_000)
    assert "damaged" in models.inner_text()
    assert models.get_by_text("damaged, not loaded").count() == 1
    models.get_by_role("listitem").filter(has_text="second").get_by_role("button").click()
    models.get_by_text("second is loaded.").wait_for(timeout=90_000)
    said = page.evaluate("window.said")
    assert any(text.startswith("Loading second") for text in said), said
    assert models.get_by_text("first, not loaded").count() == 0, "both fit, so it stays"
    playground.view("Chat")
    page.locator("#model").select_option("second")
    playground.set(max_tokens=3)
    playground.ask("Hello")
    playground.answer()
    assert playground.bodies()[-1]["model"] == "second"


def test_an_adapter_is_chosen_like_a_model(page: Page, tmp_path: Path, chromium: BrowserContext) -> None:
    (tmp_path / "poems").mkdir()
    (tmp_path / "poems" / "adapter_config.json").write_text('{"name": "poems"}')
    (tmp_path / "poems" / "adapter_model.safetensors").touch()
    with running_server(SETTINGS, adapters=AdapterSettings(lora_adapters=f"poems={tmp_path / 'poems'}")) as server:
        playground = Playground(page, server.url)
        playground.open()
        playground.set(max_tokens=12, seed=1)
        playground.ask("Write")
        playground.answer()
        options = page.locator("#model option").all_inner_texts()
        assert options[1] == f"poems (adapter of {options[0]})"
        page.locator("#model").select_option("poems")
        page.get_by_role("button", name="Another answer").click()
        playground.answer(2)
        assert [body["model"] for body in playground.bodies()] == [options[0], "poems"]
        assert page.get_by_text(re.compile("First difference: token")).count() == 2, "the adapter's answer is another"
        assert "poems" in page.locator(".label").nth(1).inner_text()


def test_each_dialect_answers_the_same_request_in_its_own_words(playground: Playground, server: RunningServer) -> None:
    page = playground.page
    playground.set(max_tokens=5, seed=3, temperature=0)
    playground.ask("Hello")
    playground.answer()
    playground.view("Requests")
    page.get_by_role("region", name="tgi").locator("pre").first.wait_for()
    answers = {}
    for dialect in DIALECTS:
        button = page.get_by_role("button", name=f"Send it to {dialect.name}", exact=True)
        if not button.count():
            assert page.get_by_role("region", name=dialect.name).get_by_text("It cannot be said there").count() == 1
            continue
        button.click()
        shown = page.get_by_label(f"Answer of {dialect.name}", exact=True)
        shown.wait_for()
        answers[dialect.name] = shown.inner_text()
        assert "Refused" not in (button.locator("xpath=..").inner_text()), answers
    assert {"openai", "tgi", "friendli", "octoai", "locallab"} <= answers.keys()
    sent = {each.url: each for each in playground.requests if each.method == "POST"}
    assert all(url.startswith(server.url) for url in sent)
    assert '"choices"' in answers["openai"]
    assert '"generated_text"' in answers["tgi"] or '"message"' in answers["tgi"]
    page.route("**/openai/v1/chat/completions", lambda route: route.fulfill(status=429, json={"error": "Too many."}))
    page.get_by_role("button", name="Send it to openai", exact=True).click()
    page.get_by_text("Refused with status 429:").wait_for()
    assert page.get_by_label("Answer of openai", exact=True).inner_text() == "Too many."
