"""Whose request it is behind proxies: what they say counts, and nothing else."""

from __future__ import annotations

import logging

import httpx
import msgspec
import pytest
from sockets import until
from stub_runtime import LONG, QUICK, running_server
from toy_dialect import toy
from websockets.sync.client import connect

from dragoman.core.errors import DragomanError
from dragoman.server.proxies import MAX_FORWARDED_BYTES, MAX_HOPS, MAX_PREFIX, TrustedProxies
from dragoman.server.settings import NetworkSettings

PROXIES = ("10.0.0.0/8", "127.0.0.1", "2001:db8::/32")


def client(value: str, header: str = "x-forwarded-for") -> str:
    proxies = TrustedProxies(PROXIES, header)  # type: ignore[arg-type]
    return proxies.client("10.0.0.1", [(b"host", b"t"), (header.encode(), value.encode())])


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),  # the first may be an invention
        ("203.0.113.7, 10.1.2.3, 2001:db8::5", "203.0.113.7"),
        ("10.1.2.3, 10.1.2.4", "10.1.2.3"),  # all of them ours: the farthest
        ("203.0.113.7:4711", "203.0.113.7"),
        ("[2001:470::9]:4711", "2001:470::9"),
        ("2001:470::9", "2001:470::9"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("203.0.113.7, unknown", "10.0.0.1"),
        ("203.0.113.7, _hidden, 10.9.9.9", "10.9.9.9"),
        ("", "10.0.0.1"),
        (", ,", "10.0.0.1"),
        ("6.6.6.6, " * 100_000 + "203.0.113.7", "203.0.113.7"),
        ("10.0.0.9, " * 1000 + "10.0.0.2", "10.0.0.9"),
    ],
)
def test_the_nearest_address_that_is_no_proxys(value: str, found: str) -> None:
    assert client(value) == found


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("for=203.0.113.7", "203.0.113.7"),
        ('for=6.6.6.6, For="[2001:470::9]:4711";proto=https;by=10.0.0.1', "2001:470::9"),
        ("for=203.0.113.7, for=10.2.2.2 ; proto=http", "203.0.113.7"),
        ("for=203.0.113.7, proto=https", "10.0.0.1"),
        ("for=unknown", "10.0.0.1"),
        # A client's open quotation mark takes the proxy's words into a string.
        ('for=6.6.6.6;x=", for="[2001:470::9]"', "10.0.0.1"),
        ('for=6.6.6.6;x="\\, for=203.0.113.7', "10.0.0.1"),
        ("for=6.6.6.6;;, ;for", "10.0.0.1"),
        # Parsing takes 0.6 µs a byte: what a client adds must not hold up the others.
        ("a=b, " * (MAX_HOPS - 1) + "for=203.0.113.7", "203.0.113.7"),
        ("a=b, " * MAX_HOPS + "for=203.0.113.7", "10.0.0.1"),
        ("for=6.6.6.6;" + "a=b;" * MAX_FORWARDED_BYTES + "c=d, for=203.0.113.7", "10.0.0.1"),
    ],
)
def test_the_standards_header_is_understood(value: str, found: str) -> None:
    assert client(value, "forwarded") == found


def test_the_header_that_the_proxies_do_not_write_is_not_read() -> None:
    proxies = TrustedProxies(PROXIES)
    assert proxies.client("10.0.0.1", [(b"forwarded", b"for=6.6.6.6")]) == "10.0.0.1"
    assert proxies.scheme([(b"forwarded", b"proto=https")]) is None
    assert proxies.scheme([(b"x-forwarded-proto", b"http, https")]) == "https"
    assert TrustedProxies((), "forwarded").scheme([(b"forwarded", b"for=a;proto=https")]) == "https"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("/llm", "/llm"),
        ("/llm/", "/llm"),
        ("/a/b-c_d.e~f/%20", "/a/b-c_d.e~f/%20"),
        ("/of-a-client, /llm", "/llm"),
        ("/", ""),
        ("", ""),
        ("llm", ""),
        ("//evil.example", ""),
        ("/a b", ""),
        ("/a?b", ""),
        ("/é", ""),
        ("/" + "a" * MAX_PREFIX, ""),
    ],
)
def test_the_path_that_the_nearest_proxy_has_taken_off(value: str, found: str) -> None:
    headers = [(b"x-forwarded-prefix", value.encode())]
    assert TrustedProxies(PROXIES).prefix(headers) == found
    assert TrustedProxies(PROXIES, "forwarded").prefix(headers) == ""


