"""The answers of a server that has nothing else to do and never fails."""

from __future__ import annotations

from typing import Any

from tests.simulation.plan import Plan
from tests.simulation.workload import Template

Content = tuple[int, dict[str, list[str]]]
"""Status and content of an answer, as ``workload.comparable`` makes it."""

REFERENCES: dict[tuple[Any, ...], Content] = {}


def reference(plan: Plan, template: Template) -> Content:
    """Status and content of the answer of a server that has nothing else to do and never fails."""
    key = (template.number, plan.stub.max_context, plan.stub.period)
    if key not in REFERENCES:
        raise LookupError(f"no reference for template {key}: call ``prepare`` first")
    return REFERENCES[key]
