"""The first model of a server is planned beside the server, in one way for all who ask before it is loaded."""

from __future__ import annotations

from functools import partial

import pytest

from dragoman.cli.plan import measured_bandwidth, plans_of
from dragoman.core.errors import ModelError
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.worker_settings import worker_settings
from dragoman.models import ModelSettings, describe, loading, memory_share
from dragoman.models.memory_share import (
    STARTED_ENGINE_BYTES,
    STARTED_SERVER_BYTES,
    TEXT_FACTOR,
    first_plan,
)
from dragoman.models.topology import place

STARTED = STARTED_SERVER_BYTES + STARTED_ENGINE_BYTES
SETTINGS = ModelSettings(precision="int8")


@pytest.fixture
def leave(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(memory_share, "_anonymous_bytes", lambda process: 0)
    return monkeypatch


def smallest_that_fits(leave: pytest.MonkeyPatch) -> int:
    """The least memory with which ``dragoman plan`` says that the embedded model fits."""
    described, fits, too_little = describe(None), 1 << 30, 0
    while fits - too_little > 1000:
        middle = (fits + too_little) // 2
        leave.setattr(memory_share, "available_memory", partial(int, middle))
        [found] = plans_of(described, SETTINGS)
        fits, too_little = (middle, too_little) if found.refusal is None else (fits, middle)
    return fits


def test_what_plan_says_to_fit_is_served_and_nothing_else(leave: pytest.MonkeyPatch) -> None:
    edge = smallest_that_fits(leave)
    assert edge > STARTED
    leave.setattr(memory_share, "available_memory", lambda: edge)
    [found] = plans_of(describe(None), SETTINGS)
    worker, _ = worker_settings(None, SETTINGS, SchedulerSettings())
    assert worker.available_bytes == found.available_bytes
    # The engine finds about what was expected, and has the same context.
    leave.setattr(loading, "available_memory", lambda: found.available_bytes - 1_000_000)
    loaded = loading.load(None, SETTINGS, available_bytes=worker.available_bytes)
    assert (loaded.plan.available_bytes, loaded.plan.context_tokens) == (found.available_bytes, found.context_tokens)

    leave.setattr(memory_share, "available_memory", lambda: edge - 2000)
    assert plans_of(describe(None), SETTINGS)[0].refusal is not None
    with pytest.raises(ModelError, match="does not fit"):
        worker_settings(None, SETTINGS, SchedulerSettings())


def test_an_engine_that_finds_much_less_than_was_planned_takes_no_more_than_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "available_memory", lambda: 2_000_000)
    with pytest.raises(ModelError, match="does not fit"):
        loading.load(None, SETTINGS, available_bytes=100_000_000)
    monkeypatch.setattr(loading, "available_memory", lambda: 90_000_000)
    assert loading.load(None, SETTINGS, available_bytes=150_000_000).plan.available_bytes == 105_000_000


def test_memory_that_the_server_has_taken_already_is_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    described = describe(None)
    tokenizer = TEXT_FACTOR * (described.tokenizer_folder / "tokenizer.json").stat().st_size
    monkeypatch.setattr(memory_share, "available_memory", lambda: 1_000_000_000)
    monkeypatch.setattr(memory_share, "_anonymous_bytes", lambda process: 10_000_000)
    monkeypatch.setattr("psutil.Process.children", lambda self: [])
    available = first_plan(described, SETTINGS).available_bytes
    assert available == 1_000_000_000 - STARTED + 10_000_000 - tokenizer
    monkeypatch.setattr("psutil.Process.children", lambda self: [self])
    assert first_plan(described, SETTINGS).available_bytes == available + 10_000_000
    assert first_plan(described, SETTINGS, draft_bytes=5).available_bytes == available + 10_000_000 - 5
    monkeypatch.setattr(memory_share, "_anonymous_bytes", lambda process: 1 << 40)
    assert first_plan(described, SETTINGS).available_bytes == 1_000_000_000 - tokenizer


def test_the_speed_of_little_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.models.memory.available_memory", lambda: 200_000_000)
    monkeypatch.setattr("dragoman.models.available_memory", lambda: 200_000_000, raising=False)
    monkeypatch.setattr("dragoman.kernels.memory_bandwidth", lambda seconds: pytest.fail("it takes 256 MiB"))
    assert measured_bandwidth(place()) is None
