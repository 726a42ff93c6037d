"""The file of API keys: what a line may say, and how it changes while the server runs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import pytest
from stub_runtime import DIALECTS, QUICK, LocalServer, running_server
from toy_dialect import toy
from websockets.sync.client import connect

from dragoman.cli.keys import NewKeySettings
from dragoman.cli.keys import keys as make_key
from dragoman.core.caller import Caller, CallerLimits, network_of
from dragoman.core.errors import DragomanError, Forbidden, RateLimited, Unauthorized
from dragoman.server.app import create_app
from dragoman.server.key_file import hashed, keys_of_text, read_end
from dragoman.server.keys import MAX_UNKNOWN_KEYS, AuthFailures, Keyring

pytestmark = pytest.mark.anyio

alexandria = next(each for each in DIALECTS if each.name == "alexandria")
AUTO = msgspec.structs.replace(QUICK, dialect="auto")
ANN, BOB = "ann-has-a-long-enough-key", "bob-has-a-long-enough-key"
LINE = hashed(ANN, "ann", ("infer",)).line


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def limits(line: str, defaults: CallerLimits = CallerLimits()) -> CallerLimits:  # noqa: B008 (frozen)
    (key,) = keys_of_text(line, "keys")
    return key.caller("", defaults).limits


# What a line may say -------------------------------------------------------------------------------------------------


def test_a_line_without_options_leaves_the_servers_limits_in_force() -> None:
    defaults = CallerLimits(requests_per_minute=7, weight=2.0)
    assert limits(LINE, defaults) == defaults


def test_options_are_the_holders_limits() -> None:
    line = f"{LINE} weight=2.5 requests/min=60 requests/day=1000 tokens/min=100000 tokens/day=5000000"
    assert limits(f"{line} running=8 waiting=32 priority=5") == CallerLimits(
        weight=2.5,
        max_priority=5,
        max_running=8,
        max_waiting=32,
        requests_per_minute=60,
        requests_per_day=1000,
        tokens_per_minute=100000,
        tokens_per_day=5000000,
    )


def test_a_holder_may_be_freed_of_the_servers_limit() -> None:
    assert limits(f"{LINE} requests/min=unlimited", CallerLimits(requests_per_minute=7)) == CallerLimits()


def test_a_key_is_written_as_it_is_read() -> None:
    line = f"{LINE} weight=2.5 requests/min=unlimited tokens/day=5000000000 expires=2027-01-31"
    (key,) = keys_of_text(line, "keys")
    assert key.line == line
    (other,) = keys_of_text(f"{LINE} expires=2027-01-31T12:00:00Z", "keys")
    assert other.line == f"{LINE} expires=2027-01-31T12:00:00Z"


def test_the_command_writes_lines_that_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    make_key(NewKeySettings(holder="ann", weight="3", tokens_min="1000", running="4", expires="2127-01-31"))
    shown = capsys.readouterr()
    (key,) = keys_of_text(shown.out, "keys")
    assert key.limits == {"weight": 3, "tokens_per_minute": 1000, "max_running": 4}
    assert key.expires == datetime(2127, 2, 1, tzinfo=UTC)
    assert key.digest == hashed(shown.err.strip(), "ann").digest
    with pytest.raises(DragomanError, match="tokens/min has to be"):
        make_key(NewKeySettings(tokens_min="many"))


def test_at_a_terminal_both_lines_say_what_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    make_key(NewKeySettings(holder="ann"))
    shown = capsys.readouterr()
    assert "^ for --api-key-file" in shown.err
    assert "API key of ann, shown this once: " in shown.err
    (key,) = keys_of_text(shown.out, "keys")
    assert key.digest == hashed(shown.err.split()[-1], "ann").digest


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("weight=0", "weight has to be a number above 0"),
        ("weight=nan", "weight has to be"),
        ("weight=unlimited", "weight has to be"),
        ("requests/min=0", "requests/min has to be a whole number above 0, or unlimited"),
        ("requests/min=1.5", "requests/min has to be"),
        ("tokens/day=١٢", "tokens/day has to be"),
        ("running=-1", "running has to be"),
        ("priority=-1", "priority has to be"),
        ("expires=31.1.2027", "expires has to be a date"),
        ("expires=2027-02-30", "expires has to be a date"),
        ("running=1 running=2", "running is given twice"),
        ("sekret-key-here", "option 1 is none of weight"),
        ("running=1 sekret=1", "option 2 is none of weight"),
    ],
)
def test_a_wrong_option_is_named_with_its_line_and_not_repeated(options: str, said: str) -> None:
    with pytest.raises(DragomanError) as refused:
        keys_of_text(f"# keys\n{LINE} {options}\n", "keys.txt")
    assert refused.value.message.startswith(f"keys.txt, line 2: {said}")
    assert "sekret" not in refused.value.message
    assert hashed(ANN, "ann").digest not in refused.value.message


def test_two_keys_of_one_name_share_their_limits_and_stay_apart_in_stores() -> None:
    old, new = keys_of_text(f"{LINE} tokens/min=100\n{hashed(BOB, 'ann', ('infer',)).line} expires=2027-01-31", "keys")
    callers = [key.caller("192.0.2.1", CallerLimits()) for key in (old, new)]
    assert callers[0].limits == callers[1].limits == CallerLimits(tokens_per_minute=100)
    assert callers[0].share_key == callers[1].share_key
    assert callers[0].tenant != callers[1].tenant
    assert old.expires is None
    with pytest.raises(DragomanError, match="keys, line 2: tokens/min differs from that of another key of the holder"):
        keys_of_text(f"{LINE} tokens/min=100\n{LINE} tokens/min=200", "keys")


def test_an_ipv6_client_is_its_network() -> None:
    assert network_of("2001:db8:1:2:3:4:5:6") == network_of("2001:db8:1:2::1") == "2001:db8:1:2::/64"
    assert network_of("2001:db8:1:3::1") != network_of("2001:db8:1:2::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") == "192.0.2.1"
    assert network_of("fe80::1%eth0") == "fe80::/64"
    assert network_of("no:address") == "no:address"


# How keys change -----------------------------------------------------------------------------------------------------


def is_known(ring: Keyring, key: str) -> bool:
    try:
        return bool(ring.holder(bearer(key), (), "infer"))
    except Unauthorized:
        return False


def line_of(key: str, name: str = "ann") -> str:
    return hashed(key, name, ("infer",)).line + "\n"


def replace(file: Path, text: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(text)
    other.replace(file)


def test_an_expired_key_is_refused_from_its_moment_on() -> None:
    now = [read_end("2027-01-31").timestamp() - 1]
    ring = Keyring([hashed(ANN, "ann", expires=read_end("2027-01-31"))], clock=lambda: now[0])
    assert is_known(ring, ANN)
    now[0] += 1
    with pytest.raises(Unauthorized, match="expired"):
        ring.holder(bearer(ANN), (), "infer")


@pytest.mark.parametrize("how", [Path.write_text, replace])
def test_a_changed_file_is_read_again(tmp_path: Path, how: Callable[[Path, str], object]) -> None:
    file = tmp_path / "keys"
    file.write_text(line_of(ANN))
    ring = Keyring([hashed("a-key-of-an-option", "option-1")], file=file)
    how(file, line_of(BOB))
    assert is_known(ring, ANN)
    ring.reload_if_changed()
    assert [is_known(ring, key) for key in (ANN, BOB, "a-key-of-an-option")] == [False, True, True]


def test_a_mounted_secret_is_read_again_when_its_link_is_turned(tmp_path: Path) -> None:
    """As Kubernetes does it: keys -> ..data/keys, ..data -> ..<time>, which is replaced by a rename."""
    for name, key in (("..1", ANN), ("..2", BOB)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(line_of(key))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "keys").symlink_to("..data/keys")
    ring = Keyring(file=tmp_path / "keys")
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    ring.reload_if_changed()
    assert (is_known(ring, ANN), is_known(ring, BOB)) == (False, True)


@pytest.mark.parametrize("damage", ["ann infer sekret\n", "", "\xff", None])
def test_a_bad_file_leaves_the_keys_in_force_and_is_told_once(
    tmp_path: Path, damage: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text(line_of(ANN))
    ring = Keyring(file=file)
    file.unlink() if damage is None else file.write_bytes(damage.encode("latin-1"))
    for _ in range(3):
        ring.reload_if_changed()
    assert is_known(ring, ANN)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "sekret" not in caplog.text
    with pytest.raises(DragomanError):
        ring.reload()
    file.write_text(line_of(BOB))
    ring.reload_if_changed()
    assert (is_known(ring, ANN), is_known(ring, BOB)) == (False, True)


def test_a_mark_at_the_beginning_of_the_file_means_nothing(tmp_path: Path) -> None:
    """Editors on Windows write it."""
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbf" + line_of(ANN).encode())
    assert is_known(Keyring(file=file), ANN)


def test_what_is_no_regular_file_is_read_once() -> None:
    """As ``--api-key-file <(...)`` has it: there is nothing to read a second time."""
    reading, writing = os.pipe()
    os.write(writing, line_of(ANN).encode())
    os.close(writing)
    ring = Keyring(file=Path(f"/dev/fd/{reading}"))
    with ring.watched(0.001), pytest.raises(DragomanError, match="is not a regular file"):
        ring.reload()
    os.close(reading)
    assert is_known(ring, ANN)


def test_a_renewed_caller_has_the_limits_of_now_and_no_more_scopes_than_before(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(hashed(ANN, "ann").line)
    ring = Keyring(file=file)
    caller = msgspec.structs.replace(ring.caller(bearer(ANN), (), "infer"), scopes=("infer",), address="192.0.2.1")
    file.write_text(f"{hashed(ANN, 'ann').line} requests/min=5")
    ring.reload()
    renewed = ring.renewed(caller, "infer")
    assert renewed == msgspec.structs.replace(caller, limits=CallerLimits(requests_per_minute=5))
    assert ring.renewed(Caller(address="192.0.2.1"), "infer") == Caller(address="192.0.2.1")


def test_a_caller_whose_key_has_lost_the_scope_is_not_renewed(tmp_path: Path) -> None:
    """A WebSocket that is open: its next message needs what the first one needed."""
    file = tmp_path / "keys"
    file.write_text(hashed(ANN, "ann").line)
    ring = Keyring(file=file)
    caller = ring.caller(bearer(ANN), (), "infer")
    file.write_text(hashed(ANN, "ann", ("admin",)).line)
    ring.reload()
    with pytest.raises(Forbidden, match="its scopes are admin"):
        ring.renewed(caller, "infer")
    assert ring.renewed(caller, "admin").scopes == ("admin",)


def test_a_watched_file_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line_of(ANN))
    ring = Keyring(file=file)
    threads = threading.active_count()
    with ring.watched(0.01):
        replace(file, line_of(BOB))
        until = time.monotonic() + 60
        while not is_known(ring, BOB):
            assert time.monotonic() < until
            time.sleep(0.005)
    assert threading.active_count() == threads


def test_a_key_that_the_command_appends_is_known_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``dragoman keys >> keys.txt`` beside a server that runs."""
    file = tmp_path / "keys"
    file.write_text(line_of(ANN))
    ring = Keyring(file=file)
    with ring.watched(0.01):
        make_key(NewKeySettings(holder="new"))
        made = capsys.readouterr()
        with file.open("a") as opened:
            opened.write(made.out)
        until = time.monotonic() + 60
        while not is_known(ring, made.err.strip()):
            assert time.monotonic() < until
            time.sleep(0.005)
    assert is_known(ring, ANN)


