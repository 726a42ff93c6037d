"""A request as every other dialect would send it, and what would be lost there.

No translation is written down: bodies are made from the other dialect's table (``dialects.explain_translation``), tried
with its own handler, and the closest one is shown with the differences that are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.core.errors import DragomanError
from dragoman.core.explanation import Explanation
from dragoman.core.request import ChatPrompt
from dragoman.core.serving import Serving
from dragoman.dialects.api import Dialect, Operation
from dragoman.dialects.dry_run import Check, DryRun, Outer, dry_run
from dragoman.dialects.explain_translation import (
    Lost,
    Source,
    counterpart,
    first_bodies,
    flattened,
    losses,
    wires_of,
    with_parameters,
    with_switches,
    without,
)

MOST_TRIES = 8
"""How often a body is tried, each time without a field that the dialect refused."""

MOST_SWITCHES = 16
"""How many of a dialect's own switches are tried."""

_MAX_TOKENS = "ending.max_tokens"


class InDialect(msgspec.Struct, frozen=True, kw_only=True):
    """The same request in another dialect. ``error``: why it cannot be expressed there."""

    dialect: str
    method: str
    path: str
    body: Any
    lost: tuple[Lost, ...] = ()
    error: str = ""


class FirstRequest(NamedTuple):
    """The request that is explained: its operation and body, what that asked for, and the first of it explained."""

    operation: Operation
    body: Any
    run: DryRun
    explained: Explanation


class Elsewhere:
    """Finds one request in other dialects."""

    def __init__(self, serving: Serving, context: Outer, check: Check, first: FirstRequest) -> None:
        self._serving, self._context, self._check, self._first = serving, context, check, first
        checked = first.run.checked
        table = first.operation.table or (checked[-1].table if checked else None)
        body = checked[-1].body if checked else first.body
        values = flattened(first.explained.request) | {_MAX_TOKENS: first.explained.max_tokens}
        wires = {} if table is None else wires_of(table, body)
        self._like = () if table is None else tuple(table.rows)
        prompt = first.run.asked[0].request.prompt
        messages = prompt.messages if isinstance(prompt, ChatPrompt) else ()
        self._source = Source(values, wires, body if isinstance(body, dict) else {}, first.explained.text, messages)
        self._ignored = frozenset() if "seeds" in wires else frozenset({"seeds"})

    async def find(self, dialect: Dialect) -> InDialect | None:
        """Return the request in another dialect; None where that has nothing that generates."""
        operation = counterpart(dialect, self._like)
        if operation is None or operation.table is None:
            return None
        table, source, model = operation.table, self._source, self._first.explained.model
        bodies = await self._context.run_blocking(lambda: first_bodies(table, source, model))
        best: InDialect | None = None
        for body in bodies:
            found = await self._with_parameters(dialect, operation, body)
            if best is None or (bool(found.error), len(found.lost)) < (bool(best.error), len(best.lost)):
                best = found
            if not best.error and not any(each.parameter == "prompt" for each in best.lost):
                break
        if best is None:
            message = "It has no field for such a prompt."
            return self._failed(dialect, operation, {}, message)
        return best

    async def _with_parameters(self, dialect: Dialect, operation: Operation, body: dict[str, Any]) -> InDialect:
        """Return the body with the parameters, and then with the switches that bring it closer."""
        table, source = operation.table, self._source
        assert table is not None
        made = await self._run(dialect, operation, body)
        has = self._values(made)
        body = await self._context.run_blocking(lambda: with_parameters(table, body, source, has))
        for _ in range(MOST_TRIES):
            made = await self._run(dialect, operation, body)
            fewer = None if made.error is None else without(body, made.error)
            if fewer is None:
                break
            body = fewer
        if made.error is not None or not made.asked:
            message = "It asks for nothing." if made.error is None else made.error.message
            return self._failed(dialect, operation, body, message)
        left = self._left(made)
        switches = await self._context.run_blocking(lambda: list(with_switches(table, body)))
        for attempt in switches[:MOST_SWITCHES] if left else ():
            run = await self._run(dialect, operation, attempt)
            if run.error is None and run.asked and self._left(run) < left:
                body, made, left = attempt, run, self._left(run)
        try:
            return await self._compared(dialect, operation, body, made)
        except DragomanError as error:
            return self._failed(dialect, operation, body, error.message)

    async def _run(self, dialect: Dialect, operation: Operation, body: dict[str, Any]) -> DryRun:
        path, params = operation.for_model(self._first.explained.model)
        return await dry_run(
            operation,
            self._serving,
            self._context,
            operation.with_model(body, params),
            self._check,
            path=f"/{dialect.name}{path}",
            path_params=params,
        )

    def _values(self, made: DryRun) -> dict[str, Any]:
        """Return the parameters of the first request that was asked for, with the model's defaults."""
        if not made.asked:
            return {}
        request = made.asked[0].request
        try:
            return flattened(self._serving.model(request.model).sampling.apply(request)[0])
        except DragomanError:
            return flattened(request)

    def _left(self, made: DryRun) -> int:
        asked, gets = self._source.values, self._values(made)
        return len(losses(asked, gets, self._ignored)) + (_switched_on(asked) != _switched_on(gets))

    async def _compared(self, dialect: Dialect, operation: Operation, body: dict[str, Any], made: DryRun) -> InDialect:
        asked, streamed = made.asked[0]
        first, second = self._first.explained, await self._serving.explain(asked, streamed=streamed)
        gets = flattened(second.request) | {_MAX_TOKENS: second.max_tokens}
        # A parameter of a step that acts in neither is of no consequence.
        read = {name for each in (first, second) for step in each.engine.steps for name in step.parameters}
        lost = [
            each
            for each in losses(self._source.values, gets, self._ignored)
            if not each.parameter.startswith("sampling.") or each.parameter.removeprefix("sampling.") in read
        ]
        lost += _other_prompt(first, second)
        if self._first.run.count != made.count:
            lost.append(Lost(parameter="prompts", asked=self._first.run.count, gets=made.count))
        path = self._path(dialect, operation)
        return InDialect(dialect=dialect.name, method=operation.method, path=path, body=body, lost=tuple(lost))

    def _failed(self, dialect: Dialect, operation: Operation, body: Mapping[str, Any], message: str) -> InDialect:
        path = self._path(dialect, operation)
        return InDialect(dialect=dialect.name, method=operation.method, path=path, body=body, error=message)

    def _path(self, dialect: Dialect, operation: Operation) -> str:
        return f"/{dialect.name}{operation.for_model(self._first.explained.model)[0]}"


def _switched_on(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the chat template that are on: what is off is mostly as if it were absent."""
    return {name: value for name, value in (values.get("prompt.template_kwargs") or {}).items() if value}


def _other_prompt(asked: Explanation, gets: Explanation) -> list[Lost]:
    """Return the difference of two prompts in tokens."""
    if asked.token_ids == gets.token_ids:
        return []
    pairs = zip(asked.token_ids, gets.token_ids, strict=False)
    shorter = min(len(asked.token_ids), len(gets.token_ids))
    same = next((place for place, (first, second) in enumerate(pairs) if first != second), shorter)
    first, second = (f"{len(each.token_ids)} tokens" for each in (asked, gets))
    return [Lost(parameter="prompt", asked=first, gets=f"{second}, the same up to token {same}")]
