"""The playground in a real browser against real servers: chats, completions, fields, tools, keys, and how they fail."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import msgspec
import psutil
import pytest
from playground_page import Playground, chunk, relay, script, script_text
from sockets import until
from stub_runtime import QUICK, STUB, RunningServer, running_server

from dragoman.engine.messages import LoadModel
from dragoman.models.settings import ModelSettings
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

SETTINGS = msgspec.structs.replace(
    QUICK, name="", alias=(), header_timeout_s=20.0, body_timeout_s=20.0, write_timeout_s=20.0, linger_s=0.2
)
KEY = "a-key-that-nobody-guesses"

# Fields that the page has places of its own for, and those it sends by itself.
PLACES = {"model", "messages", "prompt", "tools", "tool_choice", "response_format"}
BY_ITSELF = {"stream", "stream_options", "logprobs", "top_logprobs", "return_token_ids", "separate_reasoning"}
MEANINGLESS = {"add_generation_prompt", "echo"}


def engines() -> set[int]:
    """The processes of engines that this process has started."""
    return {each.pid for each in psutil.Process().children() if "dragoman.engine" in each.cmdline()}


@pytest.fixture(scope="module")
def server(chromium: BrowserContext) -> Iterator[RunningServer]:
    """The embedded model."""
    model = LoadModel(settings=ModelSettings(max_sequences=8, max_context=1024))
    with running_server(SETTINGS, model) as server:
        yield server


@pytest.fixture(scope="module")
def slow(chromium: BrowserContext) -> Iterator[RunningServer]:
    """One whose answers take seconds."""
    with running_server(SETTINGS, msgspec.structs.replace(STUB, step_s=0.04)) as server:
        yield server


def test_a_chat_is_streamed_and_goes_on(playground: Playground) -> None:
    playground.set(max_tokens=24, seed=1)
    playground.page.locator("#system").fill("You tell stories.")
    playground.ask("Tell me a story about a fox.")
    first = playground.answer().locator(".markdown").inner_text()
    assert len(first) > 20
    figures = playground.answer().locator(".figures").inner_text()
    assert "24 new" in figures
    assert "tokens/s" in figures
    assert "seed 1" in figures
    playground.ask("And then?")
    playground.answer(2)
    first_body, body = playground.bodies()
    assert first_body["stream"] is True
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert body["messages"][2]["content"].split() == first.split()


def test_a_question_is_edited_and_sent_again(playground: Playground) -> None:
    page = playground.page
    playground.set(max_tokens=8)
    playground.ask("First question")
    playground.answer()
    playground.ask("Second question")
    playground.answer(2)
    page.get_by_role("button", name="Edit").first.click()
    page.locator("#edit-0").fill("Better question")
    page.locator("article.question form button[type=submit]").click()
    playground.answer()
    assert page.locator("article.question").count() == 1, "what followed the question is dropped"
    assert playground.bodies()[-1]["messages"] == [{"role": "user", "content": "Better question"}]
    page.get_by_role("button", name="Send again").click()
    playground.answer()
    assert playground.bodies()[-1] == playground.bodies()[-2]


@pytest.mark.parametrize("size", [(360, 640), (1200, 800)])
def test_the_newest_answer_is_followed_from_its_question_on(playground: Playground, size: tuple[int, int]) -> None:
    page = playground.page
    page.set_viewport_size({"width": size[0], "height": size[1]})
    script_text(page, "\n\n".join(f"{i}. A line of it." for i in range(30)))
    hidden = """() => Math.round([...document.querySelectorAll(".answer")].pop().getBoundingClientRect().bottom
        - document.querySelector(".ask").getBoundingClientRect().top)"""
    for number in (1, 2, 3):
        page.evaluate("scrollTo(0, 0)")
        playground.ask("Count.")
        playground.answer(number)
        until(lambda: page.evaluate(hidden) <= 0)
    page.mouse.move(100, 300)
    page.mouse.wheel(0, -600)
    until(lambda: page.evaluate("innerHeight + scrollY < document.documentElement.scrollHeight - 300"))
    place = page.evaluate("scrollY")
    page.locator("#question").fill("What is written scrolls nothing.")
    page.wait_for_timeout(300)
    assert page.evaluate("scrollY") == place


def test_a_text_is_completed(playground: Playground) -> None:
    playground.page.locator("#mode").select_option("completion")
    playground.set(max_tokens=12)
    playground.ask("Once upon a time")
    assert playground.answer().locator(".markdown").inner_text()
    (body,) = playground.bodies()
    assert playground.requests[-1].url.endswith("/openai/v1/completions")
    assert body["prompt"] == "Once upon a time"
    assert body["max_tokens"] == 12


@pytest.mark.parametrize("mode", ["chat", "completion"])
def test_no_field_of_the_document_is_forgotten(playground: Playground, server: RunningServer, mode: str) -> None:
    playground.page.locator("#mode").select_option(mode)
    playground.page.get_by_text("All other fields").click()
    schema = "openai.chat_completions" if mode == "chat" else "openai.completions"
    document = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"][schema]["properties"]
    honoured = {name for name, field in document.items() if "x-dragoman-treatment" not in field}
    rows = playground.page.locator(".field:has(> [id^=field-])")
    shown = {}
    for row in rows.all():
        label, help = row.locator("label code").inner_text(), row.locator(".help").inner_text()
        shown[label] = help
    assert honoured - shown.keys() - PLACES - BY_ITSELF == MEANINGLESS & honoured
    assert shown.keys() <= honoured
    assert all(len(help) > 10 for help in shown.values())


def test_fields_are_sent_as_they_are_set(playground: Playground) -> None:
    page = playground.page
    page.get_by_text("All other fields").click()
    playground.set(seed=2**64 - 1, temperature="0.7", max_tokens=4, logit_bias='{"5": -100}')
    page.locator("#field-stop").fill("one\ntwo")
    page.locator("#field-ignore_eos").select_option("true")
    page.locator("#field-logprobs_mode").select_option("processed")
    playground.ask("Hello")
    playground.answer()
    (sent,) = [each for each in playground.requests if each.url.endswith("/completions")]
    assert '"seed":18446744073709551615' in (sent.post_data or ""), "no digit is lost"
    body = playground.bodies()[0]
    assert body["temperature"] == 0.7
    assert body["stop"] == ["one", "two"]
    assert (body["ignore_eos"], body["logprobs_mode"], body["logit_bias"]) == (True, "processed", {"5": -100})
    assert "top_p" not in body
    playground.set(temperature=7)
    assert page.locator("#field-temperature").get_attribute("aria-invalid") == "true"
    playground.ask("Hello")
    refused = playground.answer(2).locator(".error")
    assert "temperature" in refused.inner_text()


def test_an_answer_follows_a_schema(playground: Playground) -> None:
    page = playground.page
    page.get_by_text("Format of the answer").click()
    page.locator("#format").select_option("json_schema")
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
    page.locator("#format-schema").fill(json.dumps({**schema, "additionalProperties": False}))
    playground.set(max_tokens=40, seed=2)
    playground.ask("How old is the fox?")
    assert isinstance(json.loads(playground.answer().locator(".markdown").inner_text())["age"], int)
    page.locator("#format-schema").fill("{not json")
    playground.ask("Again")
    page.get_by_text("The JSON Schema of the answer is not JSON").wait_for()
    assert len(playground.bodies()) == 1


def test_a_tool_is_called_and_its_result_sent(playground: Playground) -> None:
    page = playground.page
    page.get_by_text("Tools (0)").click()
    page.get_by_role("button", name="Add a tool").click()
    page.locator("#tool-choice").select_option("required")
    playground.set(max_tokens=60, seed=4)
    playground.ask("What is the weather in Berlin?")
    call = playground.answer().locator("form.calls")
    assert "get_weather" in call.inner_text()
    place = call.locator("#call-1-0-place")
    assert "A town." in call.inner_text(), "the form has the help of the schema"
    place.fill("Bonn")
    call.locator("textarea").fill("Rain.")
    page.locator("#tool-choice").select_option("none")
    call.get_by_role("button", name="Send the results").click()
    playground.answer(2)
    body = playground.bodies()[-1]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool"]
    (sent,) = body["messages"][1]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == {"place": "Bonn"}
    assert body["messages"][2] == {"role": "tool", "tool_call_id": sent["id"], "content": "Rain."}
    assert body["tools"][0]["function"]["parameters"]["required"] == ["place"]


@pytest.mark.parametrize("form", ["field", "marks", "closing mark"])
def test_reasoning_is_folded_away(playground: Playground, form: str) -> None:
    text = {
        "field": "Four.",
        "marks": "<think>Two and two.</think>Four.",
        "closing mark": "Two and two.</think>\nFour.",
    }
    deltas = [chunk({"reasoning_content": "Two and two."})] if form == "field" else []
    script(playground.page, *deltas, chunk({"content": text[form]}), chunk({}, "stop"))
    playground.ask("2 + 2?")
    answer = playground.answer()
    assert answer.locator(".markdown").inner_text() == "Four."
    folded = answer.locator("details.reasoning pre")
    assert not folded.is_visible()
    answer.get_by_text("Reasoning").click()
    assert folded.inner_text() == "Two and two."


def test_markdown_and_code_are_shown(playground: Playground) -> None:
    text = (
        "# Title\n\nA **bold** [link](https://example.org/x) &amp; `code`\n\n1. one\n2. two\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nprint('<b>')\n```\n\n> said\n"
    )
    script_text(playground.page, text)
    playground.ask("Show me")
    answer = playground.answer()
    assert answer.locator("strong").inner_text() == "bold"
    assert answer.locator("h3").inner_text() == "Title"
    assert answer.locator("ol li").count() == 2
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert answer.locator("pre code").inner_text() == "print('<b>')"
    assert "&" in answer.locator(".markdown p").first.inner_text()
    link = answer.locator("a")
    assert link.get_attribute("href") == "https://example.org/x"
    assert "noopener" in (link.get_attribute("rel") or "")


def test_an_answer_is_stopped(page: Page, slow: RunningServer) -> None:
    playground = Playground(page, slow.url)
    playground.open()
    playground.set(max_tokens=200)
    playground.ask("Go on")
    page.locator(".answer[aria-busy=true] .figures", has_text="Writing").wait_for()
    page.get_by_role("button", name="Stop").click()
    assert "stopped" in playground.answer().locator(".figures").inner_text()
    assert page.locator(".error").count() == 0
    until(lambda: "dragoman_sequences_running 0.0" in httpx.get(f"{slow.url}/metrics").text)


def test_an_answer_goes_on_when_the_engine_dies(page: Page, chromium: BrowserContext) -> None:
    before = engines()
    with running_server(SETTINGS, msgspec.structs.replace(STUB, step_s=0.03)) as server:
        (engine,) = engines() - before
        playground = Playground(page, server.url)
        playground.open()
        playground.set(max_tokens=90, seed=5)
        page.get_by_text("All other fields").click()
        page.locator("#field-ignore_eos").select_option("true")
        playground.ask("Go on")
        page.locator(".answer[aria-busy=true] .figures", has_text="Writing").wait_for()
        os.kill(engine, signal.SIGKILL)
        assert "90 new" in playground.answer().locator(".figures").inner_text()
        assert page.locator(".error").count() == 0
        assert "dragoman_engine_restarts_total 1.0" in httpx.get(f"{server.url}/metrics").text
        page.get_by_role("button", name="Another answer").click()
        assert "90 new" in playground.answer(2).locator(".figures").inner_text()
        assert page.get_by_text("First difference").count() == 0, "the same tokens as without the death"
        assert playground.tokens(1).count() == playground.tokens(2).count() > 50


def test_a_lost_connection_keeps_the_text(page: Page, slow: RunningServer) -> None:
    with relay(slow.port) as network:
        playground = Playground(page, f"http://127.0.0.1:{network.port}")
        playground.open()
        playground.set(max_tokens=200)
        playground.ask("Go on")
        page.locator(".answer[aria-busy=true] .figures", has_text="Writing").wait_for()
        page.locator(".answer .markdown, .answer .plain").first.wait_for()
        network.cut()
        answer = playground.answer()
        assert "The connection was lost" in answer.locator(".error").inner_text()
        assert answer.locator(".markdown, .plain").first.inner_text()
        playground.ask("Again")
        assert "cannot be reached" in playground.answer(2).locator(".error").inner_text()


def test_a_stream_without_its_end_is_told(playground: Playground) -> None:
    script(playground.page, chunk({"content": "Half an ans"}), done=False)
    playground.ask("Say it")
    answer = playground.answer()
    assert "The connection was lost" in answer.locator(".error").inner_text()
    assert answer.locator(".markdown").inner_text() == "Half an ans"
    error = {"error": {"message": "The engine failed."}}
    script(playground.page, chunk({"content": "Half"}), error)
    playground.ask("Say it")
    assert playground.answer(2).locator(".error").inner_text() == "The engine failed."


def test_a_key_is_asked_for_and_kept_for_the_tab_alone(chromium: BrowserContext, page: Page) -> None:
    ring = Keyring([hashed(KEY, "ann", ("infer",))])
    with running_server(SETTINGS, keys=ring) as locked:
        playground = Playground(page, locked.url)
        page.goto(locked.url)
        page.locator("#key").wait_for()
        page.locator("#key").fill("wrong")
        page.get_by_role("button", name="Use this key").click()
        page.locator(".key .error").wait_for()
        page.locator("#key").fill(KEY)
        page.get_by_role("button", name="Use this key").click()
        page.locator("#model option").first.wait_for(state="attached")
        playground.set(max_tokens=3)
        playground.ask("Hello")
        playground.answer()
        assert page.locator(".error").count() == 0
        stored = page.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie]")
        assert stored == [[KEY], [], ""]
        assert not chromium.cookies()
        assert not any(KEY in each.url for each in playground.requests)
        other = chromium.new_page()
        other.goto(locked.url)
        other.locator("#key").wait_for()
        assert other.locator("#key").input_value() == ""
        other.close()
        page.reload()
        page.locator("#model option").first.wait_for(state="attached")


HOSTILE = {
    "a script": "<script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">",
    "a frame": '<iframe src="https://evil.example/"></iframe><svg onload="document.title=\'owned\'">',
    "remote pictures": "![x](https://evil.example/x.png) ![y](//evil.example/y.png)\n\n[z]: https://evil.example/z\n![z]",
    "addresses that run": "[a](javascript:document.title='owned') [b](data:text/html,x) <javascript:alert(1)> "
    "[c](&#106;avascript:x)",
    "style": '<style>body{display:none}</style><p style="position:fixed;inset:0">x</p>',
    "broken Markdown": "**a [b `c ``` | d\n|--|\n<div><!-- x\n> > > > " + "[" * 2000 + "\n```\n" + "*" * 2000,
    "deep lists": "\n".join("  " * depth + "- x" for depth in range(150)) + "\n" + ">" * 400,
    "right-to-left marks": "safe \u202egnp.exe\u202c \u2066hidden\u2069 \u0000\u200b\n\n```\nif (admin\u202e) {\n```\n"
    "\u05d0\u05d1",
    "surrogates and forms": "\U0001f468\u200d\U0001f469 \ufffd " + "Z\u0351\u036b\u0343" * 300,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_only_text(playground: Playground, kind: str) -> None:
    page = playground.page
    script_text(page, HOSTILE[kind])
    playground.ask("Be evil")
    answer = playground.answer()
    page.wait_for_timeout(100)
    assert page.title() == "Dragoman playground"
    forbidden = "script, img, iframe, svg, style, object, embed, form, [style], [onerror], [onload]"
    assert answer.locator(forbidden).count() == 0
    addresses = [each.get_attribute("href") or "" for each in answer.locator("a").all()]
    assert all(address.startswith(("https://", "http://", "mailto:")) for address in addresses)
    assert page.locator("#question").is_visible()
    if kind == "right-to-left marks":
        assert "⟨U+202E⟩" in answer.locator("pre code").inner_text(), "in code it is spelled out"
        assert page.locator("#question").evaluate("each => getComputedStyle(each).direction") == "ltr"
    if kind == "a script":
        assert "<script>" in answer.inner_text()


def test_a_megabyte_of_text_leaves_the_page_alive(playground: Playground) -> None:
    page = playground.page
    script_text(page, ("word **bold** `x` [a](b) <i>\n" * 40_000)[: 2**20], pieces=200)
    playground.ask("Say much")
    answer = playground.answer()
    assert len(answer.locator("pre.plain").inner_text()) > 1_000_000
    page.locator("#question").fill("still here", timeout=5000)
    script_text(page, "ok")
    page.get_by_role("button", name="Send", exact=True).click()
    assert playground.answer(2).locator(".markdown").inner_text() == "ok"


SLOW_TO_PARSE = {
    "one long word": "a" * 90_000 + "@",
    "underscores": "__a__b" * 15_000,
    "stars": "*" * 40_000 + "a" + "*" * 40_000,
    "quotations within quotations": "> - " * 20_000,
}
"""What takes a Markdown parser time that grows with the square of its length: it was 20 seconds for some."""


@pytest.mark.parametrize("kind", SLOW_TO_PARSE)
def test_text_that_is_slow_to_parse_leaves_the_page_alive(playground: Playground, kind: str) -> None:
    page = playground.page
    script_text(page, f"{SLOW_TO_PARSE[kind]}\n\nThe **end**", pieces=40)
    playground.ask("Say something slow")
    page.locator(".answer").wait_for()
    page.locator("#question").fill("still here", timeout=5000)
    answer = playground.answer()
    assert SLOW_TO_PARSE[kind][-1000:].strip("> -") in answer.inner_text()
    is_shown_as_it_is = kind == "quotations within quotations"
    assert answer.locator("strong", has_text="end").count() == (0 if is_shown_as_it_is else 1)
