"""``dragoman cluster serve``: several servers behind one port, on Ray Serve."""

from __future__ import annotations

import os
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from dragoman.cli import console
from dragoman.cli.settings import ModelChoice
from dragoman.cluster.settings import ClusterSettings, cluster_settings
from dragoman.core.errors import DragomanError
from dragoman.core.regular_file import FileName
from dragoman.server.keys import reaches_others
from dragoman.server.settings import DialectName

Count = Annotated[int, Meta(ge=1)]


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster.

    Attributes:
        replicas: servers of the model; with --max-replicas those to begin with.
        min_replicas: least number of replicas, where it follows the load.
        max_replicas: greatest number of replicas; their number then follows the requests that wait, and the use of the
            cache's blocks.
        ray_address: address of a running Ray cluster, or auto for the one of this machine; by default one is started
            here, and ends with the command.
        host: address that the ingress listens on.
        port: port that it listens on.
        replica_option: an option of `dragoman serve` for each replica, such as --replica-option=--max-context=4096; may
            be given several times.
        api_key_file: file with the API keys of callers, as of `dragoman serve`; every replica reads it.
        insecure: let callers from other machines in without API keys.
        replica_cpus: processors that Ray reserves for one replica.
        spill: requests by which the replica with the longest prefix of a prompt may be busier than the least busy one.
        drain_s: seconds that running answers get at the end.
        dialect: the dialect of answers where nothing says which one a client speaks.
        tls_cert: file with the ingress's certificate, in PEM; with it the port speaks TLS.
        tls_key: file with its private key; by default it is in the same file.
    """

    PANEL: ClassVar[str] = "Cluster"

    replicas: Count = 1
    min_replicas: Count | None = None
    max_replicas: Count | None = None
    ray_address: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535, extra={"short": "-p"})] = 8000
    replica_option: tuple[str, ...] = ()
    api_key_file: FileName | None = None
    insecure: bool = False
    replica_cpus: Annotated[float, Meta(ge=0)] = 1.0
    spill: Annotated[int, Meta(ge=0)] = 8
    drain_s: Annotated[float, Meta(ge=0)] = 30.0
    dialect: DialectName = "openai"
    tls_cert: FileName | None = None
    tls_key: FileName | None = None


def serve(choice: ModelChoice, cluster: ClusterOptions) -> None:
    """Serve a model with several replicas behind one port, on Ray Serve: needs the extra ray."""
    settings = settings_of(choice.model, cluster)
    try:
        from dragoman.cluster.ray_command import run
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise DragomanError("Ray Serve is not installed: pip install 'dragoman[ray]'") from None
    scheme = "https" if cluster.tls_cert else "http"
    words = f"{cluster.replicas} replicas at {scheme}://{cluster.host}:{cluster.port}; Ctrl-C stops them"
    run(settings, cluster.ray_address, lambda: console.say(words))


def settings_of(model: str | None, cluster: ClusterOptions) -> ClusterSettings:
    """Return the cluster's settings. Raises DragomanError where they contradict each other, or would let anybody in."""
    if reaches_others(cluster.host) and cluster.api_key_file is None and not cluster.insecure:
        raise DragomanError(
            f"--host {cluster.host} lets other machines in: --api-key-file names who may call, --insecure does without"
        )
    keys = () if cluster.api_key_file is None else (f"--api-key-file={os.path.abspath(cluster.api_key_file)}",)
    fields: dict[str, Any] = {
        "model": model if model is None or not os.path.isdir(model) else os.path.abspath(model),
        "options": (*keys, *cluster.replica_option),
        "replicas": cluster.replicas,
        "min_replicas": cluster.min_replicas or (1 if cluster.max_replicas else None),
        "max_replicas": cluster.max_replicas,
        "cpus": cluster.replica_cpus,
        "spill": cluster.spill,
        "host": cluster.host,
        "port": cluster.port,
        "drain_s": cluster.drain_s,
        "dialect": cluster.dialect,
        "insecure": cluster.insecure,
        "tls_cert": cluster.tls_cert and os.path.abspath(cluster.tls_cert),
        "tls_key": cluster.tls_key and os.path.abspath(cluster.tls_key),
    }
    if cluster.ray_address is None:
        fields["replica_host"] = "127.0.0.1"
    return cluster_settings(fields)
