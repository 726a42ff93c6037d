"""The port of an ingress goes to the next one: nobody who connects meanwhile is refused."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

import pytest

from dragoman.cluster.port import PortOffer, handover_path, open_port

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


async def test_connections_that_wait_are_the_next_ingress_s() -> None:
    first = open_port(HOST, 0, "cluster")
    port = first.getsockname()[1]
    first.listen(8)
    offer = PortOffer(first, HOST, port, "cluster")
    with socket.create_connection((HOST, port)) as waiting:
        second = await asyncio.to_thread(open_port, HOST, port, "cluster")
        offer.close()
        first.close()
        second.setblocking(True)
        accepted, address = second.accept()
        assert address == waiting.getsockname()
        accepted.close()
    with socket.create_connection((HOST, port), timeout=1):
        pass
    second.close()
    assert not handover_path(HOST, port, "cluster").exists()


async def test_another_application_does_not_get_it() -> None:
    first = open_port(HOST, 0, "cluster")
    port = first.getsockname()[1]
    first.listen(8)
    offer = PortOffer(first, HOST, port, "cluster")
    other = await asyncio.to_thread(open_port, HOST, port, "another")
    assert os.fstat(other.fileno()).st_ino != os.fstat(first.fileno()).st_ino
    for each in (other, offer, first):
        each.close()


async def test_an_ingress_that_was_killed_leaves_nothing_in_the_way() -> None:
    path = handover_path(HOST, 1, "cluster")
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    bound = open_port(HOST, 0, "cluster")
    offer = PortOffer(bound, HOST, 1, "cluster")
    taken = await asyncio.to_thread(open_port, HOST, 1, "cluster")
    assert taken.getsockname() == bound.getsockname()
    for each in (taken, offer, bound):
        each.close()


async def test_a_folder_of_somebody_else_is_not_used(temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    handover_path(HOST, 1, "cluster").parent.mkdir(mode=0o777)
    handover_path(HOST, 1, "cluster").parent.chmod(0o777)
    bound = open_port(HOST, 0, "cluster")
    PortOffer(bound, HOST, 1, "cluster").close()
    assert "is not this user's alone" in caplog.text
    bound.close()


async def test_on_a_full_disk_the_port_is_opened_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Python finds no folder there that it can write a temporary file into."""

    def fail() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", fail)
    bound = open_port(HOST, 0, "cluster")
    bound.listen(1)
    PortOffer(bound, HOST, bound.getsockname()[1], "cluster").close()
    assert "the port is closed for a moment when this ingress ends" in caplog.text
    with socket.create_connection(bound.getsockname(), timeout=10):
        pass
    bound.close()
