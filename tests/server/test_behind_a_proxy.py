"""The configurations of docs/behind-a-proxy.md, run as they stand there, in front of a running server."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sockets import until
from stub_runtime import QUICK, STUB, RunningServer, running_server
from test_listening import certificate
from toy_dialect import toy
from websockets.sync.client import connect

from dragoman.dialects import made_dialects
from dragoman.server.key_file import hashed
from dragoman.server.keys import Keyring
from dragoman.server.settings import NetworkSettings, ServerSettings
from tests.ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "behind-a-proxy.md").read_text("utf-8")
NAME = "llm.example.org"
CLIENT = "127.0.0.9"
KEY = "a-key-of-enough-characters"
KEYED = {"authorization": f"Bearer {KEY}"}


def on_page(language: str, number: int = 0) -> str:
    """A block of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]


def adapted(text: str, changes: Mapping[str, str]) -> str:
    """With the places of this machine. Each has to be there, and once."""
    for there, here in changes.items():
        assert text.count(there) == 1, there
        text = text.replace(there, here)
    return text


def test_idle_connections_of_proxies_end_before_the_server_ends_them() -> None:
    stated = re.search(
        r"`--keep-alive-s`, is (\d+) s; nginx\s+gives .* after (\d+) s, Traefik after (\d+), Caddy after (\d+)", PAGE
    )
    assert stated is not None
    own, *others = map(float, stated.groups())
    assert own == ServerSettings().keep_alive_s > max(others)


class Proxy:
    """A running proxy, and a client of it that has an address of its own."""

    def __init__(self, port: int, authority: Path) -> None:
        self.port = port
        self.trusted = ssl.create_default_context(cafile=str(authority))
        transport = httpx.HTTPTransport(verify=self.trusted, local_address=CLIENT)
        headers = {"host": NAME, **KEYED, "x-forwarded-for": "6.6.6.6", "forwarded": "for=6.6.6.6"}
        self.client = httpx.Client(transport=transport, base_url=f"https://127.0.0.1:{port}", headers=headers)

    def request(self, method: str, path: str, **more: object) -> httpx.Request:
        return self.client.build_request(method, path, extensions={"sni_hostname": NAME}, **more)  # type: ignore[arg-type]

    def get(self, path: str) -> httpx.Response:
        return self.client.send(self.request("GET", path))


@contextlib.contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert process.poll() is None, (folder / "output").read_text()
            assert time.monotonic() < end, (folder / "output").read_text()
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(60)


def nginx(folder: Path, port: int, place: str, tls: tuple[Path, Path]) -> list[str]:
    if place.startswith("unix:"):
        place = adapted(on_page("nginx", 1), {"/run/dragoman/server.sock": place.removeprefix("unix:")}).strip()
    else:
        place = f"server {place};"
    changes = {
        "server 127.0.0.1:8000;": place,
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/ssl/llm.example.org.pem": str(tls[0]),
        "/etc/ssl/llm.example.org.key": str(tls[1]),
    }
    folders = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    text = "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {}\n"
    text += f"http {{\naccess_log off;\n{folders}{adapted(on_page('nginx'), changes)}}}\n"
    (folder / "nginx.conf").write_text(text)
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]


def caddy(folder: Path, port: int, place: str, tls: tuple[Path, Path]) -> list[str]:
    changes = {
        "llm.example.org {\n": f"https://llm.example.org:{port} {{\n",
        "127.0.0.1:8000": place.replace("unix:", "unix/"),
        "/etc/ssl/llm.example.org.pem": str(tls[0]),
        "/etc/ssl/llm.example.org.key": str(tls[1]),
    }
    text = "{\nadmin off\nauto_https disable_redirects\ndefault_bind 127.0.0.1\n}\n"
    (folder / "Caddyfile").write_text(text + adapted(on_page("caddyfile"), changes))
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


PROGRAMS = {"nginx": nginx, "caddy": caddy}


