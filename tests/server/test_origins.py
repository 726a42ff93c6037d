"""What web pages may do: names that the server answers to, origins, and what browsers are told of them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from stub_runtime import DIALECTS, QUICK, LocalServer
from toy_dialect import ECHOING, OPEN_TO_ALL, toy

from dragoman.core.errors import DragomanError, Forbidden
from dragoman.dialects import REGISTRY, made_dialects
from dragoman.dialects.api import Cors, Dialect, Operation
from dragoman.server.app import create_app
from dragoman.server.cors import OriginPolicy, Standing, check_dialects, page_headers
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.server.origin_patterns import host_pattern, origin_pattern
from dragoman.server.settings import BrowserSettings

pytestmark = pytest.mark.anyio

KEY = "a-key-that-nobody-guesses"
NO_KEYS = Keyring()
RING = Keyring([hashed(KEY, "ann")])
BEARER = {"authorization": f"Bearer {KEY}"}
AUTO = msgspec.structs.replace(QUICK, dialect="auto", linger_s=0.02)
EVIL = {"origin": "https://evil.example"}
PAGE = {"origin": "https://page.example"}
ASKING = {**PAGE, "access-control-request-method": "POST", "access-control-request-headers": "x-mine"}


@asynccontextmanager
async def asked(
    runtime: LocalServer, *dialects: Dialect, keys: Keyring = NO_KEYS, host: str = "127.0.0.1", **browsers: Any
) -> AsyncIterator[httpx.AsyncClient]:
    settings = msgspec.structs.replace(AUTO, host=host)
    app = create_app(
        runtime.serving, settings, dialects=dialects or (toy("north"),), keys=keys, browsers=BrowserSettings(**browsers)
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


# Names ---------------------------------------------------------------------------------------------------------------


OWN_NAMES = (
    "localhost localhost:8000 LOCALHOST localhost. app.localhost:3000 127.0.0.1 127.0.0.1:8000 192.168.1.7:8000 "
    "10.0.0.3 0.0.0.0:8000 [::1] [::1]:8000 [fe80::1]:80 [fe80::1%25eth0]:80"
)
OTHER_NAMES = (
    "evil.example evil.example:8000 localhost.evil.example evillocalhost 127.0.0.1.evil.example 127.1 2130706433 "
    "0x7f.1 myhost :8000 [::1 [localhost] [] 127.0.0.1:8000:1 localhost:80@evil.example localhost/x"
)
NO_NAMES = ("", "a b", "local\xa0host", "\xff", "x" * 400)


async def test_a_server_without_keys_answers_to_names_of_its_own_machine(runtime: LocalServer) -> None:
    async with asked(runtime) as client:
        for name in OWN_NAMES.split():
            assert (await client.get("/who", headers={"host": name})).status_code == 200, name


async def test_a_server_without_keys_answers_to_no_other_name(runtime: LocalServer) -> None:
    async with asked(runtime) as client:
        for name in (*OTHER_NAMES.split(), *NO_NAMES):
            for method, path in (("GET", "/who"), ("POST", "/echo"), ("OPTIONS", "/echo"), ("DELETE", "/who")):
                answer = await client.request(method, path, headers={"host": name.encode("latin-1")})
                assert answer.status_code == 403, (name, method, path)


async def test_the_refusal_of_a_name_says_which_option_allows_it(runtime: LocalServer) -> None:
    async with asked(runtime, *DIALECTS) as client:
        for dialect in DIALECTS:
            path = dialect.operations[0].path.partition("{")[0]
            answer = await client.post(f"/{dialect.name}{path}", headers={"host": "box.lan:8000"})
            assert answer.status_code == 403
            assert "--allow-host box.lan " in answer.text, dialect.name


async def test_the_refusal_repeats_no_markup(runtime: LocalServer) -> None:
    async with asked(runtime, *DIALECTS) as client:
        answer = await client.get("/openai/v1/models", headers={"host": "<script>alert(1)</script>"})
        assert answer.status_code == 403
        assert "<" not in answer.text


@pytest.mark.parametrize(
    ("allowed", "name", "status"),
    [
        ("llm.example.org", "llm.example.org:8000", 200),
        ("LLM.example.org", "llm.EXAMPLE.org", 200),
        ("llm.example.org", "other.example.org", 403),
        ("*.example.org", "a.b.example.org", 200),
        ("*.example.org", "example.org", 403),
        ("*.example.org", "evilexample.org", 403),
        ("*", "anything.at.all", 200),
    ],
)
async def test_an_operator_allows_names(runtime: LocalServer, allowed: str, name: str, status: int) -> None:
    async with asked(runtime, allow_host=(allowed,)) as client:
        assert (await client.get("/who", headers={"host": name})).status_code == status
        assert (await client.get("/who")).status_code == 200


async def test_the_name_that_a_server_is_bound_to_is_its_own(runtime: LocalServer) -> None:
    async with asked(runtime, host="box.lan") as client:
        assert (await client.get("/who", headers={"host": "box.lan:8000"})).status_code == 200
        assert (await client.get("/who", headers={"host": "other.lan:8000"})).status_code == 403


async def test_with_keys_names_count_only_where_some_are_given(runtime: LocalServer) -> None:
    named = {**BEARER, "host": "anything.example"}
    async with asked(runtime, keys=RING) as client:
        assert (await client.get("/who", headers=named)).status_code == 200
    async with asked(runtime, keys=RING, allow_host=("llm.example.org",)) as client:
        assert (await client.get("/who", headers=named)).status_code == 403
        assert (await client.get("/who", headers={**named, "host": "llm.example.org"})).status_code == 200


@pytest.mark.parametrize("text", ["https://a.example", "a.example:80", "", "a..b", "*a.example", "a.*", "a b", "/"])
def test_what_is_no_name_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(DragomanError, match="--allow-host"):
        host_pattern(text)


# Origins -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "origin", "fits"),
    [
        ("https://example.org", "https://example.org", True),
        ("https://Example.org:443", "https://example.org", True),
        ("https://example.org", "http://example.org", False),
        ("https://example.org", "https://example.org:8443", False),
        ("https://example.org", "https://example.org.evil.example", False),
        ("http://localhost:*", "http://localhost:3000", True),
        ("http://localhost:*", "http://localhost", True),
        ("http://localhost:*", "http://localhost.evil.example:3000", False),
        ("http://localhost:*", "https://localhost:3000", False),
        ("http://[::1]:*", "http://[::1]:3000", True),
        ("https://*.example.org", "https://a.b.example.org", True),
        ("https://*.example.org", "https://example.org", False),
        ("https://*.example.org", "https://evil.example/.example.org", False),
        ("https://*.example.org", "https://u@.example.org", False),
        ("app://*", "app://obsidian.md", True),
        ("app://*", "app://-", True),
        ("chrome-extension://*", "chrome-extension://abcdefgh", True),
        ("null", "null", True),
        ("https://example.org", "null", False),
        ("*", "null", True),
    ],
)
def test_patterns_of_origins(pattern: str, origin: str, fits: bool) -> None:
    assert bool(origin_pattern(pattern).fullmatch(origin)) is fits


@pytest.mark.parametrize(
    "text",
    ["example.org", "https://example.org/", "https://example.org/path", "https://", "*://a", "https://a:b", "**"],
)
def test_what_is_no_origin_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(DragomanError, match="--cors-origin"):
        origin_pattern(text)


@pytest.mark.parametrize(
    ("name", "setting", "option"),
    [
        ("ollama", "ollama_origins", "--ollama-origins"),
        ("llamacpp", "llamacpp_origins", "--llamacpp-origins"),
        ("locallab", "locallab_cors_origins", "--locallab-cors-origins"),
        ("tgi", "cors_allow_origin", "--cors-allow-origin"),
    ],
)
def test_what_is_no_origin_is_refused_by_the_option_that_it_was_given_to(name: str, setting: str, option: str) -> None:
    (settings_type,) = (each.settings_type for each in REGISTRY if each.name == name)
    with pytest.raises(DragomanError, match=f"^{option} '': an origin is a scheme and a host"):
        check_dialects(made_dialects({name: settings_type(**{setting: ("",)})}))


def standing(policy: OriginPolicy, cors: Cors | None = None, **headers: str) -> Standing:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return policy.standing(page_headers(raw), cors)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, Standing.OWN),
        ({"host": "localhost:8000"}, Standing.OWN),
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, Standing.OWN),
        ({"host": "localhost:80", "origin": "http://localhost"}, Standing.OWN),
        ({"host": "llm.example.org", "origin": "https://llm.example.org"}, Standing.OWN),
        ({"host": "localhost:8000", "sec_fetch_site": "same-origin"}, Standing.OWN),
        ({"host": "localhost:8000", "sec_fetch_site": "none"}, Standing.OWN),
        # A page on another port of the same machine is another page.
        ({"host": "localhost:8000", "origin": "http://localhost:3000"}, Standing.FOREIGN),
        ({"host": "localhost:8000", "origin": "http://localhost"}, Standing.FOREIGN),
        ({"host": "127.0.0.1:8000", "origin": "http://localhost:8000"}, Standing.FOREIGN),
        ({"host": "localhost:8000", "origin": "https://evil.example"}, Standing.FOREIGN),
        # Of a sandboxed frame, a file, or with `referrerpolicy=no-referrer`.
        ({"host": "localhost:8000", "origin": "null"}, Standing.FOREIGN),
        ({"host": "localhost:8000", "origin": ""}, Standing.FOREIGN),
        ({"origin": "http://localhost:8000"}, Standing.FOREIGN),
        ({"host": "", "origin": "http://"}, Standing.FOREIGN),
        ({"host": "localhost:8000", "sec_fetch_site": "cross-site"}, Standing.FOREIGN),
        ({"host": "localhost:8000", "sec_fetch_site": "same-site"}, Standing.FOREIGN),
        # The same name over plain HTTP, which anybody on the way may have written.
        (
            {"host": "llm.example.org", "origin": "http://llm.example.org", "sec_fetch_site": "cross-site"},
            Standing.FOREIGN,
        ),
        ({"host": "localhost:8000", "origin": "https://" + "a" * 70_000}, Standing.FOREIGN),
        ({"host": "localhost:8000", "origin": "https://page.example", "sec_fetch_site": "cross-site"}, Standing.NAMED),
        ({"host": "localhost:8000", "origin": "HTTPS://PAGE.example"}, Standing.NAMED),
    ],
)
def test_whose_page_it_is(headers: dict[str, str], found: Standing) -> None:
    policy = OriginPolicy(BrowserSettings(cors_origin=("https://page.example",)))
    assert standing(policy, **headers) is found
    assert standing(policy, **headers) is found


def test_an_origin_of_one_dialect_is_none_of_another() -> None:
    policy = OriginPolicy(BrowserSettings())
    page = {"host": "localhost", "origin": "https://page.example"}
    assert standing(policy, Cors(origins=("https://*.example",)), **page) is Standing.NAMED
    assert standing(policy, Cors(origins=("*",)), **page) is Standing.ANY
    assert standing(policy, Cors(), **page) is Standing.FOREIGN
    assert standing(policy, None, **page) is Standing.FOREIGN


def test_a_contract_that_lets_everybody_in_is_followed_only_where_there_are_keys() -> None:
    page = {"host": "localhost", "origin": "https://page.example"}
    for keys, origins, found in (
        (False, (), Standing.FOREIGN),
        (True, (), Standing.ANY),
        (True, ("https://other.example",), Standing.FOREIGN),
    ):
        policy = OriginPolicy(BrowserSettings(cors_origin=origins), has_keys=keys)
        assert standing(policy, OPEN_TO_ALL, **page) is found


def test_a_check_costs_less_than_a_few_microseconds() -> None:
    policy = OriginPolicy(BrowserSettings(cors_origin=("https://page.example", "http://localhost:*")))
    raw = [(b"host", b"localhost:8000"), (b"accept", b"*/*"), (b"content-type", b"application/json")]
    raw += [(b"user-agent", b"x" * 60), (b"origin", b"http://localhost:3000"), (b"content-length", b"200")]
    best = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(100):
            page = page_headers(raw)
            policy.check_host(page)
            policy.check_request(page, OPEN_TO_ALL, method="POST", scope="infer", needs_key=False)
        best = min(best, (time.perf_counter() - began) / 100)
    assert best < 20e-6


# What pages may do ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [EVIL, {"origin": "null"}, {"sec-fetch-site": "cross-site"}])
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/json", None])
async def test_a_foreign_page_changes_and_generates_nothing(
    runtime: LocalServer, headers: dict[str, str], kind: str | None
) -> None:
    more = {} if kind is None else {"content-type": kind}
    async with asked(runtime, toy("north", cors=ECHOING)) as client:
        for path in ("/echo", "/north/echo", "/north/generate-it", "/north/admin"):
            answer = await client.post(path, content=b'{"text": "a"}', headers=headers | more)
            assert (answer.status_code, answer.json()) == (403, {"north": "Forbidden"})
            assert "access-control-allow-origin" not in answer.headers
    assert runtime.engine.requests == []


async def test_a_foreign_page_may_send_what_changes_nothing_and_reads_no_answer(runtime: LocalServer) -> None:
    async with asked(runtime, toy("north", cors=ECHOING)) as client:
        answer = await client.get("/who", headers=EVIL)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-")]
        assert answer.headers["vary"] == "origin"


async def test_the_refusal_says_which_option_allows_the_page(runtime: LocalServer) -> None:
    async with asked(runtime, *DIALECTS) as client:
        for path in ("/v1/chat/completions", "/generate", "/tgi/generate", "/locallab/chat", "/api/generate-one"):
            answer = await client.post(path, json={}, headers=EVIL)
            assert answer.status_code == 403
            assert "--cors-origin https://evil.example " in answer.text, path
            preflight = await client.options(path, headers={**EVIL, "access-control-request-method": "POST"})
            assert preflight.status_code == 403
            assert "--cors-origin https://evil.example " in preflight.text, path


async def test_a_page_of_the_servers_own_may_do_all(runtime: LocalServer) -> None:
    own = {"host": "localhost:8000", "origin": "http://localhost:8000", "sec-fetch-site": "same-origin"}
    async with asked(runtime) as client:
        assert (await client.post("/north/admin", json={"text": "a"}, headers=own)).json() == {"north": "a"}


@pytest.mark.parametrize("pattern", ["https://page.example", "https://*.example", "https://page.example:*"])
async def test_a_page_that_the_operator_names_may_do_all(runtime: LocalServer, pattern: str) -> None:
    async with asked(runtime, toy("north"), cors_origin=(pattern, "http://localhost:*")) as client:
        for path in ("/north/echo", "/north/admin"):
            preflight = await client.options(path, headers=ASKING)
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == PAGE["origin"]
            assert preflight.headers["access-control-allow-methods"] == "POST"
            assert preflight.headers["access-control-allow-headers"] == "x-mine"
            assert "origin" in preflight.headers["vary"]
            answer = await client.post(path, json={"text": "a"}, headers=PAGE)
            assert answer.json() == {"north": "a"}
            assert answer.headers["access-control-allow-origin"] == PAGE["origin"]
            exposed = answer.headers["access-control-expose-headers"].split(",")
            assert {"content-type", "x-request-id"} <= {*exposed}
        refused = await client.post("/north/echo", json={"text": "a"}, headers=EVIL | {"origin": "https://evil.test"})
        assert refused.status_code == 403


async def test_every_page_may_generate_where_the_operator_says_so_and_none_administers(runtime: LocalServer) -> None:
    async with asked(runtime, toy("north", cors=ECHOING), cors_origin=("*",)) as client:
        answer = await client.post("/north/echo", json={"text": "a"}, headers=PAGE)
        assert answer.json() == {"north": "a"}
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers
        assert (await client.post("/north/admin", json={"text": "a"}, headers=PAGE)).status_code == 403
        assert (await client.options("/north/admin", headers=ASKING)).status_code == 403


@pytest.mark.parametrize("origins", [("*",), ("https://page.example",)])
async def test_credentials_go_with_no_origin_but_a_named_one(runtime: LocalServer, origins: tuple[str, ...]) -> None:
    named = origins != ("*",)
    async with asked(runtime, toy("north", cors=ECHOING), cors_origin=origins) as client:
        for answer in (
            await client.options("/echo", headers=ASKING),
            await client.get("/who", headers=PAGE),
            await client.get("/who"),
        ):
            credentials = "access-control-allow-credentials" in answer.headers
            assert credentials is (named and answer.headers.get("access-control-allow-origin") == PAGE["origin"])
            if credentials:
                assert answer.headers["access-control-allow-origin"] != "*"


async def test_a_dialect_says_methods_headers_and_for_how_long(runtime: LocalServer) -> None:
    async with asked(runtime, toy("north", cors=OPEN_TO_ALL), cors_origin=("*",)) as client:
        preflight = await client.options("/echo", headers=ASKING)
        assert (preflight.status_code, preflight.content) == (200, b"")
        assert preflight.headers["access-control-allow-origin"] == "*"
        assert preflight.headers["access-control-allow-methods"] == "GET,POST"
        assert preflight.headers["access-control-allow-headers"] == "content-type,authorization,idempotency-key"
        for headers in ({}, PAGE):
            for path in ("/who", "/north/nothing"):
                answer = await client.get(path, headers=headers)
                assert answer.headers["access-control-allow-origin"] == "*", path
                assert answer.headers["vary"] == "origin, x-asked"
    async with asked(runtime, toy("north", cors=ECHOING), cors_origin=("https://page.example",)) as client:
        preflight = await client.options("/echo", headers=ASKING)
        assert (preflight.status_code, preflight.text) == (200, "OK")
        assert preflight.headers["access-control-max-age"] == "600"


async def test_a_page_that_may_call_may_call_into_a_private_network(runtime: LocalServer) -> None:
    asking = {**ASKING, "access-control-request-private-network": "true"}
    async with asked(runtime, cors_origin=("https://page.example",)) as client:
        preflight = await client.options("/echo", headers=asking)
        assert preflight.headers["access-control-allow-private-network"] == "true"
        refused = await client.options("/echo", headers={**asking, **EVIL})
        assert refused.status_code == 403
        assert "access-control-allow-private-network" not in refused.headers


async def test_without_origins_nothing_is_said(runtime: LocalServer) -> None:
    async with asked(runtime) as client:
        assert not [name for name in (await client.get("/who", headers=PAGE)).headers if name.startswith("access-")]
        unknown = await client.options("/who", headers={**ASKING, "access-control-request-method": "PUT"})
        assert (unknown.status_code, unknown.headers["allow"]) == (405, "GET, HEAD")


async def test_a_page_with_a_key_works_where_it_is_allowed(runtime: LocalServer) -> None:
    """A key never travels by itself: who has it may call, and where the page may read the answer is the operator's."""
    for browsers, origin in ((("https://page.example",), PAGE["origin"]), (("*",), "*"), ((), None)):
        async with asked(runtime, toy("north"), keys=RING, cors_origin=browsers) as client:
            preflight = await client.options("/north/echo", headers=ASKING)
            assert preflight.status_code == (403 if origin is None else 200)
            answer = await client.post("/north/echo", json={"text": "a"}, headers=PAGE | BEARER)
            assert answer.json() == {"north": "a"}
            assert answer.headers.get("access-control-allow-origin") == origin
            without = await client.post("/north/echo", json={"text": "a"}, headers=PAGE)
            assert without.status_code == 401
            assert without.headers.get("access-control-allow-origin") == origin


