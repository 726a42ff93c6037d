"""``dragoman plan``: a model's memory and possible speed on this machine, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dragoman.cli import console
from dragoman.cli.settings import DraftChoice, MachineSettings, ModelChoice
from dragoman.core.errors import ModelError
from dragoman.models.adapters.source import find_adapter_config
from dragoman.models.settings import ModelSettings, RequestedPrecision
from dragoman.serving.adapter_registry import AdapterRegistry
from dragoman.serving.settings import AdapterSettings

if TYPE_CHECKING:
    from dragoman.models import MemoryPlan, ModelDescription
    from dragoman.models.topology import Placement

MEASURE_S = 0.5


def plan(
    choice: ModelChoice,
    settings: ModelSettings,
    machine: MachineSettings,
    adapters: AdapterSettings,
    drafting: DraftChoice,
) -> None:
    """Show what a model takes on this machine: memory, context, and the speed that the memory allows.

    With --precision auto, the stored precision and every lower one stand side by side. Adapters are counted by their
    configs.
    """
    from dragoman.models import describe

    described = describe(choice.model, **settings.describing)
    first, others = adapters_of(adapters, settings)
    draft = drafting_bytes(described, drafting, settings)
    plans = plans_of(described, settings, first, sum(draft.values()))
    placement = machine.placement()
    bandwidth = measured_bandwidth(placement)
    offered = [adapter_sizes(described, others, found.precision) for found in plans]
    print_plans(described, plans, bandwidth, str(placement), settings.max_adapters, offered if others else [], draft)


def drafting_bytes(described: ModelDescription, drafting: DraftChoice, settings: ModelSettings) -> dict[str, int]:
    """Return the bytes of what drafts for a model, by its name: a draft model, a head, or nothing.

    Raises ModelError for what cannot draft for it.
    """
    from dragoman.models import EagleChoice, plan_draft, plan_eagle, plan_head

    found = {}
    if drafting.draft_model is not None:
        planned = plan_draft(drafting.draft_model, settings, drafting.draft_precision, drafting.draft_context)[2]
        found["draft model"] = planned.total_bytes
    if drafting.draft_heads:
        planned_head = plan_head(described, settings, drafting.draft_context, draft_model=drafting.draft_model)
        found["head"] = planned_head.nbytes
    if drafting.draft_eagle is not None:
        eagle = EagleChoice(source=drafting.draft_eagle, precision=drafting.draft_precision)
        others = bool(found)
        found["head"] = plan_eagle(described, eagle, settings, drafting.draft_context, others=others).nbytes
    return found


def adapters_of(asked: AdapterSettings, settings: ModelSettings) -> tuple[list[Path], list[Path]]:
    """Return the folders with the configs of the adapters of the start, and of adapters that may be loaded later.

    Raises ModelError for a missing adapter of the start, and where there are more than the model has places for.
    """
    registry = AdapterRegistry(asked, token=settings.token)
    if len(registry.first) > settings.max_adapters:
        raise ModelError(f"--lora-adapters: {len(registry.first)} adapters, and --max-adapters {settings.max_adapters}")
    first = [find_adapter_config(each.source, revision=each.revision, token=settings.token) for each in registry.first]
    return first, [Path(adapter.source) for adapter in registry.sources() if adapter not in registry.first]


def adapter_sizes(described: ModelDescription, folders: Sequence[Path], precision: str) -> int:
    """Return the bytes of all these adapters, in addition to the model. Raises ModelError for one that is not for
    this model."""
    from dragoman.models import adapter_bytes

    return sum(adapter_bytes(folder, described.spec, precision) for folder in folders)


def plans_of(
    described: ModelDescription, settings: ModelSettings, adapters: Sequence[Path] = (), draft_bytes: int = 0
) -> list[MemoryPlan]:
    """Return the plan of the asked precision; for ``auto`` the plans of the stored one and all lower ones.
    ``adapters``: folders of those that are loaded at the start. ``draft_bytes``: of the draft model."""
    from dragoman.models import first_plan

    stored = described.precision(settings.precision)
    lower: dict[str, tuple[RequestedPrecision, ...]] = {
        "float32": ("bfloat16", "int8", "int4"),
        "bfloat16": ("int8", "int4"),
    }
    precisions = (stored, *(lower.get(stored, ()) if settings.precision == "auto" else ()))
    return [
        first_plan(
            described,
            msgspec.structs.replace(settings, precision=precision),
            draft_bytes=draft_bytes,
            first_adapters_bytes=adapter_sizes(described, adapters, precision),
        )
        for precision in precisions
    ]


def measured_bandwidth(placement: Placement) -> float | None:
    """Return the bytes per second that this machine reads from memory now; None where there is too little memory for
    the measurement."""
    from dragoman import kernels
    from dragoman.models import MEASURED_BYTES, available_memory

    if available_memory() < MEASURED_BYTES:
        return None
    kernels.set_memory_nodes(placement.nodes)
    kernels.set_threads(placement.threads)
    return float(kernels.memory_bandwidth(MEASURE_S))


def _group_rows(plans: list[MemoryPlan]) -> dict[str, list[str]]:
    """Return the rows of layers that keep different positions: one for each window; none where all keep the same. And
    one of own blocks, where keys and values in int4 have these."""
    kept = [[group for group in found.groups if not group.own] for found in plans]
    windows = {group.window for found in kept if len(found) > 1 for group in found}
    rows = {}
    for window in sorted(windows, key=lambda each: each or math.inf, reverse=True):
        groups = [next((group for group in found if group.window == window), None) for found in kept]
        name = f"  of layers with a window of {window:,}" if window else "  of layers that see all"
        rows[name] = ["-" if group is None else console.size(group.nbytes) for group in groups]
    own = [sum(group.nbytes for group in found.groups if group.own) for found in plans]
    if any(own):
        rows["  of own blocks"] = [console.size(nbytes) for nbytes in own]
    return rows


def print_plans(
    described: ModelDescription,
    plans: list[MemoryPlan],
    bandwidth: float | None,
    threads: str,
    max_adapters: int,
    offered: list[int],
    draft: Mapping[str, int] | None = None,
) -> None:
    """Print one column for each plan. ``offered``: in each, bytes of the adapters that may be loaded later; empty
    where none are offered. ``draft``: bytes of what drafts, by its name."""
    from dragoman.models import parameter_count

    spec = described.spec
    out = console.output()
    out.print(
        f"[bold]{described.source.name}[/]: {spec.architecture}, {console.count(parameter_count(spec))} parameters, "
        f"context of {spec.context:,} tokens, stored as {described.stored_as}"
    )
    available = console.size(plans[0].available_bytes)
    speed = "too little to measure its speed" if bandwidth is None else f"read at {console.size(bandwidth)}/s"
    out.print(f"Memory: {available} available beside the server, {speed}")
    out.print(f"Threads: {threads}\n")
    precisions = [found.precision for found in plans]
    table = console.table(["", *precisions], right=precisions, no_wrap=False)
    states = {
        "states": [console.size(found.state_bytes) for found in plans],
        "  of one sequence": [console.size(found.bytes_per_state) for found in plans],
    }
    if not spec.state_parts:
        states.clear()
    mapped = {"  rows left in the file": [console.size(found.mapped_bytes) for found in plans]}
    if not any(found.mapped_bytes for found in plans):
        mapped.clear()
    rows = {
        "weights": [console.size(found.resident_bytes) for found in plans],
        **mapped,
        **({"  of the vision tower": [console.size(found.vision_bytes) for found in plans]} if spec.vision else {}),
        "keys and values": [console.size(found.kv_bytes) for found in plans],
        "  of one token": [console.size(found.kv_bytes_per_token) for found in plans],
        "  of the largest context": [console.size(found.sequence_kv_bytes) for found in plans],
        **_group_rows(plans),
        **states,
        "activations and tables": [console.size(found.activation_bytes + found.table_bytes) for found in plans],
        "adapters at the start": [console.size(found.first_adapters_bytes) for found in plans],
        f"  room for up to {max_adapters}": [console.size(found.adapter_room_bytes) for found in plans],
        **({"  offered beside them": [console.size(size) for size in offered]} if offered else {}),
        **{name: [console.size(nbytes)] * len(plans) for name, nbytes in (draft or {}).items()},
        "in all": [console.size(found.total_bytes + sum((draft or {}).values())) for found in plans],
        "fits": ["no" if found.refusal else "yes" for found in plans],
        "largest context": [f"{found.context_tokens:,} tokens" for found in plans],
        "  how many at once": [f"{found.concurrency:.3g}" for found in plans],
        **(
            {"keys and values of an image": [console.size(each.image_rows * each.kv_bytes_per_token) for each in plans]}
            if plans[0].image_rows
            else {}
        ),
        **({"tokens of an image, at most": [f"{spec.vision.most_tokens:,}"] * len(plans)} if spec.vision else {}),
        "one stream, at most": [
            "-" if bandwidth is None else f"{console.rate(found.tokens_per_second(bandwidth))} tokens/s"
            for found in plans
        ],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    out.print(table)
    for refusal in dict.fromkeys(found.refusal for found in plans if found.refusal):
        out.print(f"\n{refusal}.")
