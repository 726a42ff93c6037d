"""What a model takes, as it is planned before it is loaded beside others or after them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dragoman.engine.messages import LoadModel, WorkerSettings
from dragoman.models.memory_share import SERVER_BYTES
from dragoman.serving import model_planner
from dragoman.serving.adapter_registry import AdapterRegistry
from dragoman.serving.memory_budget import MemoryBudget
from dragoman.serving.model_planner import GROWN_BYTES, ModelPlanner
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.settings import AdapterSettings

BUILTIN = Path(__file__).parents[2] / "builtin"


@pytest.mark.parametrize("machine_bytes", [400_000_000, 700_000_000, 2_000_000_000])
def test_a_model_whose_context_fills_the_memory_fits_in_again_after_another(
    machine_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "long"
    shutil.copytree(BUILTIN, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}))
    monkeypatch.setattr(model_planner, "available_memory", lambda: machine_bytes)
    worker = WorkerSettings(model=LoadModel(source=str(folder)))
    planner = ModelPlanner(worker, AdapterRegistry(AdapterSettings()), None)
    found = planner.memory_of(ModelSource(name="long", source=str(folder)))
    assert found.serving_bytes > 0.5 * machine_bytes
    budget = MemoryBudget(available=lambda: machine_bytes, measure=lambda _: SERVER_BYTES + GROWN_BYTES)
    budget.measure_server(())
    budget.require_possible("long", found, ())
    assert budget.short_bytes(found, ()) == 0


def test_a_model_that_fits_alone_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_planner, "available_memory", lambda: 30_000_000)  # less than a process takes
    planner = ModelPlanner(WorkerSettings(model=LoadModel()), AdapterRegistry(AdapterSettings()), None)
    assert planner.memory_of(ModelSource(name="embedded", source=None)).serving_bytes > 30_000_000


def test_a_model_that_leaves_no_room_for_a_grown_server_has_a_context_that_can_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "long"
    shutil.copytree(BUILTIN, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}))
    machine_bytes = 220_000_000  # the shortest context, in a server that has grown, takes 280
    monkeypatch.setattr(model_planner, "available_memory", lambda: machine_bytes)
    planner = ModelPlanner(
        WorkerSettings(model=LoadModel(source=str(folder))), AdapterRegistry(AdapterSettings()), None
    )
    found = planner.memory_of(ModelSource(name="long", source=str(folder)))
    budget = MemoryBudget(available=lambda: machine_bytes, measure=lambda _: SERVER_BYTES)
    budget.measure_server(())
    budget.require_possible("long", found, ())