def test_documents_say_under_which_path_the_server_is() -> None:
    """Clients that are made from a document call the root of the site where it has no ``servers``."""
    network = NetworkSettings(trusted_proxy=("127.0.0.1",))
    under = {"x-forwarded-prefix": "/llm"}
    with running_server(network=network) as server, httpx.Client(base_url=server.url) as client:
        for path, own in (("/openapi.json", ""), ("/openai/openapi.json", ""), ("/tgi/api-doc/openapi.json", "/tgi")):
            plain, behind = client.get(path).json(), client.get(path, headers=under).json()
            assert plain.pop("servers", None) == ([{"url": own}] if own else None)
            assert behind.pop("servers") == [{"url": f"/llm{own}"}]
            assert behind == plain


def test_several_lines_are_one_list() -> None:
    lines = [(b"x-forwarded-for", b"6.6.6.6"), (b"x-forwarded-for", b"203.0.113.7"), (b"x-forwarded-for", b"10.0.0.3")]
    assert TrustedProxies(PROXIES).client("10.0.0.1", lines) == "203.0.113.7"


def test_whom_to_trust() -> None:
    proxies = TrustedProxies(PROXIES)
    trusted = ("10.255.0.1", "127.0.0.1", "::ffff:10.0.0.1", "2001:db8::1")
    assert all(map(proxies.trusts, trusted))
    assert not any(map(proxies.trusts, ("11.0.0.1", "127.0.0.2", "::1", "", "nonsense")))
    assert TrustedProxies(("unix",)).trusts("")
    for nonsense in ("proxy.example", "10.0.0.0/99", ""):
        with pytest.raises(DragomanError, match="--trusted-proxy"):
            TrustedProxies((nonsense,))


SPOOFED = {"x-forwarded-for": "6.6.6.6, 203.0.113.7"}


@pytest.mark.parametrize(("trusted", "seen"), [((), "127.0.0.1"), (("127.0.0.1",), "203.0.113.7")])
def test_the_address_is_what_limits_and_log_go_by(
    trusted: tuple[str, ...], seen: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dragoman.access")
    settings = msgspec.structs.replace(QUICK, dialect="auto", write_timeout_s=0.4)
    network = NetworkSettings(trusted_proxy=trusted, max_connections_per_client=3)
    with running_server(settings, network=network, dialects=(toy("north"),)) as server:
        answer = httpx.get(f"{server.url}/who", headers=SPOOFED)
        assert answer.status_code == 200
        with connect(f"ws://127.0.0.1:{server.port}/north-talk", additional_headers=SPOOFED) as socket:
            socket.send("hi")
            socket.recv(timeout=60)
    lines = [record.getMessage() for record in caplog.records if record.name == "dragoman.access"]
    assert len(lines) == 2
    assert all(f"client={seen}:" in line for line in lines)


def test_one_client_behind_a_proxy_has_its_share_of_requests() -> None:
    network = NetworkSettings(trusted_proxy=("127.0.0.1",), max_connections_per_client=1)
    body = {"prompt": "a", "max_tokens": 100_000, "stream": True, "ignore_eos": True}
    with running_server(stub=LONG, network=network) as server, httpx.Client(base_url=server.url) as http:
        with http.stream("POST", "/v1/completions", json=body, headers=SPOOFED) as stream:
            assert stream.status_code == 200
            refused = http.get("/v1/models", headers=SPOOFED)
            assert refused.status_code == 429
            assert "address" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) >= 1
            assert http.get("/livez", headers=SPOOFED).status_code == 200
            assert http.get("/v1/models", headers={"x-forwarded-for": "203.0.113.8"}).status_code == 200
        until(lambda: http.get("/v1/models", headers=SPOOFED).status_code == 200)
