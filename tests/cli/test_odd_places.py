"""The first commands of a user whose surroundings are not the usual ones."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest
from forked_command import run_forked

from dragoman.cli import console
from dragoman.cli.command_line import NO_FILES, NO_MEMORY, NO_PROCESSES, NO_UTF_8, told
from dragoman.cli.plain_text import use_what_terminals_have
from dragoman.core.errors import DragomanError
from dragoman.core.user_folders import NO_HOME, ensure_home_variable, expand_user, make_private_folder, unusable
from dragoman.server.open_files import LEAST_FILES, check_open_files

_PR_CAPBSET_DROP = 24  # linux/prctl.h
_OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH of linux/capability.h


def without_overrides() -> None:
    """Have permissions hold for root too, in the program that is started next."""
    for capability in _OVERRIDES:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def run(*arguments: str, home: Path, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HF_", "DRAGOMAN_"))}
    return subprocess.run(
        [sys.executable, "-m", "dragoman", *arguments],
        env=kept | {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=home.parent,
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def locked_home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir(mode=0)
    return home


@pytest.mark.parametrize(
    "arguments", [("version",), ("info",), ("models", "list"), ("generate", "hi", "--max-new-tokens", "1")], ids=str
)
def test_commands_work_in_a_home_that_may_not_be_searched(locked_home: Path, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, home=locked_home, before=without_overrides)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if arguments == ("models", "list"):
        assert "embedded" in done.stdout
        assert "Permission denied; HF_HOME names another folder" in done.stderr


def test_a_model_that_may_not_be_read_is_named_without_a_traceback(locked_home: Path) -> None:
    done = run("plan", str(locked_home / "model"), home=locked_home, before=without_overrides)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {locked_home}/model: Permission denied")


def test_a_user_that_the_system_does_not_know_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert expand_user("~/.cache") == Path(NO_HOME, ".cache")
    assert expand_user("/a/~/b") == Path("/a/~/b")
    assert expand_user("~no-such-user/b") == Path("~no-such-user/b")
    ensure_home_variable()
    assert os.environ["HOME"] == NO_HOME
    monkeypatch.setenv("HOME", "/srv/ann")
    ensure_home_variable()
    assert expand_user("~/b") == Path("/srv/ann/b")


def test_chat_templates_render_under_a_hard_limit_of_processor_time() -> None:
    code = "from dragoman.cli import main; import sys; sys.argv[1:] = ['doctor', 'embedded', '--no-compare']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<|im_start|>user" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_works_in_terminals_without_every_character(encoding: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "doctor", "embedded", "--no-compare"],
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\n+ nothing is missing" in done.stdout.decode(encoding)


def test_characters_that_a_terminal_lacks_have_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    use_what_terminals_have()
    print("a – b… ✓ über 日本")
    written.flush()
    assert written.buffer.getvalue() == b"a - b... + ?ber ??\n"  # type: ignore[attr-defined]


def test_a_broken_file_of_the_folder_hinders_no_command_that_has_no_options(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "dragoman.toml").write_text("nonsense = [")
    assert run("version", home=home).returncode == 0
    done = run("plan", home=home)
    assert done.returncode == 2
    assert "dragoman.toml: Invalid value" in " ".join(done.stderr.replace("│", " ").split())


def test_a_folder_that_cannot_be_used_is_known_before_it_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert unusable(tmp_path) == unusable(tmp_path / "a" / "b") == ""
    assert unusable(tmp_path / "file") == f"{tmp_path}/file is not a folder"
    assert unusable(tmp_path / "file" / "a") == f"{tmp_path}/file/a: Not a directory"
    assert unusable(tmp_path / "link" / "a") == f"{tmp_path}/link is a link to what is not there"
    assert unusable(Path("/proc/a")) == "" or os.getuid() != 0
    with pytest.raises(NotADirectoryError, match="Not a directory"):
        make_private_folder(tmp_path / "file")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), NO_MEMORY),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), NO_PROCESSES),
        (RuntimeError("can't start new thread"), NO_PROCESSES),
        (OSError(errno.EMFILE, "Too many open files", "/a"), f"/a: {NO_FILES}"),
        (UnicodeEncodeError("utf-8", "a secret \udcff", 9, 10, "surrogates not allowed"), NO_UTF_8),
    ],
    ids=repr,
)  # fmt: skip
def test_limits_of_the_system_are_told_with_what_raises_them(error: Exception, said: str) -> None:
    assert told(error) == said


def test_an_error_is_told_where_nothing_more_can_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MemoryError

    monkeypatch.setattr(console, "notes", missing)
    console.error("no [memory]")
    assert capsys.readouterr().err == "error: no [memory]\n"


def test_a_server_that_may_open_too_few_files_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20, 20))
    with pytest.raises(DragomanError, match=f"20 files may be open here, and a server needs {LEAST_FILES}"):
        check_open_files()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (20, LEAST_FILES))
    check_open_files()


SIGNALLED = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` has its programs ignore
os.getpid, own = lambda: 1, os.getpid()
from dragoman.cli.start import handle_signals
handle_signals(sys.argv[1:])
os.kill(own, signal.SIGHUP)
print("alive", flush=True)
os.kill(own, signal.SIGTERM)
"""


