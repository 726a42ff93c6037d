"""Images are fetched from allowed hosts only, at addresses that were checked, within bounds of time and size."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.errors import BadImage, DragomanError, UnsupportedFeature
from dragoman.serving import image_fetch
from dragoman.serving.image_fetch import ImageFetcher, Streams, host_pattern, is_public
from tests.server.test_listening import certificate

HOST, URL, PUBLIC = "images.example.com", "https://images.example.com/cat.png", "93.184.215.14"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def plain(body: bytes = b"a cat", head: str = "HTTP/1.1 200 OK", *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in (head, f"content-length: {len(body)}", *headers))
    return f"{lines}\r\n".encode() + body


def redirect(to: str, status: int = 302) -> bytes:
    return plain(b"moved", f"HTTP/1.1 {status} Found", f"location: {to}")


class Net:
    """A network of one local server, which all addresses lead to.

    ``addresses``: what each look-up of a host returns, one after the other, the last one from then on. ``dialled`` and
    ``asked``: addresses with the host that has to prove itself, and the requests, in order.
    """

    def __init__(self, *answers: bytes | Answer, addresses: Sequence[Sequence[str]] = ((PUBLIC,),)) -> None:
        self._answers, self._addresses = list(answers), list(addresses)
        self.looked_up: list[str] = []
        self.dialled: list[tuple[str, str]] = []
        self.asked: list[str] = []
        self._port = 0
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def fetcher(self, *hosts: str, **limits: Any) -> Any:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        try:
            yield ImageFetcher(hosts or (HOST,), look_up=self._look_up, dial=self._dial, **limits)
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()

    async def _look_up(self, host: str) -> Sequence[str]:
        self.looked_up.append(host)
        return self._addresses.pop(0) if len(self._addresses) > 1 else self._addresses[0]

    async def _dial(self, address: str, host: str) -> Streams:
        self.dialled.append((address, host))
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            answer = self._answers.pop(0)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
                writer.close()
            else:
                await answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass


def fetched(net: Net, url: str = URL, *hosts: str, **limits: Any) -> bytes:
    async def run() -> bytes:
        async with net.fetcher(*hosts, **limits) as fetcher:
            return await fetcher.fetch(url)  # type: ignore[no-any-return]

    return asyncio.run(run())


def refused(net: Net, url: str = URL, *hosts: str, **limits: Any) -> DragomanError:
    with pytest.raises(DragomanError) as caught:
        fetched(net, url, *hosts, **limits)
    return caught.value


def test_a_file_is_fetched_from_the_address_that_was_looked_up() -> None:
    net = Net(plain())
    assert fetched(net, URL + "?size=1&name=ä b".replace(" ", "%20")) == b"a cat"
    assert net.dialled == [(PUBLIC, HOST)]
    assert net.asked[0].startswith("GET /cat.png?size=1&name=%C3%A4%20b HTTP/1.1\r\nhost: images.example.com\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\na cat\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\na cat",
        b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\na cat",
    ],
)
def test_bodies_of_every_length_are_read(answer: bytes) -> None:
    assert fetched(Net(answer)) == b"a cat"


def test_without_hosts_nothing_is_looked_up() -> None:
    async def run() -> None:
        net = Net()
        with pytest.raises(UnsupportedFeature, match="--image-hosts"):
            await ImageFetcher((), look_up=net._look_up, dial=net._dial).fetch(URL)
        assert not net.looked_up

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://images.example.com/cat.png", "https"),
        ("ftp://images.example.com/cat.png", "https"),
        ("file:///etc/passwd", "https"),
        ("//images.example.com/cat.png", "https"),
        ("/etc/passwd", "https"),
        ("https://images.example.com:8443/", "port"),
        ("https://images.example.com:22/", "port"),
        ("https://images.example.com:99999/", "URL"),
        ("https://user:secret@images.example.com/", "user"),
        ("https://images.example.com\\@evil.example/", "backslash"),
        ("https://images.example.com/\r\nhost: evil", "URL"),
        ("https://images.example.com/a b", "URL"),
        ("https://[::1/", "URL"),
        ("https://images.example.com/" + "a" * 9_000, "URL"),
        ("https://evil.example/", "not allowed it"),
        ("https://example.com/", "not allowed it"),
        ("https://images.example.com.evil.example/", "not allowed it"),
        ("https://evilimages.example.com/", "not allowed it"),
        ("https://127.0.0.1/", "not allowed it"),
        ("https://2130706433/", "not allowed it"),
        ("https://[::ffff:169.254.169.254]/", "not allowed it"),
        ("https:///cat.png", "not allowed it"),
    ],
)
def test_an_address_that_is_not_allowed_is_never_looked_up(url: str, words: str) -> None:
    net = Net()
    assert words in refused(net, url).message
    assert not net.looked_up


def test_names_below_an_allowed_one() -> None:
    for url in ("https://a.example.com/", "https://A.B.Example.COM./"):
        assert fetched(Net(plain()), url, "*.example.com") == b"a cat"
    assert "not allowed" in refused(Net(), "https://example.com/", "*.example.com").message
    assert fetched(Net(plain()), "https://bücher.example/", "Bücher.Example") == b"a cat"


@pytest.mark.parametrize(
    "given", ["", "*", "*.", "https://a.example", "a.example:443", "10.0.0.1", "[::1]", "a b.example", "localhost"]
)
def test_what_is_no_host_is_refused_at_the_start(given: str) -> None:
    with pytest.raises(DragomanError, match="--image-hosts"):
        host_pattern(given)


PRIVATE = (
    "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "192.0.0.1", "192.0.2.1", "198.18.0.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:93.184.215.14", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
    "2001:db8::1", "100::1", "::127.0.0.1", "no address", "",
)  # fmt: skip


def test_only_public_addresses_are_dialled() -> None:
    assert not [address for address in PRIVATE if is_public(address)]
    assert all(map(is_public, (PUBLIC, "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101")))


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_of_a_private_address_is_not_dialled(address: str) -> None:
    net = Net(plain(), addresses=[[PUBLIC, address]])
    error = refused(net)
    assert isinstance(error, BadImage)
    assert error.code == "failed_to_download_image"
    assert "not public" in error.message
    assert not net.dialled


def test_a_resolver_that_changes_its_answer_is_asked_once() -> None:
    """The address that was checked is the one that is dialled, whatever the name means then."""
    net = Net(plain(), addresses=[[PUBLIC], ["127.0.0.1"]])
    assert fetched(net) == b"a cat"
    assert net.looked_up == [HOST]
    assert net.dialled == [(PUBLIC, HOST)]


def test_a_redirect_is_looked_up_and_checked_again() -> None:
    net = Net(redirect("/other.png"), plain(), addresses=[[PUBLIC], ["10.0.0.1"]])
    assert "not public" in refused(net).message
    assert net.dialled == [(PUBLIC, HOST)]
    net = Net(redirect("/other.png"), plain(), addresses=[[PUBLIC], ["1.1.1.1"]])
    assert fetched(net) == b"a cat"
    assert net.dialled == [(PUBLIC, HOST), ("1.1.1.1", HOST)]
    assert net.asked[1].startswith("GET /other.png ")


@pytest.mark.parametrize(
    "to",
    [
        "http://images.example.com/",
        "https://169.254.169.254/latest/meta-data",
        "https://localhost/",
        "https://evil.example/",
        "https://images.example.com:8080/",
        "file:///etc/passwd",
        "data:image/png;base64,AAAA",
        "//evil.example/",
    ],
)
def test_a_redirect_to_elsewhere_is_refused(to: str) -> None:
    net = Net(redirect(to), plain())
    refused(net)
    assert len(net.dialled) == 1


def test_three_redirects_are_followed() -> None:
    assert fetched(Net(*[redirect(f"/{i}", 307) for i in range(3)], plain())) == b"a cat"
    net = Net(*[redirect(f"/{i}") for i in range(5)])
    assert "more than 3 times" in refused(net).message
    assert len(net.asked) == 4


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (plain(b"no", "HTTP/1.1 404 Not Found"), "status 404"),
        (plain(b"", "HTTP/1.1 302 Found"), "status 302"),
        (plain(b"x", "HTTP/1.1 200 OK", "content-encoding: gzip"), "compressed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n", "99999999999 bytes"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "too many headers"),
        (b"SSH-2.0-OpenSSH_9.7\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na cat", "ended the answer early"),
        (b"", "ended the answer early"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "status 101"),
    ],
)
def test_answers_that_are_no_file(answer: bytes, words: str) -> None:
    error = refused(Net(answer))
    assert isinstance(error, BadImage)
    assert words in error.message


async def _endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
        await writer.drain()


async def _slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_an_endless_file_ends_at_the_limit() -> None:
    assert "the most are 1000000" in refused(Net(_endless), max_bytes=1_000_000).message


@pytest.mark.parametrize("answer", [_slow, _silent])
def test_a_slow_host_gets_the_whole_time_once(answer: Answer) -> None:
    assert "within 0.2 s" in refused(Net(answer), timeout_s=0.2).message


def test_a_second_address_is_dialled_where_the_first_fails() -> None:
    async def run() -> bytes:
        net = Net(plain(), addresses=[["1.1.1.1", PUBLIC]])
        reached = net._dial

        async def dial(address: str, host: str) -> Streams:
            if address == "1.1.1.1":
                raise OSError(113, "No route to host")
            return await reached(address, host)

        net._dial = dial  # type: ignore[method-assign]
        async with net.fetcher() as fetcher:
            return await fetcher.fetch(URL)  # type: ignore[no-any-return]

    assert asyncio.run(run()) == b"a cat"


def test_the_host_proves_itself_by_its_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is checked though an address is dialled."""
    file, key = certificate(tmp_path)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(file, key)
    trusting = ssl.create_default_context

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(plain())
        writer.close()

    async def run(host: str) -> bytes:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=served)
        monkeypatch.setattr(image_fetch, "PORT", server.sockets[0].getsockname()[1])
        monkeypatch.setattr(ssl, "create_default_context", lambda: trusting(cafile=str(file)))
        try:
            reader, writer = await image_fetch.dial("127.0.0.1", host)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            data = await reader.read()
            writer.transport.abort()
            return data
        finally:
            server.close()

    assert asyncio.run(run("localhost")).endswith(b"a cat")
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(run("images.example.com"))
