"""The Open Inference Protocol, version 2, in TGI's form for KServe: texts are lists of bytes."""

from __future__ import annotations

from typing import Any

import msgspec

import dragoman
from dragoman.core.serving import Serving
from dragoman.dialects.api import Operation, RequestContext
from dragoman.dialects.field import Field, Table
from dragoman.dialects.field_types import FieldError, ListOf, String
from dragoman.dialects.tgi.body import USIZE, Sized, checked, read_json, shape_fault
from dragoman.dialects.tgi.errors import BatchIncomplete, Fault, Unhealthy
from dragoman.dialects.tgi.fields import PARAMETERS
from dragoman.dialects.tgi.generate import continued, texts_of
from dragoman.dialects.tgi.generation import TgiState
from dragoman.dialects.tgi.translate import parameters_of, report_adapter

NAME = "text-generation-inference"
MODEL = "/v2/models/{model}/versions/{version}"

_BYTE = Sized(0, 255, name="u8")

INFER = Table(
    name="InferenceRequest",
    fields=(
        Field(name="id", kind=String(maximum=1024), required=True, note="Repeated in the answer."),
        Field(name="parameters", kind=PARAMETERS, note="As those of `/generate`, for every input."),
        Field(
            name="inputs",
            kind=ListOf(
                Table(
                    name="Input",
                    fields=(
                        Field(name="name", kind=String(maximum=1024), required=True, note="No effect."),
                        Field(name="shape", kind=ListOf(USIZE, maximum=8), required=True, note="No effect."),
                        Field(name="datatype", kind=String(maximum=64), required=True, note="No effect: `BYTES`."),
                        Field(
                            name="data",
                            kind=ListOf(_BYTE, maximum=1 << 24),
                            required=True,
                            note="The text's UTF-8, byte by byte.",
                        ),
                    ),
                ),
                maximum=2048,
            ),
            required=True,
            note="The texts to continue.",
        ),
        Field(
            name="outputs",
            kind=ListOf(
                Table(
                    name="Output",
                    fields=(Field(name="name", kind=String(maximum=1024), required=True, note="Of the answer."),),
                ),
                maximum=2048,
            ),
            required=True,
            note="One for each input.",
        ),
    ),
)


class OutputChunk(msgspec.Struct):
    """The text that continues one input."""

    name: str
    shape: list[int]
    datatype: str
    data: list[int]


class InferenceOutput(msgspec.Struct):
    """The answer."""

    id: str
    outputs: list[OutputChunk]


class LengthMismatch(Fault):
    """More inputs than outputs, or fewer."""

    error_type = "length mismatch"

    def __init__(self) -> None:
        super().__init__("Inputs and outputs length mismatch")


class NotUtf8(Fault):
    """An input that is no text."""

    error_type = "utf8"


class KServe:
    """The handlers under ``/v2`` and their shared state."""

    def __init__(self, state: TgiState) -> None:
        self._state = state

    async def live(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v2/health/live``: the process answers."""
        await context.reply({"live": True})

    async def ready(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v2/health/ready``: it can generate. The key is the original's."""
        if context.not_ready:
            raise Unhealthy
        await context.reply({"live": True})

    async def server(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v2``."""
        extensions = ["health", "models", "metrics"]
        await context.reply({"name": NAME, "version": dragoman.__version__, "extensions": extensions})

    async def model(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v2/models/{model}/versions/{version}``: of any name."""
        name, version = context.path_params["model"], context.path_params["version"]
        await context.reply({"name": name, "version": version, "extensions": ["infer", "ready"]})

    async def infer(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /v2/models/{model}/versions/{version}/infer``."""
        reading = await checked(context, INFER, await read_json(context))
        report_adapter(context, reading, serving, self._state.quirks)
        values = reading.values
        inputs, outputs = values["inputs"], values["outputs"]
        if len(inputs) != len(outputs):
            raise LengthMismatch
        texts = [_text(each["data"]) for each in inputs]
        try:
            asked = parameters_of(values["parameters"])
        except FieldError as error:
            raise await shape_fault(context, error) from None
        found = await texts_of(
            self._state, context, texts, lambda text: continued(self._state, serving, context, text, asked)
        )
        await context.reply(InferenceOutput(values["id"], list(map(_output, outputs, found))))


def _text(data: tuple[int, ...]) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise NotUtf8(f"invalid utf-8 sequence: {error.reason} at byte {error.start}") from None


def _output(output: dict[str, Any], text: str) -> OutputChunk:
    data = text.encode()
    return OutputChunk(name=output["name"], shape=[1, len(data)], datatype="BYTES", data=list(data))


def operations(state: TgiState) -> tuple[Operation, ...]:
    """Return the operations under ``/v2``."""
    routes = KServe(state)
    ready = "It can generate."

    def get(path: str, summary: str, handler: Any) -> Operation:
        return Operation(method="GET", path=path, summary=summary, handler=handler, open=True)

    return (
        get("/v2/health/live", "The process answers.", routes.live),
        get("/v2/health/ready", ready, routes.ready),
        get("/v2", "The server.", routes.server),
        get(f"{MODEL}/ready", ready, routes.ready),
        get(MODEL, "The model.", routes.model),
        Operation(
            method="POST",
            path=f"{MODEL}/infer",
            summary="Continue texts.",
            handler=routes.infer,
            table=INFER,
            faults=(BatchIncomplete(),),
        ),
    )