async def test_a_foreign_page_administers_nothing_even_with_a_key(runtime: LocalServer) -> None:
    async with asked(runtime, toy("north", cors=ECHOING), keys=RING) as client:
        body = {"text": "a"}
        assert (await client.post("/north/admin", json=body, headers=EVIL | BEARER)).status_code == 403
        assert (await client.post("/north/admin", json=body, headers=BEARER)).status_code == 200
    async with asked(runtime, toy("north"), keys=RING, cors_origin=("https://page.example",)) as client:
        assert (await client.post("/north/admin", json=body, headers=PAGE | BEARER)).status_code == 200


# All operations ------------------------------------------------------------------------------------------------------


BODY = {
    "inputs": "Once",
    "prompt": "Once",
    "request_id": "r",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 2,
    "instructions": "obey",
    "model_id": "stub",
    "model": "stub",
}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_no_operation_serves_a_foreign_page_or_name(runtime: LocalServer, dialect: Dialect) -> None:
    async with asked(runtime, *DIALECTS) as client:
        for operation in dialect.operations:
            path = operation.path.replace("{", "").replace("}", "").replace(":path", "")
            for where in (f"/{dialect.name}{path}", path):
                await check_operation(client, operation, where)
    # TGI's health check generates a token of its own.
    assert [request for request in runtime.engine.requests if "health" not in request.request_id] == []


