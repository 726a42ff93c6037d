"""``dragoman explain``: what a request of any dialect would become, by a running server or the command's own engine."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from dragoman.cli.remote import fetch_json
from dragoman.cli.session import LocalSession, RemoteSession
from dragoman.cli.settings import ExplainOptions
from dragoman.cli.standard_input import read_standard_input
from dragoman.core.errors import BadRequest, DragomanError
from dragoman.core.regular_file import require_regular
from dragoman.dialects import made_dialects
from dragoman.server.explain import EXPLAIN, Explainer
from dragoman.server.routing import endpoints_by_path
from dragoman.server.settings import ServerSettings

Result = TypeVar("Result")

SECRET = ("authorization", "cookie", "key", "token")
"""Parts of names of headers that are never sent on."""

MOST_BYTES = 1 << 26
WIDTH = 100

_REQUEST_LINE = re.compile(r"POST +(\S+)(?: +HTTP/[\d.]+)?$")


def parsed_file(options: ExplainOptions) -> dict[str, Any]:
    """Return the body of ``POST /explain`` for the file. Raises DragomanError for a file that cannot be read."""
    if options.file == "-":
        text = read_standard_input(MOST_BYTES)
    else:
        require_regular(options.file)
        try:
            with Path(options.file).open(encoding="utf-8-sig") as opened:
                text = opened.read(MOST_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DragomanError(f"{options.file} cannot be read: {reason}") from None
    asked = parsed(text)
    given = {"path": options.path, "dialect": None if options.dialect == "auto" else options.dialect}
    return asked | {name: value for name, value in given.items() if value is not None}


def parsed(text: str) -> dict[str, Any]:
    """Return what a text says of a request: its body, and its path and headers where these are there.

    Raises DragomanError for a text that is neither JSON nor an HTTP request with a body of JSON.
    """
    head, _, rest = text.replace("\r\n", "\n").partition("\n\n")
    lines = head.strip().splitlines()
    if not lines or (line := _REQUEST_LINE.match(lines[0])) is None:
        value = _json(text)
        if isinstance(value, dict) and "body" in value and value.keys() <= {field.name for field in EXPLAIN.fields}:
            return value
        return {"body": value}
    pairs = (each.partition(":") for each in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    kept = {name: value for name, value in headers.items() if not any(part in name for part in SECRET)}
    return {"body": _json(rest), "path": line[1], "headers": kept}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DragomanError(f"the request's body is not JSON: {error}") from None


async def explained(session: AbstractAsyncContextManager[LocalSession | RemoteSession], asked: dict[str, Any]) -> Any:
    """Return the explanation as JSON values."""
    async with session as found:
        if isinstance(found, RemoteSession):
            return await fetch_json(found.address, "/explain", asked)
        explainer = Explainer(ServerSettings())
        dialects = made_dialects()
        explainer.set_routes(dialects, endpoints_by_path(dialects, dialects))
        try:
            values = EXPLAIN.read(asked, strict=True).values
            return msgspec.to_builtins(await explainer.explain(found.serving, _Here(), values))
        except BadRequest as error:
            raise DragomanError(error.message) from None


class _Here:
    """The caller of the command's own engine, who may do everything."""

    request_id = "explain"
    client = ""
    tenant = ""
    scopes: tuple[str, ...] = ("infer", "admin")
    not_ready = ""
    is_strict = False

    async def run_blocking(self, work: Callable[[], Result], pool: Literal["text", "disk"] = "text") -> Result:
        return await asyncio.to_thread(work)

    def keep_bytes(self, size: int) -> None:
        pass

    async def unless_gone(self, work: Awaitable[Result]) -> Result:
        return await work


def print_explanation(answer: dict[str, Any], options: ExplainOptions) -> None:
    """Print an explanation, for a reader or as JSON."""
    if options.json:
        print(json.dumps(answer, ensure_ascii=False, indent=2))
        return
    for line in shown(answer):
        print(line)


def shown(answer: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of an explanation for a reader."""
    yield f"{answer['dialect']}  {answer['method']} {answer['path']}  {answer['summary']}"
    yield from (f"  {reason}" for reason in answer["why"])
    if answer["error"] is not None:
        field = answer["error"]["field"]
        named = f", for {field}" if field else ""
        yield f"\nrefused with {answer['error']['status']}{named}: {answer['error']['message']}"
    yield "\nfields"
    defaults = 0
    for field in answer["fields"]:
        if field["fate"] == "default":
            defaults += 1
            continue
        becomes = ", ".join(f"{name} = {_short(value)}" for name, value in field.get("becomes", {}).items())
        why = becomes or field.get("reason") or field.get("note", "")
        value = f" = {_short(field['value'])}" if "value" in field else ""
        yield f"  {field['fate']:<9} {field['name']}{value}  {_short(why)}".rstrip()
    yield f"  default   {defaults} others"
    for number, request in enumerate(answer["requests"]):
        yield f"\nrequest {number + 1} of {answer['count']}, for {request['model']}"
        yield from _request(request)
    if answer["others"]:
        yield "\nin other dialects"
    for other in answer["others"]:
        yield f"  {other['dialect']}  {other['method']} {other['path']}"
        yield f"    {json.dumps(other['body'], ensure_ascii=False)}"
        if other["error"]:
            yield f"    not possible: {other['error']}"
        for lost in other["lost"]:
            yield f"    lost: {lost['parameter']} = {_short(lost['asked'])}, here {_short(lost['gets'])}"
        if not other["error"] and not other["lost"]:
            yield "    nothing is lost"


def _request(request: dict[str, Any]) -> Iterator[str]:
    prompt, estimate = request["prompt"], request["estimate"]
    for name, value in request["parameters"].items():
        if not name.startswith("prompt"):
            yield f"  {name} = {_short(value)}"
    if request["defaults"]:
        yield f"  defaults: {request['defaults']}"
    yield f"  prompt: {prompt['tokens']} tokens, of which {prompt['cached_tokens']} are cached"
    if prompt["text"] is not None:
        yield from (f"    | {line}" for line in prompt["text"].splitlines())
    if prompt["pieces"]:
        yield "    " + " ".join(json.dumps(piece, ensure_ascii=False) for piece in prompt["pieces"][:64])
    yield f"  at most {request['max_tokens']} tokens, with the seeds {_short(request['seeds'])}"
    yield "  steps"
    for step in request["steps"]:
        parameters = ", ".join(f"{name} = {_short(value)}" for name, value in step.get("parameters", {}).items())
        yield f"    {step['name']:<22} {parameters or step.get('does', '')}".rstrip()
    if request["grammar"] is not None:
        yield f"  grammar: {_short(request['grammar'])}"
    times = "nothing is measured yet"
    if estimate["compute_s"] is not None:
        times = f"about {estimate['compute_s']:.2f} s, after {estimate['wait_s'] or 0:.2f} s of waiting"
    yield f"  cost: {estimate['service']:g} units, at most {estimate['most_service']:g}; {times}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
