"""A replica's server: ``dragoman serve`` as a child process, with its secret, port and end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.child_process import start_child
from dragoman.cluster.replica_state import Replica, read_state
from dragoman.cluster.settings import OWN_OPTIONS, ClusterSettings
from dragoman.cluster.upstream import ReplicaLost, ReplicaPool
from dragoman.core.errors import DragomanError
from dragoman.server.keys import reaches_others

POLL_S = 0.1
LOG_TAIL = 2000
LAUNCH = """
import sys
from dragoman.child_process import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from dragoman.cli import main
sys.exit(main())
"""
"""Runs the command line in a process that ends with the one that started it."""


class ReplicaProcess:
    """The server of one replica. It ends with the process that started it."""

    def __init__(self, name: str, host: str, settings: ClusterSettings, secret: bytes) -> None:
        self._settings, self._secret, self._name, self._host = settings, secret, name, host
        self._pool = ReplicaPool()
        self._folder = tempfile.TemporaryDirectory(prefix="dragoman-replica-")
        self._process: subprocess.Popen[bytes] | None = None
        self.replica: Replica | None = None
        self._unready_since: float | None = None

    async def start(self) -> Mapping[str, Any]:
        """Start the server; return its state when it can generate. Raises DragomanError with the last lines of its log
        where it ends before, or takes too long."""
        settings = self._settings
        if reaches_others(self._host) and not settings.has_keys and not settings.insecure:
            raise DragomanError(
                f"replicas listen on {self._host}: options need --api-key-file, or insecure has to be true"
            )
        folder = Path(self._folder.name)
        secret_file = folder / "secret"
        secret_file.touch(0o600)
        secret_file.write_bytes(self._secret)
        port = free_port(self._host, self._settings.replica_ports)
        self.replica = replica = Replica(self._name, self._host, port)
        with (folder / "log").open("wb") as log:
            command = self._command(port, str(secret_file))
            environment = {**without_own(os.environ), "DRAGOMAN_REPLICA": self._name}
            self._process = start_child(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        deadline = time.monotonic() + self._settings.start_s
        while True:
            if (code := self._process.poll()) is not None:
                raise DragomanError(f"the replica's server ended with status {code}: {self.log_tail()}")
            with contextlib.suppress(ReplicaLost):
                state = await read_state(self._pool, replica, self._secret)
                if state.get("ready") is True:
                    return state
            if time.monotonic() > deadline:
                self.kill()
                limit = self._settings.start_s
                raise DragomanError(f"the replica's server was not ready within {limit:g} s: {self.log_tail()}")
            await asyncio.sleep(POLL_S)

    def _command(self, port: int, secret_file: str) -> list[str]:
        settings = self._settings
        if settings.command is not None:
            return [*settings.command, str(port), secret_file]
        model = () if settings.model is None else (settings.model,)
        own = ["--host", self._host, "--port", str(port), "--cluster-secret-file", secret_file]
        if settings.insecure and not settings.has_keys:
            own.append("--insecure")
        return [
            sys.executable, "-c", LAUNCH, str(os.getpid()), "serve", *model, *own,
            "--drain-s", f"{settings.drain_s:g}", "--max-body-bytes", str(settings.max_body_bytes),
            "--dialect", settings.dialect, *settings.options,
        ]  # fmt: skip

    async def state(self) -> Mapping[str, Any]:
        """Return what the server says of itself. Raises ReplicaLost."""
        assert self.replica is not None
        return await read_state(self._pool, self.replica, self._secret)

    async def check_health(self) -> None:
        """Raise DragomanError where the server has ended, or has not been ready for longer than a start takes."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise DragomanError(f"the replica's server ended with status {code}: {self.log_tail()}")
        try:
            state = await self.state()
            reason = "" if state.get("ready") is True else str(state.get("reason"))
        except ReplicaLost as error:
            reason = str(error)
        now = time.monotonic()
        if not reason:
            self._unready_since = None
        elif self._unready_since is None:
            self._unready_since = now
        elif now - self._unready_since > self._settings.start_s:
            raise DragomanError(
                f"the replica's server has not been ready for {now - self._unready_since:.0f} s: {reason}"
            )

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            data = (Path(self._folder.name) / "log").read_bytes()
            return data[-LOG_TAIL:].decode("utf-8", "replace").strip()
        return ""

    def end(self) -> None:
        """End the server: running answers get their time to finish, and others continue elsewhere."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._settings.drain_s + 15.0)
        self.kill()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()


def without_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables of options that a replica gets from its cluster: they are meant for
    the ingress."""
    own = {f"DRAGOMAN_{option.removeprefix('--').replace('-', '_').upper()}" for option in OWN_OPTIONS}
    return {name: value for name, value in environment.items() if name not in own}


def free_port(host: str, ports: tuple[int, int] | None) -> int:
    """Return a port that nothing listens on. Raises DragomanError where all of the given ones are taken."""
    candidates = [0] if ports is None else range(ports[0], ports[1] + 1)
    offset = os.getpid() % len(candidates)
    for place in range(len(candidates)):
        port = candidates[(place + offset) % len(candidates)]
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise DragomanError(f"no port of {ports} is free on {host}")