async def check_operation(client: httpx.AsyncClient, operation: Operation, where: str) -> None:
    """Neither a page elsewhere nor one that has rebound its own name is served, whatever type its body says it has."""
    content = b"" if operation.method == "GET" else msgspec.json.encode(BODY)
    for kind in ("application/json", "text/plain"):
        rebound = {"host": "evil.example:8000", "content-type": kind}
        answer = await client.request(operation.method, where, headers=rebound, content=content)
        assert (answer.status_code, "--allow-host" in answer.text) == (403, True), where
        foreign = {**EVIL, "sec-fetch-site": "cross-site", "content-type": kind}
        answer = await client.request(operation.method, where, headers=foreign, content=content)
        assert "access-control-allow-origin" not in answer.headers, where
        if operation.method != "GET" or operation.scope == "admin":
            assert (answer.status_code, "--cors-origin" in answer.text) == (403, True), where
    answer = await client.options(where, headers={**EVIL, "access-control-request-method": operation.method})
    assert answer.status_code == 403, where
    assert "access-control-allow-origin" not in answer.headers, where


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/nowhere"), ("POST", "/nowhere"), ("POST", "/openai/nowhere"), ("DELETE", "/v1/models"), ("PUT", "/x/y")],
)
async def test_a_page_elsewhere_does_not_learn_which_paths_and_methods_there_are(
    runtime: LocalServer, method: str, path: str
) -> None:
    async with asked(runtime, *DIALECTS) as client:
        unknown = (await client.request(method, path)).status_code
        assert unknown in (404, 405)
        rebound = await client.request(method, path, headers={"host": "evil.example:8000"})
        assert (rebound.status_code, "--allow-host" in rebound.text) == (403, True)
        foreign = await client.request(method, path, headers={**EVIL, "sec-fetch-site": "cross-site"})
        assert foreign.status_code == (unknown if method == "GET" else 403)
        assert "access-control-allow-origin" not in foreign.headers
        preflight = await client.options(path, headers={**EVIL, "access-control-request-method": method})
        assert not preflight.is_success
    async with asked(runtime, *DIALECTS, cors_origin=("https://page.example",)) as client:
        assert (await client.request(method, path, headers=PAGE)).status_code == unknown


