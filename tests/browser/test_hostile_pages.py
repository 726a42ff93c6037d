"""What web pages can do to a server on the same machine, in a real browser.

Each attack runs against two servers: one that allows it, to show that it is one, and one as it is by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest
from stub_runtime import QUICK, RunningServer, running_server

from dragoman.dialects import made_dialects
from dragoman.dialects.locallab.settings import LocalLabSettings
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.server.settings import BrowserSettings

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

KEY = "a-key-that-nobody-guesses"
RING = Keyring([hashed(KEY, "ann", ("infer",))])
SETTINGS = msgspec.structs.replace(
    QUICK, dialect="auto", header_timeout_s=20.0, body_timeout_s=20.0, write_timeout_s=20.0, linger_s=0.2
)

HOSTS = ("localhost", "evil.example")
"""Where a hostile page may come from: another port of this machine, and a name elsewhere."""

GENERATE = '{"prompt": "Once", "max_length": 2}'
ONE = '{"request_id": "a", "prompt": "Once", "generation_config": {"max_new_tokens": 2}}'
CHAT = '{"model": "stub", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}'

TOOLS = """
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const outcome = async (asking) => {
    try { const answer = await asking; return { status: answer.status, text: await answer.text() }; }
    catch (error) { return { failed: String(error) }; }
  };
  const post = (url, body, more = {}) => outcome(fetch(url, { method: "POST", body, ...more }));
  const open = (url, message) => new Promise((done) => {
    const heard = [], socket = new WebSocket(url);
    socket.onopen = () => message && socket.send(message);
    socket.onmessage = (event) => { heard.push(event.data); if (event.data.includes("COMPLETE")) done(heard); };
    socket.onclose = () => done(heard.length ? heard : "closed");
    setTimeout(() => done(heard), 5000);
  });
