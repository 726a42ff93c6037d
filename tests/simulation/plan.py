"""What a seed stands for: settings, clients and faults of one world."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dragoman.engine.messages import StubModel
from dragoman.engine.settings import SchedulerSettings
from dragoman.server.settings import ServerSettings
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
    return Plan(
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