async def test_where_names_are_not_checked_an_unknown_path_is_unknown(runtime: LocalServer) -> None:
    async with asked(runtime, keys=RING) as client:
        answer = await client.post("/nowhere", headers={**EVIL, "host": "anything.example"})
        assert answer.status_code == 404
    async with asked(runtime, keys=RING, allow_host=("llm.example.org",)) as client:
        assert (await client.post("/nowhere", headers={"host": "anything.example"})).status_code == 403


@pytest.mark.parametrize("model", ["stub", "another"])
async def test_every_page_may_generate_and_loads_no_model_by_naming_it(runtime: LocalServer, model: str) -> None:
    """LocalLab's /generate loads the model that it names, for callers who may."""
    body = {"prompt": "Once", "max_length": 2, "model_id": model}
    async with asked(runtime, *DIALECTS, cors_origin=("*",)) as client:
        answer = await client.post("/locallab/generate", json=body, headers=EVIL)
        assert answer.status_code == (200 if model == "stub" else 404)


async def test_a_pattern_of_a_dialect_is_checked_at_the_start(runtime: LocalServer) -> None:
    with pytest.raises(DragomanError, match="an origin is"):
        create_app(runtime.serving, AUTO, dialects=(toy("north", cors=Cors(origins=("page.example",))),))


def test_requests_without_a_host_are_no_browsers() -> None:
    OriginPolicy(BrowserSettings()).check_host(page_headers([]))
    with pytest.raises(Forbidden):
        OriginPolicy(BrowserSettings()).check_host(page_headers([(b"host", b"evil.example")]))
