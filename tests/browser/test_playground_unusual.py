"""The playground with numbers, keys and browsers that are seldom met."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from playground_page import CHAT, Playground, chunk, script, script_text
from sockets import until
from stub_runtime import QUICK, STUB, RunningServer, running_server

from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

SETTINGS = msgspec.structs.replace(QUICK, name="", alias=(), header_timeout_s=20.0, linger_s=0.2)


@pytest.fixture(scope="module")
def server(chromium: BrowserContext) -> Iterator[RunningServer]:
    with running_server(SETTINGS, STUB) as server:
        yield server


@pytest.mark.parametrize("n", ["0", "-1", "200", "100000000"])
def test_a_number_of_choices_that_is_refused_is_told_once(playground: Playground, n: str) -> None:
    page = playground.page
    page.get_by_text("All other fields").click()
    playground.set(n=n, max_tokens=3)
    playground.ask("Hi")
    assert "Invalid 'n'" in playground.answer().locator(".error").inner_text()
    assert page.locator(".answer").count() == 1
    page.locator("#field-n").fill("")
    playground.ask("Again")
    playground.answer(2)
    assert page.locator(".error").count() == 1, "the conversation goes on"


def test_fields_in_json_are_reset_too(playground: Playground) -> None:
    page = playground.page
    page.get_by_text("All other fields").click()
    playground.set(max_tokens=3, logit_bias='{"5": 1}')
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("!document.querySelector('#field-max_tokens').value")
    assert page.locator("#field-logit_bias").input_value() == ""
    page.locator("#field-logit_bias").fill('{"6": ')
    assert page.locator("#field-logit_bias").input_value() == '{"6": ', "what is being written stays"


def test_a_part_that_cannot_be_loaded_is_told_and_tried_again(playground: Playground) -> None:
    page = playground.page
    page.route("**/playground/server-*", lambda route: route.abort())
    page.get_by_role("tab", name="Server").click()
    told = page.locator("#view-Server [role=alert]")
    assert "cannot be loaded" in told.inner_text()
    page.unroute("**/playground/server-*")
    told.get_by_role("button", name="Try again").click()
    page.get_by_text("Tokens per second").wait_for()


def test_arguments_of_tools_keep_all_digits(playground: Playground) -> None:
    page, large = playground.page, 2**64 - 1
    page.get_by_text("Tools (0)").click()
    page.get_by_role("button", name="Add a tool").click()
    schema = {"type": "object", "properties": {"id": {"type": "integer", "maximum": large}, "of": {}, "as": {}}}
    page.locator("#tool-parameters-0").fill(json.dumps(schema))
    arguments = {"id": 1, "of": {"n": [-large, 0.5, f"{large}"]}, "as": 1e300}
    function = {"name": "get_weather", "arguments": json.dumps(arguments)}
    script(page, chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": function}]}), chunk({}, "tool_calls"))
    playground.ask("Call")
    playground.answer()
    page.locator("#call-1-0-id").fill(str(large))
    script_text(page, "done")
    page.get_by_role("button", name="Send the results").click()
    playground.answer(2)
    sent = playground.bodies()[-1]
    assert sent["tools"][0]["function"]["parameters"] == schema
    (call,) = sent["messages"][1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {**arguments, "id": large}


def test_a_browser_that_keeps_no_data_shows_the_page(page: Page, server: RunningServer) -> None:
    page.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('', 'SecurityError'); }})"
    )
    playground = Playground(page, server.url)
    playground.open()
    page.get_by_role("button", name="API key").click()
    page.locator("#key").fill("a-key")
    page.get_by_role("button", name="Use this key").click()
    playground.ask("Hi")
    playground.answer()
    assert playground.requests[-1].headers["authorization"] == "Bearer a-key"
    assert not playground.said


def test_texts_are_copied_where_the_page_has_no_clipboard(page: Page, server: RunningServer) -> None:
    # As on plain HTTP from another machine.
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    playground = Playground(page, server.url)
    playground.open()
    script_text(page, "```py\nprint('é')\n```")
    playground.ask("Code")
    copied = playground.answer().get_by_role("button", name="Copy")
    copied.focus()
    page.keyboard.press("Enter")
    playground.answer().get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Copied", "the focus stays"
    page.locator("#question").press("Control+V")
    assert page.locator("#question").input_value() == "print('é')"
    page.evaluate("document.execCommand = () => false")
    script_text(page, "```\nmore\n```")
    playground.ask("Code")
    playground.answer(2).get_by_role("button", name="Copy").click()
    playground.answer(2).get_by_role("button", name="Cannot copy: select the text").wait_for()


def test_a_key_of_any_characters_is_sent(chromium: BrowserContext, page: Page) -> None:
    with running_server(SETTINGS, STUB, keys=Keyring([hashed("schlüssel-🔑", "someone")])) as locked:
        page.goto(locked.url)
        for key in ("“schlüssel”", "schlüssel-🔑"):
            page.locator("#key").fill(key)
            with page.expect_response("**/openai/v1/models") as answered:
                page.get_by_role("button", name="Use this key").click()
            assert answered.value.status == (200 if key == "schlüssel-🔑" else 401)
        page.locator("#model option").first.wait_for(state="attached")


WRONG = {"temperature": "0,5", "top_p": "Infinity", "max_tokens": "1e3", "logit_bias": '{"5": '}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_value_of_a_field_is_told_and_not_left_out(playground: Playground, name: str) -> None:
    page = playground.page
    page.get_by_text("All other fields").click()
    playground.set(**{name: WRONG[name]})
    assert page.locator(f"#field-{name}").get_attribute("aria-invalid") == "true"
    playground.ask("Hi")
    assert page.locator(".error").inner_text().startswith(f"{name}: ")
    assert not playground.bodies()
    page.get_by_role("button", name="Reset").click()
    page.wait_for_selector(f"#field-{name}[aria-invalid=false]")
    assert page.locator(f"#field-{name}").input_value() == ""
    playground.ask("Hi")
    playground.answer()
    assert name not in playground.bodies()[0]


def test_a_format_that_is_no_schema_is_sent_as_it_is(playground: Playground) -> None:
    playground.page.get_by_text("Format of the answer").click()
    playground.page.locator("#format").select_option("json_schema")
    playground.page.locator("#format-schema").fill("false")
    playground.ask("Hi")
    playground.answer()
    assert playground.bodies()[0]["response_format"]["json_schema"]["schema"] is False


def test_a_call_whose_schema_no_form_fits_leaves_the_page_alive(playground: Playground) -> None:
    page = playground.page
    page.get_by_text("Tools (0)").click()
    page.get_by_role("button", name="Add a tool").click()
    function = {"name": "get_weather", "arguments": "{}"}
    script(page, chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": function}]}), chunk({}, "tool_calls"))
    schemas = [None, 5, [], *({"properties": each} for each in (None, {"a": None}, {"a": True}, {"a": {"enum": "b"}}))]
    schemas += [{"required": 5, "properties": {"a": {}}}, {"properties": {"a": {"anyOf": {}, "description": {}}}}]
    for number, schema in enumerate(schemas, 1):
        page.locator("#tool-parameters-0").fill(json.dumps(schema))
        playground.ask("Call")
        playground.answer(number).get_by_text("What the tool returns").wait_for()
    assert not playground.said


def test_arguments_that_are_not_json_are_not_sent(playground: Playground) -> None:
    page = playground.page
    function = {"name": "unknown", "arguments": '{"a": 1}'}
    script(page, chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": function}]}), chunk({}, "tool_calls"))
    playground.ask("Call")
    playground.answer()
    page.locator("#call-1-0").fill('{"a": ')
    page.get_by_role("button", name="Send the results").click()
    page.get_by_text("This is not JSON").wait_for()
    assert len(playground.bodies()) == 1
    page.locator("#call-1-0").fill('{"a": 2}')
    page.get_by_role("button", name="Send the results").click()
    playground.answer(2)
    assert playground.bodies()[1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"a":2}'


def test_a_long_request_runs_with_curl_too(playground: Playground) -> None:
    """Linux takes no argument of more than 128 KiB."""
    playground.ask("it's long " * 20_000)
    playground.answer()
    playground.view("Requests")
    text = playground.page.locator(".requests pre").first.inner_text()
    done = subprocess.run(["bash"], input=text, capture_output=True, text=True, timeout=60, check=True)
    assert "tokens" in json.loads(done.stdout)["error"]["message"]


def test_of_a_long_conversation_only_what_is_near_is_laid_out(playground: Playground) -> None:
    """Each letter typed into a page of 28,000 elements took a fifth of a second."""
    page = playground.page
    script_text(page, "One.\n\n* Two.\n* Three.", pieces=1)
    page.evaluate(
        """async (count) => {
            const field = document.querySelector("#question");
            const write = Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set;
            const until = (is) => new Promise((go) => {
                const look = () => (is() ? go() : setTimeout(look, 5));
                look();
            });
            for (let i = 1; i <= count; i++) {
                write.call(field, `Question ${i}`);
                field.dispatchEvent(new Event("input", { bubbles: true }));
                await new Promise((go) => setTimeout(go));
                field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
                await until(() => document.querySelectorAll(".answer[aria-busy=false]").length === i);
            }
        }""",
        40,
    )
    seen = """() => [...document.querySelectorAll(".answer")].map((each) =>
        each.checkVisibility({ contentVisibilityAuto: true }))"""
    until(lambda: sum(page.evaluate(seen)) < 25)
    assert page.evaluate(seen)[-12:] == [True] * 12
    page.evaluate("scrollTo(0, 0)")
    until(lambda: page.evaluate(seen)[0])
    assert page.locator(".answer").first.inner_text().startswith("One.")


def test_a_question_without_an_answer_is_left_out_of_what_follows(playground: Playground) -> None:
    """Where its images were too many for the server, every question after it failed as well."""
    page = playground.page
    page.unroute(CHAT)
    page.route(
        CHAT,
        lambda route: route.fulfill(
            status=413,
            content_type="text/html",
            body="<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body></body></html>",
        ),
    )
    playground.ask("First.")
    refused = playground.answer()
    alert = refused.get_by_role("alert")
    assert alert.inner_text() == "A proxy before the server has answered: 413 Request Entity Too Large."
    assert "sent without this one" in refused.inner_text()
    script_text(page, "Fine.")
    playground.ask("Second.")
    assert "sent without" not in playground.answer(2).inner_text()
    playground.ask("Third.")
    playground.answer(3)
    *_, second, third = playground.bodies()
    assert second["messages"] == [{"role": "user", "content": "Second."}]
    assert [each["content"] for each in third["messages"]] == ["Second.", "Fine.", "Third."]


def test_a_question_that_was_stopped_at_once_is_left_out_of_what_follows(playground: Playground) -> None:
    page = playground.page
    held: list[Any] = []
    page.unroute(CHAT)
    page.route(CHAT, lambda route: held.append(route))
    playground.ask("First.")
    until(lambda: bool(page.wait_for_timeout(10) or held))
    page.get_by_role("button", name="Stop").click()
    assert "stopped" in playground.answer().inner_text()
    script_text(page, "Fine.")
    playground.ask("Second.")
    playground.answer(2)
    assert playground.bodies()[-1]["messages"] == [{"role": "user", "content": "Second."}]
