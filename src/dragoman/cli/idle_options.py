"""Options that do nothing beside the others: their user is told so, once, at the start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from dragoman.cli.serve_settings import ServeSettings


class _Rule(NamedTuple):
    """Options of a group without effect. ``idle``: whether that is so. ``because``: the words after their names.
    ``names``: of the options; empty: all of the group except what ``because`` names."""

    group: str
    names: tuple[str, ...]
    idle: Callable[[ServeSettings], bool]
    because: str


_RULES = (
    _Rule("server", ("host", "port"), lambda s: s.network.uds is not None, "with --uds"),
    _Rule("network", ("uds_mode",), lambda s: s.network.uds is None, "without --uds"),
    _Rule("network", ("proxy_header",), lambda s: not s.network.trusted_proxy, "without --trusted-proxy"),
    _Rule("recording", (), lambda s: s.recording.record is None, "without --record"),
    _Rule("kv_events", (), lambda s: not s.kv_events.kv_events, "without --kv-events"),
    _Rule("traces", ("otlp_service_name",), lambda s: s.traces.otlp_endpoint is None, "without --otlp-endpoint"),
    _Rule("remote", (), lambda s: not s.remote.engine, "without --engine"),
    _Rule("limits", ("ledger_days",), lambda s: s.limits.ledger == "off", "with --ledger off"),
    _Rule("responses", (), lambda s: s.responses.responses_store == "off", "with --responses-store off"),
    _Rule("batches", (), lambda s: s.batches.files_store == "off", "with --files-store off"),
    _Rule(
        "scheduling",
        ("draft_context", "draft_precision"),
        lambda s: not (s.scheduling.draft_model or s.scheduling.draft_heads or s.scheduling.draft_eagle),
        "without --draft-model, --draft-heads or --draft-eagle",
    ),
    _Rule(
        "scheduling",
        ("draft_model", "draft_heads", "draft_eagle"),
        lambda s: s.scheduling.speculation == 0,
        "with --speculation 0",
    ),
    _Rule(
        "disk_cache",
        ("prefix_cache_folder",),
        lambda s: s.disk_cache.prefix_cache_bytes == 0,
        "with --prefix-cache-bytes 0",
    ),
    _Rule(
        "disk_cache",
        ("prefix_cache_folder", "prefix_cache_bytes"),
        lambda s: not s.scheduling.prefix_cache and s.disk_cache.prefix_cache_bytes != 0,
        "with --no-prefix-cache",
    ),
    _Rule("model", ("cache_folder",), lambda s: s.model.cache_bytes == 0, "with --cache-bytes 0"),
    _Rule(
        "catalog",
        ("offer", "models_folder", "offer_downloads", "idle_unload_s", "request_loads"),
        lambda s: s.catalog.fixed_model,
        "with --fixed-model",
    ),
)


def idle_options(settings: ServeSettings) -> Iterator[str]:
    """Yield a sentence about each option that is not as by default, and has no effect beside the others."""
    seen = set[str]()
    for rule in _RULES:
        if not rule.idle(settings):
            continue
        values = getattr(settings, rule.group)
        for field in msgspec.structs.fields(type(values)):
            flag = "--" + field.name.replace("_", "-")
            is_meant = field.name in rule.names if rule.names else flag not in rule.because.split()
            if is_meant and flag not in seen and getattr(values, field.name) != field.default:
                seen.add(flag)
                yield f"{flag} has no effect {rule.because}"