def test_a_reload_under_load_drops_nothing(tmp_path: Path) -> None:
    """Requests of a key that stays are answered, one after the other, while the file is written again and again."""
    file = tmp_path / "keys"
    file.write_text(line_of(ANN))
    ring, statuses, ended = Keyring(file=file), [], threading.Event()
    with running_server(AUTO, dialects=(toy("north"),), keys=ring) as server:

        def ask() -> None:
            with httpx.Client(base_url=server.url, headers=bearer(ANN)) as client:
                while not ended.is_set():
                    statuses.append(client.post("/north/generate-it", json="Once").status_code)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(50):
            replace(file, line_of(ANN) + line_of(f"another-key-number-{number}", "bob"))
            ring.reload()
            time.sleep(0.005)
        ended.set()
        for thread in threads:
            thread.join()
        assert len(statuses) > 4
        assert set(statuses) == {200}
        replace(file, line_of(BOB))
        ring.reload()
        assert httpx.get(f"{server.url}/north/who", headers=bearer(ANN)).status_code == 401


def test_an_open_socket_of_a_key_that_is_gone_is_asked_in_vain(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(line_of(ANN))
    ring = Keyring(file=file)
    with running_server(AUTO, dialects=(alexandria,), keys=ring) as server:
        address = f"ws://127.0.0.1:{server.port}/alexandria/api/ws"
        with connect(address, additional_headers=bearer(ANN)) as socket:
            for number, last in enumerate(("COMPLETE", "not known any more")):
                message = {"request_id": f"r{number}", "prompt": "Once"}
                socket.send(json.dumps({"prompts": [message], "generation_config": {"max_new_tokens": 2}}))
                while last not in str(socket.recv(timeout=60)):
                    pass
                replace(file, line_of(BOB))
                ring.reload()


# What is refused -----------------------------------------------------------------------------------------------------


def test_many_unknown_keys_of_one_address_are_slowed_and_known_ones_come_in() -> None:
    ring = Keyring([hashed(ANN, "ann")])
    for _ in range(MAX_UNKNOWN_KEYS):
        with pytest.raises(Unauthorized):
            ring.caller(bearer(BOB), (), "infer", address="192.0.2.1")
    with pytest.raises(RateLimited) as limited:
        ring.caller(bearer(BOB), (), "infer", address="192.0.2.1")
    assert 55 <= limited.value.retry_after_s <= 60
    assert ring.caller(bearer(ANN), (), "infer", address="192.0.2.1").name == "ann"
    with pytest.raises(Unauthorized):
        ring.caller(bearer(BOB), (), "infer", address="192.0.2.2")
    with pytest.raises(Unauthorized, match="No API key"):
        ring.caller({}, (), "infer", address="192.0.2.1")


def test_the_slowed_come_in_again_after_a_minute() -> None:
    now = [0.0]
    failures = AuthFailures(lambda: now[0])
    for _ in range(MAX_UNKNOWN_KEYS):
        failures.count("unknown", "192.0.2.1")
    with pytest.raises(RateLimited):
        failures.count("unknown", "192.0.2.1")
    now[0] += 60
    failures.count("unknown", "192.0.2.1")


async def test_refusals_are_counted_by_their_reason(runtime: LocalServer) -> None:
    gone = hashed(BOB, "bob", expires=datetime(2020, 1, 1, tzinfo=UTC))
    ring = Keyring([hashed(ANN, "ann", ("infer",)), gone])
    app = create_app(runtime.serving, AUTO, dialects=(toy("north"),), keys=ring)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        for headers in ({}, bearer("nobody-has-this-key"), bearer(BOB), bearer(BOB), bearer(ANN)):
            await client.get("/north/who", headers=headers)
        await client.post("/north/admin", json={"text": "a"}, headers=bearer(ANN))
        metrics = (await client.get("/metrics", headers=bearer(ANN))).text
    counts = {"missing": 1, "unknown": 1, "expired": 2, "scope": 1}
    for reason, count in counts.items():
        assert f'dragoman_auth_failures_total{{reason="{reason}"}} {count}.0' in metrics