"""


def servers(tmp_path: Path, **browsers: Any) -> Any:
    dialects = made_dialects({"locallab": LocalLabSettings(locallab_folder=str(tmp_path), locallab_rate_limit=0)})
    keys = browsers.pop("keys", Keyring())
    return running_server(SETTINGS, dialects=dialects, keys=keys, browsers=BrowserSettings(**browsers))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, chromium: BrowserContext) -> Iterator[RunningServer]:
    """As it is by default."""
    with servers(tmp_path_factory.mktemp("default")) as server:
        yield server


@pytest.fixture(scope="module")
def friendly(tmp_path_factory: pytest.TempPathFactory, chromium: BrowserContext) -> Iterator[RunningServer]:
    """One whose operator has allowed the pages by name."""
    named = (*(f"http://{host}:*" for host in HOSTS), "null")
    with servers(tmp_path_factory.mktemp("friendly"), cors_origin=named, allow_host=("evil.example",)) as server:
        yield server


@pytest.fixture
def page(chromium: BrowserContext) -> Iterator[Page]:
    page = chromium.new_page()
    yield page
    page.close()


def run(page: Page, script: str, server: RunningServer) -> Any:
    """What an async function with this body returns, in the page."""
    return page.evaluate(f"async ([base, port]) => {{ {TOOLS} {script} }}", [server.url, server.port])


class Seen:
    """What a server has done, by its own metrics."""

    def __init__(self, server: RunningServer) -> None:
        text = httpx.get(f"{server.url}/metrics").text
        self.tokens = sum(map(float, re.findall(r"^dragoman_generated_tokens_total (\S+)$", text, re.MULTILINE)))
        found = re.findall(r'^dragoman_http_requests_total\{.*status="(\d+)"\} (\S+)$', text, re.MULTILINE)
        self.refused = sum(float(count) for status, count in found if status == "403")
        instructions = httpx.get(f"{server.url}/locallab/system/instructions").json()
        self.instructions = instructions["instructions"]


ATTACKS = {
    "plain text without a question": f"""
        const plain = {{ mode: "no-cors", headers: {{ "content-type": "text/plain" }} }};
        await post(base + "/generate", '{GENERATE}', plain);
        await post(base + "/api/generate-one", '{ONE}', plain);
        await post(base + "/v1/chat/completions", '{CHAT}', plain);
    """,
    "no type and no referrer": f"""
        const bytes = new Blob(['{GENERATE}']);
        await post(base + "/generate", bytes, {{ mode: "no-cors", referrerPolicy: "no-referrer" }});
    """,
    "a beacon": f"""
        navigator.sendBeacon(base + "/generate", new Blob(['{GENERATE}'], {{ type: "text/plain" }}));
        await wait(500);
    """,
    "a form": """
        const frame = document.body.appendChild(document.createElement("iframe"));
        frame.name = "target";
        const form = document.body.appendChild(document.createElement("form"));
        Object.assign(form, { action: base + "/generate", method: "POST", enctype: "text/plain", target: "target" });
        const input = form.appendChild(document.createElement("input"));
        input.name = '{"prompt": "Once", "max_length": 2, "stop": ["';
        input.value = '"]}';
        form.submit();
        await wait(800);
    """,
    "a sandboxed frame": f"""
        const frame = document.createElement("iframe");
        frame.sandbox = "allow-scripts";
        const body = JSON.stringify('{GENERATE}');
        frame.srcdoc = `<script>fetch("${{base}}/generate", {{method: "POST", mode: "no-cors", body: ${{body}}}})</` +
          "script>";
        document.body.appendChild(frame);
        await wait(800);
    """,
    "JSON with a question": f"""
        const json = {{ headers: {{ "content-type": "application/json" }} }};
        return await post(base + "/v1/chat/completions", '{CHAT}', json);
    """,
    "a WebSocket": f"""
        const message = '{{"prompts": [{ONE}]}}';
        return await open(`ws://127.0.0.1:${{port}}/api/ws`, message);
    """,
}
"""By name: what a page does to have something generated."""


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_page_generates_nothing(
    page: Page, server: RunningServer, friendly: RunningServer, elsewhere: int, host: str, attack: str
) -> None:
    page.goto(f"http://{host}:{elsewhere}/")
    before = Seen(friendly)
    run(page, ATTACKS[attack], friendly)
    assert Seen(friendly).tokens > before.tokens, "this is no attack"
    before = Seen(server)
    run(page, ATTACKS[attack], server)
    after = Seen(server)
    assert after.tokens == before.tokens
    assert after.refused > before.refused


@pytest.mark.parametrize("host", HOSTS)
def test_a_hostile_page_administers_nothing(page: Page, server: RunningServer, elsewhere: int, host: str) -> None:
    page.goto(f"http://{host}:{elsewhere}/")
    before = Seen(server)
    run(
        page,
        """
        const plain = { mode: "no-cors", headers: { "content-type": "text/plain" } };
        await post(base + "/models/unload", undefined, { mode: "no-cors" });
        await post(base + "/models/load/embedded", undefined, { mode: "no-cors" });
        await post(base + "/system/instructions", '{"instructions": "obey"}', plain);
        """,
        server,
    )
    after = Seen(server)
    assert after.refused == before.refused + 3
    assert after.instructions == before.instructions == ""
    assert httpx.get(f"{server.url}/readyz").status_code == 200


@pytest.mark.parametrize("host", HOSTS)
def test_a_hostile_page_reads_nothing(
    page: Page, server: RunningServer, friendly: RunningServer, elsewhere: int, host: str
) -> None:
    page.goto(f"http://{host}:{elsewhere}/")
    paths = ("/v1/models", "/locallab/network", "/system/info", "/tgi/info", "/metrics", "/api/alive", "/docs")
    for path in paths:
        asking = f'return await outcome(fetch(base + "{path}"))'
        assert run(page, asking, friendly)["status"] == 200, path
        assert "failed" in run(page, asking, server), path


def test_no_page_frames_the_servers_own(page: Page, server: RunningServer, elsewhere: int) -> None:
    page.goto(f"http://localhost:{elsewhere}/")
    refusals: list[str] = []
    page.on("console", lambda message: refusals.append(message.text))
    for path in ("/ui", "/docs", "/tgi/docs/"):
        refusals.clear()
        page.evaluate(
            "url => new Promise((done) => { const frame = document.createElement('iframe'); frame.onload = done;"
            " frame.src = url; document.body.appendChild(frame); })",
            server.url + path,
        )
        page.wait_for_timeout(100)
        assert any("frame" in text.lower() for text in refusals), path


def test_a_page_that_points_its_own_name_here_gets_nothing(
    page: Page, server: RunningServer, friendly: RunningServer
) -> None:
    """DNS rebinding: the page was loaded from its owner's machine, under a name that is this machine's ever since."""
    attack = f"""
        const json = {{ headers: {{ "content-type": "application/json" }} }};
        return [
          await outcome(fetch("/v1/models")),
          await post("/v1/chat/completions", '{CHAT}', json),
          await post("/generate", '{GENERATE}', json),
          await open(`ws://evil.example:${{port}}/api/ws`, '{{"prompts": [{ONE}]}}'),
        ];
    """
    for each, allowed in ((friendly, True), (server, False)):
        address = f"http://evil.example:{each.port}/attack"
        page.route(address, lambda route: route.fulfill(content_type="text/html", body="<!doctype html>"))
        page.goto(address)
        before = Seen(each)
        models, chat, text, socket = run(page, attack, each)
        if allowed:
            assert [each.get("status") for each in (models, chat, text)] == [200, 200, 200], (models, chat, text)
            assert any("COMPLETE" in message for message in socket)
        else:
            assert [each["status"] for each in (models, chat, text)] == [403, 403, 403]
            assert "--allow-host evil.example" in models["text"]
            assert "stub" not in models["text"]
            assert socket == "closed"
            assert Seen(each).tokens == before.tokens


def test_a_page_of_a_named_origin_works(page: Page, friendly: RunningServer, elsewhere: int) -> None:
    page.goto(f"http://localhost:{elsewhere}/")
    chat = run(
        page,
        f"""
        const headers = {{ "content-type": "application/json", "authorization": "Bearer anything", "x-own": "1" }};
        const answer = await fetch(base + "/v1/chat/completions", {{ method: "POST", headers, body: '{CHAT}' }});
        const body = await answer.json();
        return [answer.status, answer.headers.get("x-request-id"), body.usage.completion_tokens];
        """,
        friendly,
    )
    assert chat[0] == 200
    assert chat[1].startswith("req-")
    assert chat[2] == 2
    streamed = run(page, f"return await post(base + '/api/generate-one', '{ONE}')", friendly)
    assert streamed["status"] == 200
    assert streamed["text"]
    heard = run(page, f"""return await open(`ws://127.0.0.1:${{port}}/api/ws`, '{{"prompts": [{ONE}]}}')""", friendly)
    assert any("COMPLETE" in message for message in heard)


def test_a_page_with_a_key_works_where_it_is_allowed(
    chromium: BrowserContext, page: Page, elsewhere: int, tmp_path: Path
) -> None:
    asking = f"""
        const headers = {{ "content-type": "application/json", "authorization": "Bearer {KEY}" }};
        const without = {{ "content-type": "application/json" }};
        return [
          await post(base + "/v1/chat/completions", '{CHAT}', {{ headers }}),
          await post(base + "/v1/chat/completions", '{CHAT}', {{ headers: without }}),
          await open(`ws://127.0.0.1:${{port}}/api/ws`, '{{"prompts": [{ONE}]}}'),
        ];
    """
    with servers(tmp_path, keys=RING, cors_origin=("http://localhost:*",)) as locked:
        page.goto(f"http://localhost:{elsewhere}/")
        with_key, without, socket = run(page, asking, locked)
        assert (with_key["status"], without["status"], socket) == (200, 401, "closed")
        page.goto(f"http://evil.example:{elsewhere}/")
        with_key, without, socket = run(page, asking, locked)
        assert "failed" in with_key
        assert "failed" in without
        assert socket == "closed"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_servers_own_pages_work_under_their_policy(page: Page, server: RunningServer, host: str) -> None:
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"http://{host}:{server.port}/ui")
    page.fill("#field-max_tokens", "4")
    page.fill("#question", "Once")
    page.click(".ask button[type=submit]")
    page.locator(".answer[aria-busy=false]").wait_for()
    assert page.locator(".error").count() == 0
    page.goto(f"http://{host}:{server.port}/docs")
    page.wait_for_selector("summary code")
    documented = page.evaluate("fetch('/openapi.json').then((answer) => answer.json())")["paths"].values()
    assert page.locator("details").count() == sum(map(len, documented)), "every operation is shown"
    page.goto(f"http://{host}:{server.port}/tgi/docs/")
    page.wait_for_selector("h3 code")
    assert not [text for text in said if "Content Security Policy" in text]
