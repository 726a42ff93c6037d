"""``POST /explain``: what a request of any dialect would become, and the same request in every other dialect.

Everything follows from the tables and the registry: the operation is chosen as routing chooses it, its own handler is
run without generating (``dialects.dry_run``), and serving prepares what it asks for as far as the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.explanation import Estimate, Explanation, SamplingStep
from dragoman.core.request import GenerationRequest, TextPrompt
from dragoman.core.serving import Serving
from dragoman.dialects.api import Dialect, Operation, RequestContext
from dragoman.dialects.dry_run import Checked, DryRun, Outer, dry_run
from dragoman.dialects.explain_fields import MOST_FATES, FieldFate, fates, shown
from dragoman.dialects.explain_translation import flattened
from dragoman.dialects.field import Field, Reading, Table
from dragoman.dialects.field_types import Anything, Boolean, String
from dragoman.server.app_context import Endpoint, route_hint
from dragoman.server.body import read_table
from dragoman.server.exchange import error_answer
from dragoman.server.explain_choice import Choice, by_body, by_path
from dragoman.server.explain_elsewhere import Elsewhere, FirstRequest, InDialect
from dragoman.server.settings import ServerSettings

MOST_SHOWN = 8
"""Most prompts of one request that are explained; of further ones there is the number."""

MOST_TABLES = 4
MOST_HEADERS = 64
SHOWN_GRAMMAR = 16_384

EXPLAIN = Table(
    name="explain",
    fields=(
        Field(name="body", kind=Anything(), required=True, note="The request's body, in any dialect."),
        Field(
            name="path",
            kind=String(minimum=1, maximum=2048),
            note="The path that it is for, or the whole address. Absent: the operation whose table knows most of its "
            "fields.",
        ),
        Field(name="dialect", kind=String(minimum=1, maximum=64), note="The dialect, where several share the path."),
        Field(
            name="headers",
            kind=Anything(object_only=True, depth=2),
            default={},
            note="Its headers, by which some dialects know their clients. No API key: who asks is who sends this.",
        ),
        Field(name="tokens", kind=Boolean(), default=True, note="Show the tokens of the prompt one by one."),
        Field(name="others", kind=Boolean(), default=True, note="Show the same request in every other dialect."),
    ),
)


class ExplainedError(msgspec.Struct, frozen=True, kw_only=True):
    """How a request would be refused: the answer in its dialect, and the reason and the field that it names."""

    status: int
    body: Any
    message: str
    field: str | None = None


class ExplainedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it is run. ``cached_tokens``: of it, now, for this caller. ``pieces``: of each token its text."""

    text: str | None
    tokens: int
    cached_tokens: int
    token_ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()


class ExplainedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the core. ``parameters``: those that differ from the core's own defaults."""

    model: str
    parameters: dict[str, Any]
    defaults: str
    prompt: ExplainedPrompt
    max_tokens: int
    min_tokens: int
    seeds: tuple[int, ...]
    steps: tuple[SamplingStep, ...]
    grammar: str | None
    estimate: Estimate


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``POST /explain``. ``requests``: one for each prompt, at most ``MOST_SHOWN`` of ``count``.
    ``more_fields``: how many fields there are in addition to ``fields``, which has those that are told."""

    dialect: str
    method: str
    path: str
    summary: str
    why: tuple[str, ...]
    accepted: bool
    error: ExplainedError | None
    fields: list[FieldFate]
    more_fields: int
    count: int
    requests: list[ExplainedRequest]
    others: list[InDialect]


class Explainer:
    """Explains requests to the operations of a server. ``set_routes`` comes before the first one."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._paths: Mapping[str, Sequence[Endpoint]] = {}
        self._dialects: Sequence[Dialect] = ()
        self.operation = Operation(
            method="POST",
            path="/explain",
            summary="Say what a request of any dialect would become, without running it.",
            handler=self.handle,
            table=EXPLAIN,
        )

    def set_routes(self, dialects: Sequence[Dialect], paths: Mapping[str, Sequence[Endpoint]]) -> None:
        """Set what can be explained. ``dialects``: in order of precedence. ``paths``: the operations of every route."""
        self._dialects, self._paths = dialects, paths

    async def handle(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /explain``."""
        values = (await context.read(EXPLAIN)).values
        answer = await context.unless_gone(self.explain(serving, context, values))
        await context.reply(await context.run_blocking(lambda: msgspec.json.encode(answer)))

    async def explain(self, serving: Serving, context: Outer, values: Mapping[str, Any]) -> Answer:
        """Return the explanation of a checked body of ``EXPLAIN``. Raises NotFound and BadRequest where it is not known
        which operation is meant."""
        headers = _headers(values["headers"])
        body = values["body"]
        choice = await context.run_blocking(lambda: self._choose(serving, values, headers))
        dialect, operation = choice.endpoint
        body = operation.with_model(body, choice.path_params)
        if operation.handler == self.handle:
            raise BadRequest("An explanation is not explained.", param="path")
        run = await dry_run(
            operation,
            serving,
            context,
            body,
            self._check,
            path=choice.path,
            headers=headers,
            query=choice.query,
            path_params=choice.path_params,
        )
        explanations, error = await _explained(serving, run)
        error = run.error or error
        others: list[InDialect] = []
        if values["others"] and error is None and explanations:
            first = FirstRequest(choice.endpoint.operation, body, run, explanations[0])
            elsewhere = Elsewhere(serving, context, self._check, first)
            for each in self._dialects:
                if each.name != dialect.name and (other := await elsewhere.find(each)) is not None:
                    others.append(other)
        checked = run.checked
        if not checked and operation.table is not None:  # a handler may refuse a request before it looks at its fields
            checked = [Checked(operation.table, body, None)]
        fields = [fate for each in checked[:MOST_TABLES] for fate in fates(each)]
        left_out = sum(len(each.body) for each in checked[MOST_TABLES:] if isinstance(each.body, Mapping))
        return Answer(
            dialect=dialect.name,
            method=operation.method,
            path=operation.path,
            summary=operation.summary,
            why=choice.why,
            accepted=error is None,
            error=None if error is None else _refusal(dialect, error),
            fields=fields[:MOST_FATES],
            more_fields=max(0, len(fields) - MOST_FATES) + left_out,
            count=run.count,
            requests=[_shown_request(each, tokens=values["tokens"]) for each in explanations],
            others=others,
        )

    def _choose(self, serving: Serving, values: Mapping[str, Any], headers: Mapping[str, str]) -> Choice:
        dialect, path, body = values["dialect"], values["path"], values["body"]
        names = [each.name for each in self._dialects]
        if dialect is not None and dialect not in names:
            raise BadRequest(f"There is no dialect '{dialect}', only {', '.join(names)}.", param="dialect")
        hint = route_hint(serving, self._settings, headers, body)
        if path is not None:
            return by_path(self._paths, path, dialect, hint, names)
        endpoints = [
            Endpoint(each.worded_for(operation), operation) for each in self._dialects for operation in each.operations
        ]
        return by_body(endpoints, body, dialect, hint)

    def _check(self, table: Table, body: Any) -> Reading:
        return read_table(table, body, strict=self._settings.strict)


def _headers(given: Mapping[str, Any]) -> dict[str, str]:
    if len(given) > MOST_HEADERS or not all(isinstance(value, str) for value in given.values()):
        raise BadRequest(f"'headers' are at most {MOST_HEADERS}, each a text.", param="headers")
    return {name.lower(): value for name, value in given.items()}


async def _explained(serving: Serving, run: DryRun) -> tuple[list[Explanation], DragomanError | None]:
    """Return the explanations of the first prompts, and the error that ends the request with one of them."""
    found = []
    if run.error is not None:
        return [], run.error
    for asked in run.asked[:MOST_SHOWN]:
        try:
            found.append(await serving.explain(asked.request, streamed=asked.streamed))
        except DragomanError as error:
            return found, error
    return found, None


def _refusal(dialect: Dialect, error: DragomanError) -> ExplainedError:
    answer = error_answer(dialect, error)
    body = answer.body.decode("utf-8", "replace") if isinstance(answer.body, bytes) else answer.body
    return ExplainedError(status=answer.status, body=body, message=error.message, field=error.param)


_DEFAULTS = flattened(GenerationRequest(request_id="", prompt=TextPrompt(text="")))


def _shown_request(found: Explanation, *, tokens: bool) -> ExplainedRequest:
    values = flattened(found.request)
    parameters = {name: shown(value) for name, value in values.items() if value != _DEFAULTS.get(name)}
    grammar = found.grammar
    if grammar is not None and len(grammar) > SHOWN_GRAMMAR:
        grammar = f"{grammar[:SHOWN_GRAMMAR]}... ({len(grammar)} characters)"
    return ExplainedRequest(
        model=found.model,
        parameters={name: value for name, value in parameters.items() if value is not None},
        defaults=found.defaults,
        prompt=ExplainedPrompt(
            text=found.text,
            tokens=len(found.token_ids),
            cached_tokens=found.engine.cached_tokens,
            token_ids=found.token_ids if tokens else (),
            pieces=found.pieces if tokens else (),
        ),
        max_tokens=found.max_tokens,
        min_tokens=found.min_tokens,
        seeds=found.seeds,
        steps=found.engine.steps,
        grammar=grammar,
        estimate=found.estimate,
    )
