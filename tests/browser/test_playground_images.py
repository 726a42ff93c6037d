"""Images in the playground: chosen, pasted, dropped and refused, with a model that sees and with one that does not."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playground_page import Playground
from stub_runtime import RunningServer, running_server
from test_playground import SETTINGS

sys.path.insert(0, str(Path(__file__).parents[1] / "dialects"))

from seeing_model import make_seeing_model, seeing_server

from dragoman.engine.messages import LoadModel
from dragoman.models.settings import ModelSettings

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

HAND_OVER = """(field, [kind, name, type, base64]) => {
    const transfer = new DataTransfer();
    const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
    transfer.items.add(new File([bytes], name, { type }));
    const Kind = kind === "paste" ? ClipboardEvent : DragEvent;
    const data = kind === "paste" ? { clipboardData: transfer } : { dataTransfer: transfer };
    return field.dispatchEvent(new Kind(kind, { bubbles: true, cancelable: true, ...data }));
}"""
"""Has a file pasted into a field, or dropped onto it. Returns whether the browser may do what it does by itself."""


@pytest.fixture(scope="module")
def server(chromium: BrowserContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_seeing_model(tmp_path_factory.mktemp("seeing"))
    with seeing_server(folder, settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="module")
def blind(chromium: BrowserContext) -> Iterator[RunningServer]:
    """The embedded model, which sees nothing."""
    with running_server(SETTINGS, LoadModel(settings=ModelSettings(max_sequences=2, max_context=256))) as server:
        yield server


def png(colour: str) -> bytes:
    from PIL import Image

    written = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(written, "png")
    return written.getvalue()


def url_of(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def choose(playground: Playground, *images: tuple[str, bytes]) -> None:
    files: Any = [{"name": name, "mimeType": "image/png", "buffer": image} for name, image in images]
    playground.page.locator("input[type=file]").set_input_files(files)


def hand_over(page: Page, kind: str, name: str, media: str, content: bytes, *, to: str = "#question") -> bool:
    encoded = base64.b64encode(content).decode()
    return bool(page.locator(to).evaluate(HAND_OVER, [kind, name, media, encoded]))


def test_a_model_is_asked_about_images(playground: Playground) -> None:
    page, red, blue = playground.page, png("red"), png("blue")
    playground.set(max_tokens=8, seed=1)
    choose(playground, ("red.png", red), ("blue.png", blue))
    waiting = page.locator(".ask .pictures")
    assert waiting.get_by_role("img", name="red.png").is_visible()
    waiting.get_by_role("button", name="Remove red.png").click()
    assert waiting.get_by_role("img").count() == 1
    playground.ask("What is this?")
    assert "8 new" in playground.answer().locator(".figures").inner_text()
    assert waiting.count() == 0
    asked = page.locator(".question").first
    assert asked.get_by_role("img", name="blue.png").evaluate("image => image.complete && image.naturalWidth") == 40
    playground.ask("And its colour?")
    playground.answer(2)
    asked.get_by_role("button", name="Send again").click()
    page.locator(".reply").nth(1).wait_for(state="detached")
    playground.answer()
    first, second, again = playground.bodies()
    content = [{"type": "image_url", "image_url": {"url": url_of(blue)}}, {"type": "text", "text": "What is this?"}]
    assert first["messages"] == again["messages"] == [{"role": "user", "content": content}]
    assert second["messages"][0] == first["messages"][0]
    assert second["messages"][2] == {"role": "user", "content": "And its colour?"}


def test_an_image_alone_is_a_question(playground: Playground) -> None:
    playground.set(max_tokens=2)
    choose(playground, ("red.png", png("red")))
    playground.page.get_by_role("button", name="Send", exact=True).click()
    playground.answer()
    [body] = playground.bodies()
    assert [part["type"] for part in body["messages"][0]["content"]] == ["image_url"]


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_images_are_pasted_and_dropped(playground: Playground, kind: str) -> None:
    page = playground.page
    assert not hand_over(page, kind, "green.png", "image/png", png("green"))
    page.locator(".ask .pictures").get_by_role("img", name="green.png").wait_for()


def test_what_is_no_image_is_refused_before_it_is_sent(playground: Playground) -> None:
    page = playground.page
    hand_over(page, "drop", "notes.txt", "text/plain", b"no image")
    assert "notes.txt: images are PNG" in page.locator(".error").inner_text()
    choose(playground, *((f"{number}.png", png("red")) for number in range(33)))
    page.get_by_text("A question has 32 images at most.").wait_for()
    assert page.locator(".ask .pictures").count() == 0


def test_a_broken_image_is_refused_in_the_servers_words(playground: Playground) -> None:
    choose(playground, ("broken.png", png("red")[:50]))
    playground.ask("What is this?")
    assert "image" in playground.answer().locator(".error").inner_text()


def test_an_answer_about_an_image_is_not_forked(playground: Playground) -> None:
    playground.set(max_tokens=4, temperature=0)
    choose(playground, ("red.png", png("red")))
    playground.ask("What is this?")
    playground.tokens().first.click()
    answer = playground.answer()
    assert "cannot be forked" in answer.inner_text()
    assert answer.locator(".alternatives button").count() == 5
    assert answer.locator(".alternatives button:enabled").count() == 0


def test_a_request_with_an_image_is_shown_short_and_copied_whole(playground: Playground) -> None:
    page, image = playground.page, png("red") + bytes(2_000)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    playground.set(max_tokens=2)
    choose(playground, ("red.png", image))
    playground.ask("What is this?")
    playground.answer()
    playground.view("Requests")
    own = page.locator("figure.code").first
    assert "characters more⟩" in own.locator("code").first.inner_text()
    own.get_by_role("button", name="Copy").click()
    own.get_by_role("button", name="Copied").wait_for()
    assert url_of(image) in page.evaluate("navigator.clipboard.readText()")
    ollama = page.get_by_role("region", name="ollama")
    ollama.wait_for()
    assert "characters more⟩" in ollama.locator("code").first.inner_text()


def test_a_model_that_sees_nothing_is_offered_no_images(page: Page, blind: RunningServer) -> None:
    playground = Playground(page, blind.url)
    playground.open()
    assert page.get_by_role("button", name="Add images").count() == 0
    assert hand_over(page, "paste", "red.png", "image/png", png("red")), "the browser does what it does by itself"


@pytest.mark.parametrize("kind", ["dragover", "drop"])
@pytest.mark.parametrize("place", ["#question", "h1"])
def test_a_dropped_file_is_not_opened_in_place_of_the_page(
    page: Page, blind: RunningServer, kind: str, place: str
) -> None:
    playground = Playground(page, blind.url)
    playground.open()
    assert not hand_over(page, kind, "red.png", "image/png", png("red"), to=place)
