"""``dragoman plan``: what a model takes on this machine and how fast it can be, before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dragoman.cli import console
from dragoman.cli.settings import MachineSettings, ModelChoice
from dragoman.models.settings import AskedPrecision, ModelSettings

if TYPE_CHECKING:
    from dragoman.models import MemoryPlan, ModelDescription

MEASURE_S = 0.5


def plan(choice: ModelChoice, settings: ModelSettings, machine: MachineSettings) -> None:
    """Show what a model takes on this machine: memory, context, and the speed that the memory allows.

    With --precision auto, the stored precision and every lower one stand side by side.
    """
    from dragoman.models import describe

    described = describe(choice.model, revision=settings.revision, token=settings.token, rope=settings.rope)
    plans = plans_of(described, settings)
    bandwidth = measured_bandwidth(machine.threads)
    print_plans(described, plans, bandwidth)


def plans_of(described: ModelDescription, settings: ModelSettings) -> list[MemoryPlan]:
    """The plan of the asked precision; for ``auto`` those of the stored one and of all below it."""
    from dragoman.models import plan as plan_memory

    stored = described.precision(settings.precision)
    lower: dict[str, tuple[AskedPrecision, ...]] = {
        "float32": ("bfloat16", "int8", "int4"),
        "bfloat16": ("int8", "int4"),
    }
    precisions = (stored, *(lower.get(stored, ()) if settings.precision == "auto" else ()))
    return [plan_memory(described, msgspec.structs.replace(settings, precision=precision)) for precision in precisions]


def measured_bandwidth(threads: int | None) -> float:
    """Bytes per second that this machine reads from memory just now."""
    from dragoman import kernels

    if threads is not None:
        kernels.set_threads(threads)
    return float(kernels.memory_bandwidth(MEASURE_S))


def print_plans(described: ModelDescription, plans: list[MemoryPlan], bandwidth: float) -> None:
    """One column for each plan."""
    from rich.table import Table

    from dragoman.models.parameters import parameter_count

    spec = described.spec
    out = console.output()
    out.print(
        f"[bold]{described.source.name}[/]: {spec.architecture}, {console.count(parameter_count(spec))} parameters, "
        f"context of {spec.context:,} tokens, stored as {described.stored_as}"
    )
    out.print(f"Memory: {console.size(plans[0].available_bytes)} available, read at {console.size(bandwidth)}/s\n")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for found in plans:
        table.add_column(found.precision, justify="right")
    rows = {
        "weights": [console.size(found.weight_bytes) for found in plans],
        "keys and values": [console.size(found.kv_bytes) for found in plans],
        "  of one token": [console.size(found.kv_bytes_per_token) for found in plans],
        "activations and tables": [console.size(found.activation_bytes + found.table_bytes) for found in plans],
        "in all": [console.size(found.total_bytes) for found in plans],
        "fits": ["no" if found.refusal else "yes" for found in plans],
        "largest context": [f"{found.context_tokens:,} tokens" for found in plans],
        "  how many at once": [f"{found.concurrency:.3g}" for found in plans],
        "one stream, at most": [f"{console.rate(found.tokens_per_second(bandwidth))} tokens/s" for found in plans],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    out.print(table)
    for refusal in dict.fromkeys(found.refusal for found in plans if found.refusal):
        out.print(f"\n{refusal}.")
