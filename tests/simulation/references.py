"""The answers of a server that has nothing else to do and never fails."""

from __future__ import annotations

from typing import Any

from tests.simulation.books import Used
from tests.simulation.plan import Plan
from tests.simulation.workload import Template

Content = tuple[int, dict[str, list[str]]]
"""Status and content of an answer, as ``workload.comparable`` makes it."""

REFERENCES: dict[tuple[Any, ...], Content] = {}
USED: dict[tuple[Any, ...], Used] = {}
"""What each of these answers took."""


def reference(plan: Plan, template: Template) -> Content:
    """Status and content of the answer of a server that has nothing else to do and never fails."""
    key = (template.number, plan.stub.max_context, plan.stub.period)
    if key not in REFERENCES:
        raise LookupError(f"no reference for template {key}: call ``prepare`` first")
    return REFERENCES[key]


def used(plan: Plan, template: Template) -> Used:
    """What the whole answer takes."""
    return USED[template.number, plan.stub.max_context, plan.stub.period]
