"""The arguments of the application, and the options of the command."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.cli.cluster import ClusterOptions, settings_of
from dragoman.cluster.settings import cluster_settings
from dragoman.core.errors import DragomanError


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"replica": 3}, "replica"),
        ({"replicas": 0}, "replicas"),
        ({"options": ["--port=1"]}, "--port"),
        ({"options": ["--host", "0.0.0.0"]}, "--host"),
        ({"options": ["--cluster-secret-file=x"]}, "--cluster-secret-file"),
        ({"options": ["--tls-key=x"]}, "--tls-key"),
        ({"max_replicas": 3}, "min_replicas"),
        ({"min_replicas": 4, "max_replicas": 3}, "min_replicas"),
        ({"secret": "short"}, "secret"),
        ({"replica_ports": [9, 3]}, "replica_ports"),
        ({"port": 8000, "host": "0.0.0.0"}, "0.0.0.0"),
        ({"replica_host": "0.0.0.0"}, "0.0.0.0"),
        ("text", "arguments"),
    ],
)
def test_wrong_arguments_are_refused_by_name(arguments: Any, named: str) -> None:
    with pytest.raises(DragomanError, match=named.replace("--", "--")):
        cluster_settings(arguments)


def test_the_command_line_becomes_the_arguments() -> None:
    options = ClusterOptions(replicas=3, max_replicas=5, replica_option=("--max-context=512",), api_key_file="keys")
    settings = settings_of("some/model", options)
    assert settings.model == "some/model"
    assert settings.options[0].startswith("--api-key-file=/")
    assert settings.options[1:] == ("--max-context=512",)
    assert (settings.replicas, settings.min_replicas, settings.max_replicas) == (3, 1, 5)
    assert settings.replica_host == "127.0.0.1"
    assert settings.tls_cert is None
    certified = settings_of(None, ClusterOptions(tls_cert="cert.pem", tls_key="key.pem"))
    assert all(each and each.startswith("/") for each in (certified.tls_cert, certified.tls_key))


def test_other_machines_need_keys() -> None:
    with pytest.raises(DragomanError, match="--api-key-file"):
        settings_of(None, ClusterOptions(host="0.0.0.0"))
    assert settings_of(None, ClusterOptions(host="0.0.0.0", insecure=True)).insecure
    assert settings_of(None, ClusterOptions(host="0.0.0.0", api_key_file="keys")).has_keys