@pytest.mark.parametrize(("command", "said", "code"), [("serve", "alive\n", 143), ("plan", "", -1)])
def test_the_first_process_of_a_container_ends_at_sigterm_and_a_server_survives_sighup(
    command: str, said: str, code: int
) -> None:
    done = subprocess.run([sys.executable, "-c", SIGNALLED, command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode, done.stderr) == (said, code, "")


USER_SIGNALS = """
import os, signal, sys
from dragoman.cli.start import handle_signals
handle_signals(sys.argv[1:])
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
print("alive", flush=True)
"""


@pytest.mark.parametrize(("command", "said", "code"), [("serve", "alive\n", 0), ("plan", "", -signal.SIGUSR1)])
def test_a_server_says_that_it_heeds_no_user_signals(command: str, said: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", USER_SIGNALS, command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (said, code)
    assert ("SIGUSR1 has no meaning here" in done.stderr) is bool(said)
    assert ("SIGUSR2 has no meaning here" in done.stderr) is bool(said)


def shell(line: str) -> str:
    """Return the exit code and the output of a line of bash, in which ``"$@"`` is the command."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "dragoman"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return f"{done.returncode} {done.stdout}{done.stderr}"


def test_closed_standard_files_and_readers_that_leave_are_no_errors() -> None:
    assert shell('"$@" keys >&- 2>&-') == "0 "
    assert shell('"$@" keys --given <&-') == "1 error: a key has at least 16 characters\n"
    assert shell('"$@" completion bash | true; echo ${PIPESTATUS[0]}') == "0 1\n"


def test_a_server_starts_without_standard_files(tmp_path: Path) -> None:
    """The descriptors that it opens in their place are there in the engine's process too."""
    command = [sys.executable, "-m", "dragoman", "serve", "--uds", str(tmp_path / "socket")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "DRAGOMAN_CONFIG": os.devnull}
    server = subprocess.Popen(["bash", "-c", 'exec "$@" >&- 2>&-', "bash", *command], env=environment)
    try:
        transport = httpx.HTTPTransport(uds=str(tmp_path / "socket"))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=60) as client:
            while server.poll() is None:
                with contextlib.suppress(httpx.TransportError):
                    assert client.get("/readyz").status_code == 200
                    break
                time.sleep(0.05)
            (engine,) = (each for each in psutil.Process(server.pid).children() if "dragoman.engine" in each.cmdline())
            assert os.readlink(f"/proc/{engine.pid}/fd/1") == os.devnull
            server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()


def test_output_that_cannot_be_written_is_an_error_in_one_line() -> None:
    full = "there is no space left on the disk that this is written to"
    assert shell('"$@" --help >/dev/full') == "1 error: the output cannot be written: No space left on device\n"
    assert shell('"$@" version >/dev/full') == f"1 error: {full}\n"
    assert shell('"$@" models list >/dev/full') == f"1 error: {full}\n"
    assert shell('"$@" nonsense 2>/dev/full') == "1 "


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('serve --state-dir ""', "Invalid value for --state-dir: this is empty"),
        ('serve --alias ""', "Invalid value for --alias[0]: Expected `str` of length >= 1"),
        (f'serve --name {"a" * 513}', "Invalid value for --name: Expected `str` of length <= 512"),
        ('serve --backlog 9999999999', "Invalid value for --backlog: Expected `int` <= 2147483647"),
        (f'serve --cache-bytes {10**30}', "Invalid value for --cache-bytes: Expected `int` <= 9223372036854775807"),
        ('serve --image-workers 5000', "Invalid value for --image-workers: Expected `int` <= 1024"),
        ('serve --top-k 9999999999', "Invalid value for --top-k: Expected `int` <= 2147483647"),
        ('plan ""', "Invalid value for MODEL: this is empty"),
        ('serve --trusted-proxy nonsense', "--trusted-proxy nonsense: not an address"),
        ('status --url http://[::1', "http://[::1 is not an address: Invalid IPv6 URL"),
        ('keys --holder a\u200b', "--holder has characters that are not printable"),
        ('serve --name a\udcff', "Invalid value for --name: this is not UTF-8"),
        ('generate a\udcff', "Invalid value for PROMPT: this is not UTF-8"),
        ('generate a --stop b --stop \udcff', "Invalid value for --stop: this is not UTF-8"),
        ('keys --expires 2001-01-31', "--expires 2001-01-31 is over"),
        ('models list --models-folder /no/models', "note: --models-folder /no/models: No such file or directory"),
        ('serve --port 0 --chat-template /no/template', "/no/template: No such file or directory"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_told_in_one_line(line: str, said: str) -> None:
    arguments = ["" if each == '""' else each for each in line.split()]
    done = run_forked(*arguments, environment=os.environ | {"DRAGOMAN_CONFIG": os.devnull})
    assert said in done.stdout + done.stderr
    assert "Errno" not in done.stderr
    assert "prompts are cached" not in done.stderr, "no model was loaded for that"