@pytest.mark.parametrize(
    ("program", "way"),
    [
        ("nginx", "port"),
        ("caddy", "unix"),
        pytest.param("nginx", "unix", marks=pytest.mark.thorough),
        pytest.param("caddy", "port", marks=pytest.mark.thorough),
    ],
)
def test_the_configuration_of_the_page(
    program: str, way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for needed in (program, "openssl"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed (a Debian package)")
    caplog.set_level(logging.INFO, "dragoman.access")
    tls = certificate(tmp_path / "tls", NAME)
    port, path = free_port(), tmp_path / "server.sock"
    network = NetworkSettings(trusted_proxy=("127.0.0.1",))
    if way == "unix":
        network = NetworkSettings(uds=str(path), trusted_proxy=("unix",))
    settings = msgspec.structs.replace(QUICK, linger_s=10.0, drain_s=3.0)
    dialects = (*made_dialects(), toy("north"))
    slow = msgspec.structs.replace(STUB, step_s=0.02)
    keys = Keyring([hashed(KEY, "ann")])
    with running_server(settings, slow, dialects=dialects, keys=keys, network=network) as server:
        place = f"unix:{path}" if way == "unix" else f"127.0.0.1:{server.port}"
        with running(PROGRAMS[program](tmp_path, port, place, tls), port, tmp_path):
            proxy = Proxy(port, tls[0])
            with proxy.client:
                look_through(proxy, server, caplog)


def access_log(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "dragoman.access"]  # type: ignore[attr-defined]


def look_through(proxy: Proxy, server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    assert proxy.get("/livez").json() == {"status": "ok"}
    models = proxy.get("/v1/models")
    assert models.status_code == 200
    assert proxy.client.send(proxy.request("GET", "/v1/models", headers={"authorization": ""})).status_code == 401

    # Events come as they are generated.
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 150, "ignore_eos": True}
    answer = proxy.client.send(proxy.request("POST", "/v1/chat/completions", json=body), stream=True)
    lines = (line for line in answer.iter_lines() if line)
    assert next(lines).startswith("data: ")
    next(lines)
    assert server.runtime.serving.admission.running == 1
    assert list(lines)[-1] == "data: [DONE]"
    # Whoever leaves the proxy leaves the server.
    answer = proxy.client.send(
        proxy.request("POST", "/v1/chat/completions", json={**body, "max_tokens": 200}), stream=True
    )
    next(answer.iter_lines())
    answer.close()
    until(lambda: server.runtime.serving.admission.running == 0)
    # Whether or not there is anything to write to them.
    whole = {**body, "max_tokens": 200, "stream": False}
    with pytest.raises(httpx.ReadTimeout):
        proxy.client.send(proxy.request("POST", "/v1/chat/completions", json=whole, timeout=0.5))
    until(lambda: server.runtime.serving.admission.running == 0)
    until(lambda: access_log(caplog)[-1]["status"] == 499)

    # Lines that are no events come as they are generated, too.
    asked = {"model": models.json()["data"][0]["id"], "prompt": "hi", "options": {"num_predict": 200}}
    answer = proxy.client.send(proxy.request("POST", "/ollama/api/generate", json=asked), stream=True)
    assert answer.headers["content-type"] == "application/x-ndjson"
    pieces = answer.iter_raw()
    assert next(pieces)
    assert server.runtime.serving.admission.running == 1
    answer.close()

    # Which of the two ends first, reading the answer or sending the body, is open: each client has to get the reason.
    large = [
        proxy.client.send(proxy.request("POST", "/v1/chat/completions", content=b" " * (5 << 20))).status_code
        for _ in range(20)
    ]
    assert large == [413] * 20

    raw = socket.create_connection(("127.0.0.1", proxy.port), source_address=(CLIENT, 0))
    url = f"wss://{NAME}:{proxy.port}/north-talk"
    with connect(url, sock=raw, ssl=proxy.trusted, additional_headers=KEYED, proxy=None) as opened:
        opened.send("Once upon a time")
        assert opened.recv(timeout=60)

    assert {fields["client"].rpartition(":")[0] for fields in access_log(caplog)} == {CLIENT}
    ids = {fields["id"] for fields in access_log(caplog)}
    assert models.headers["x-request-id"] in ids
    assert not any(str(each).startswith("req-") for each in ids)  # the proxy's, and no other
