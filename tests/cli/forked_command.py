"""The ``dragoman`` command in forks of one process that has imported its modules: most of a short command's time.

For tests about what a command says. Its start itself, and what its imports depend on, is for processes of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PROGRAM = """
import importlib, json, os, socket, sys
for module in json.loads(sys.argv[1]):
    importlib.import_module(module)
from dragoman.cli import main
from dragoman.cli.app import cli
from typer.main import get_command
get_command(cli.typer).make_context("dragoman", ["version"])  # typer imports more when it reads a first option
assert not {"huggingface_hub", "typer.rich_utils"} & sys.modules.keys()  # they read the environment once
connection = socket.socket(fileno=os.dup(0))
while True:
    data, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    if not data:
        os._exit(0)
    child = os.fork()
    if not child:
        break
    for file in files:
        os.close(file)
    connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
connection.close()
for standard, file in enumerate(files):
    os.dup2(file, standard)
    os.close(file)
asked = json.loads(data)
os.environ.clear()
os.environ.update(asked["environment"])
os.chdir(asked["folder"])
sys.argv = ["dragoman", *asked["arguments"]]
main()
"""
MODULES = ("dragoman.cli.app", "dragoman.cli.generate", "dragoman.cli.plan", "dragoman.kernels", "dragoman.models",
           "dragoman.models.families", "dragoman.serving.runtime")  # fmt: skip


def run_forked(
    *arguments: str, text: str = "", folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, and wait for its end. ``environment``: this process's by default."""
    variables = dict(os.environ if environment is None else environment)
    chosen = variables.get("DRAGOMAN_KERNELS")
    assert chosen == os.environ.get("DRAGOMAN_KERNELS"), "the kernels are imported already"
    asked = {"arguments": arguments, "folder": str(folder or Path.cwd()), "environment": variables}
    with contextlib.ExitStack() as files:
        given, out, err = (files.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(text.encode())
        given.seek(0)
        connection = _connection()
        socket.send_fds(connection, [json.dumps(asked).encode()], [file.fileno() for file in (given, out, err)])
        code = int(connection.recv(16))
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, code, out.read().decode(), err.read().decode())


@functools.cache
def _connection() -> socket.socket:
    """The connection to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", PROGRAM, json.dumps(MODULES)]
    with theirs:
        process = subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    ours.settimeout(240)
    return ours
