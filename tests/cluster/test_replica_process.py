"""The server of a replica as a child process: what it is started with."""

from __future__ import annotations

import sys

import pytest

from dragoman.cluster.replica_process import ReplicaProcess
from dragoman.cluster.settings import ClusterSettings
from dragoman.core.errors import DragomanError
from dragoman.server.lifecycle import certificates_of
from dragoman.server.settings import NetworkSettings

pytestmark = pytest.mark.anyio

TELL = "import os, sys; print(sorted(name for name in os.environ if name.startswith('DRAGOMAN_'))); sys.exit(3)"


async def test_variables_of_the_ingress_are_not_the_replica_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the certificate it would answer its ingress in TLS, and with the port of metrics in use not start."""
    for name in ("TLS_CERT", "TLS_KEY", "PORT", "HOST", "UDS", "METRICS_PORT", "PUBLIC", "MAX_CONTEXT"):
        monkeypatch.setenv(f"DRAGOMAN_{name}", "1")
    settings = ClusterSettings(replica_host="127.0.0.1", command=(sys.executable, "-c", TELL))
    process = ReplicaProcess("r0", "127.0.0.1", settings, b"the secret of this cluster")
    with pytest.raises(DragomanError, match="ended with status 3") as ended:
        await process.start()
    process.kill()
    assert "DRAGOMAN_MAX_CONTEXT" in str(ended.value)
    assert "DRAGOMAN_REPLICA" in str(ended.value)
    for name in ("TLS", "PORT", "HOST", "UDS", "PUBLIC"):
        assert f"DRAGOMAN_{name}" not in str(ended.value)


def test_a_server_of_a_cluster_has_no_certificate() -> None:
    with pytest.raises(DragomanError, match="--tls-cert is the ingress's"):
        certificates_of(NetworkSettings(tls_cert="cert.pem", cluster_secret_file="secret"))
