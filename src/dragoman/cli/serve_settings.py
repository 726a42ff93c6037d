"""All settings of ``dragoman serve``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from dragoman.cli.logs import LogSettings
from dragoman.cli.settings import MachineSettings, ModelChoice
from dragoman.cli.tunnel import TunnelSettings
from dragoman.engine.settings import DiskCacheSettings, RecoverySettings, SchedulerSettings
from dragoman.engine_client.vllm.settings import RemoteEngineSettings
from dragoman.models.settings import ModelSettings
from dragoman.server.keys import KeySettings
from dragoman.server.settings import (
    BrowserSettings,
    IdempotencySettings,
    KvEventSettings,
    LimitSettings,
    NetworkSettings,
    ServerSettings,
)
from dragoman.server.tracing import TracingSettings
from dragoman.serving.settings import (
    AdapterSettings,
    BatchSettings,
    CatalogSettings,
    ContinueSettings,
    RecordSettings,
    ResponseSettings,
    SamplingSettings,
    WorkSettings,
)


class ServeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of options, in the order of the help. A new group is one more field, which gives its options to all
    commands that serve.

    Attributes:
        dialects: by name, the settings of each dialect.
    """

    choice: ModelChoice = ModelChoice()
    model: ModelSettings = ModelSettings()
    sampling: SamplingSettings = SamplingSettings()
    machine: MachineSettings = MachineSettings()
    scheduling: SchedulerSettings = SchedulerSettings()
    recovery: RecoverySettings = RecoverySettings()
    disk_cache: DiskCacheSettings = DiskCacheSettings()
    remote: RemoteEngineSettings = RemoteEngineSettings()
    server: ServerSettings = ServerSettings()
    network: NetworkSettings = NetworkSettings()
    work: WorkSettings = WorkSettings()
    keys: KeySettings = KeySettings()
    limits: LimitSettings = LimitSettings()
    browsers: BrowserSettings = BrowserSettings()
    catalog: CatalogSettings = CatalogSettings()
    adapters: AdapterSettings = AdapterSettings()
    continuing: ContinueSettings = ContinueSettings()
    responses: ResponseSettings = ResponseSettings()
    batches: BatchSettings = BatchSettings()
    idempotency: IdempotencySettings = IdempotencySettings()
    recording: RecordSettings = RecordSettings()
    kv_events: KvEventSettings = KvEventSettings()
    logs: LogSettings = LogSettings()
    traces: TracingSettings = TracingSettings()
    tunnel: TunnelSettings = TunnelSettings()
    dialects: Mapping[str, msgspec.Struct]


GROUPS: dict[str, type[msgspec.Struct]] = {
    name: group for name, group in get_type_hints(ServeSettings).items() if name != "dialects"
}
"""The groups by name, each with its struct."""


def settings_of(groups: Mapping[str, Any]) -> ServeSettings:
    """Return a command's settings by group; every group that is not one of ``GROUPS`` belongs to a dialect."""
    own = {name: group for name, group in groups.items() if name in GROUPS}
    return ServeSettings(**own, dialects={name: group for name, group in groups.items() if name not in GROUPS})
