"""Options without effect beside the others are told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.cli.idle_options import _RULES, idle_options
from dragoman.cli.serve_settings import ServeSettings

ALONE = ServeSettings(dialects={})


def given(**groups: dict[str, Any]) -> ServeSettings:
    changed = {name: msgspec.structs.replace(getattr(ALONE, name), **values) for name, values in groups.items()}
    return msgspec.structs.replace(ALONE, **changed)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({"network": {"uds_mode": "0600"}}, ["--uds-mode has no effect without --uds"]),
        ({"network": {"uds": "s", "uds_mode": "0600"}, "server": {"host": "::"}}, ["--host has no effect with --uds"]),
        ({"network": {"uds": "s"}, "server": {"port": 9000}}, ["--port has no effect with --uds"]),
        ({"recording": {"record_text": True}}, ["--record-text has no effect without --record"]),
        ({"recording": {"record": "folder", "record_text": True}}, []),
        ({"kv_events": {"kv_events_topic": "t"}}, ["--kv-events-topic has no effect without --kv-events"]),
        (
            {"responses": {"responses_store": "off", "responses_ttl_s": 5.0}},
            ["--responses-ttl-s has no effect with --responses-store off"],
        ),
        (
            {
                "scheduling": {"prefix_cache": False},
                "disk_cache": {"prefix_cache_folder": "f", "prefix_cache_bytes": 0},
            },
            ["--prefix-cache-folder has no effect with --prefix-cache-bytes 0"],
        ),
        (
            {"scheduling": {"prefix_cache": False}, "disk_cache": {"prefix_cache_bytes": 9}},
            ["--prefix-cache-bytes has no effect with --no-prefix-cache"],
        ),
        (
            {"scheduling": {"draft_context": 100}},
            ["--draft-context has no effect without --draft-model, --draft-heads or --draft-eagle"],
        ),
        ({"catalog": {"fixed_model": True, "offer": ("x",)}}, ["--offer has no effect with --fixed-model"]),
    ],
)
def test_an_option_that_does_nothing_is_told_with_the_reason(groups: dict[str, Any], told: list[str]) -> None:
    assert list(idle_options(given(**groups))) == told


def test_nothing_is_told_of_defaults_and_every_rule_names_options_that_there_are() -> None:
    assert list(idle_options(ALONE)) == []
    for rule in _RULES:
        known = {field.name for field in msgspec.structs.fields(type(getattr(ALONE, rule.group)))}
        assert set(rule.names) <= known
