"""What a seed stands for: settings, clients and faults of one world."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dragoman.engine.messages import StubModel
from dragoman.engine.settings import SchedulerSettings
from dragoman.server.settings import ServerSettings
from tests.simulation.key_files import EDITS
from tests.simulation.sharing import tokenizer


@dataclass
class Plan:
    """What a seed stands for."""

    seed: int
    stub: StubModel
    scheduler: SchedulerSettings
    settings: ServerSettings
    step_s: float
    clients: int
    has_keys: bool
    faults: list[tuple[float, str]]
    drains_at_s: float | None
    poison: bool
    limits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By holder, as the file of keys has them; without keys those of ann hold for all."""
    dies_at_s: float | None = None
    """When the server is killed, and another one started."""
    is_flooded: bool = False
    """All callers always have work, and shares are compared."""


def plan_of(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    stub = StubModel(
        vocab_size=tokenizer().vocab_size,
        max_context=rng.choice([256, 512]),
        num_blocks=rng.choice([20, 24, 48]),
        max_tokens=rng.choice([64, 256]),
        max_sequences=rng.choice([4, 8, 32]),
        max_logit_rows=32,
        period=rng.choice([0, 0, 7]),
    )
    scheduler = SchedulerSettings(prefix_cache=rng.random() < 0.8, speculation=rng.choice([0, 0, 6, 12]))
    faults: list[tuple[float, str]] = []
    kinds = ["kill", "kill", "kill", "hang", "slow", "disk full", "clock", "start dies", "start fails", "descriptors"]
    if seed % 10:  # every tenth world has no faults but its clients
        faults = [(rng.uniform(0, 4), rng.choice(kinds)) for _ in range(rng.choice([1, 2, 3, 6]))]
        if rng.random() < 0.25:
            faults.append((rng.uniform(0, 3), "swap"))
    of_groups = random.Random(f"groups {seed}")
    if of_groups.random() < 0.3:
        stub = msgspec.structs.replace(stub, more_pools=((of_groups.choice([40, 100]), of_groups.choice([20, 30])),))
    if of_groups.random() < 0.2:
        stub = msgspec.structs.replace(stub, own_blocks=of_groups.choice([12, 40]))
    plan = Plan(
        seed=seed,
        stub=stub,
        scheduler=scheduler,
        settings=ServerSettings(
            port=0,
            name="stub",
            max_waiting=rng.choice([3, 64]),
            access_log=False,
            write_timeout_s=5.0,
            body_timeout_s=4.0,
            generation_timeout_s=rng.choice([None, None, 60.0]),
            drain_s=rng.choice([0.2, 5.0, 60.0]),
        ),
        step_s=rng.choice([0.001, 0.01, 0.03]),
        clients=rng.randint(3, 7),
        has_keys=rng.random() < 0.5,
        faults=sorted(faults),
        drains_at_s=rng.uniform(0.2, 4) if rng.random() < 0.3 else None,
        poison=rng.random() < 0.1,
    )
    _limit(plan, random.Random(f"keys and limits {seed}"))
    if seed % FLOODED == FLOODED - 1:
        _flood(plan, random.Random(f"flood {seed}"))
    return plan


def _limit(plan: Plan, rng: random.Random) -> None:
    """Add limits of callers, edits of the file of keys, and the death of the server."""
    if rng.random() < 0.4:
        plan.limits = {holder: limits_of(rng) for holder in ("ann", "bob")}
    if not plan.has_keys:
        plan.limits = {
            holder: {k: v for k, v in given.items() if k in FOR_ALL} for holder, given in plan.limits.items()
        }
    elif plan.seed % 10 and rng.random() < 0.5:
        plan.faults += [(rng.uniform(0, 4), f"keys {rng.choice(EDITS)}") for _ in range(rng.choice([1, 2, 4]))]
    if plan.seed % 10 and rng.random() < 0.1:
        plan.dies_at_s = rng.uniform(0.5, 4)
        plan.step_s = rng.choice([plan.step_s, 0.15])  # answers then last longer than what may be lost


def _flood(plan: Plan, rng: random.Random) -> None:
    """Make it a world in which the bound of ``fair_shares`` holds."""
    plan.is_flooded = plan.has_keys = True
    plan.poison, plan.drains_at_s, plan.dies_at_s = False, None, None
    plan.limits = {holder: {"weight": rng.choice([1.0, 1.0, 2.0, 4.0])} for holder in ("ann", "bob", "admin")}
    plan.stub = msgspec.structs.replace(
        plan.stub, max_context=512, num_blocks=200, max_tokens=256, max_sequences=rng.choice([3, 4, 8])
    )
    plan.stub = msgspec.structs.replace(plan.stub, more_pools=tuple((w, 200) for w, _ in plan.stub.more_pools))
    plan.stub = msgspec.structs.replace(plan.stub, own_blocks=200 if plan.stub.own_blocks else 0)
    plan.settings = msgspec.structs.replace(plan.settings, max_waiting=256, generation_timeout_s=None)
    plan.faults = [(rng.uniform(0, 4), rng.choice(["kill", "slow", "clock"])) for _ in range(rng.choice([0, 1, 2]))]


FLOODED = 40
"""Every so many worlds one is flooded."""
FOR_ALL = ("max_running", "max_waiting", "requests_per_minute", "tokens_per_minute")
"""Limits that a server without keys may have in the simulation: after a minute everybody may ask again."""


def limits_of(rng: random.Random) -> dict[str, Any]:
    """Limits of a holder; most have few."""
    choices: dict[str, list[Any]] = {
        "requests_per_minute": [None, None, None, 2, 5],
        "tokens_per_minute": [None, None, None, 60, 300, 1000],
        "requests_per_day": [None, None, None, None, 4],
        "tokens_per_day": [None, None, None, None, 400],
        "max_running": [None, None, None, 1, 3],
        "max_waiting": [None, None, None, 1, 3],
        "weight": [None, None, 2.0, 0.5],
    }
    drawn = {name: rng.choice(values) for name, values in choices.items()}
    return {name: value for name, value in drawn.items() if value is not None}
