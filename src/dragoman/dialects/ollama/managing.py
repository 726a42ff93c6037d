"""The operations of the Ollama dialect that make and remove models: derived ones, where the operator keeps them.

No weights are written or removed over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from dragoman.core.entropy import wall_time
from dragoman.core.errors import BadRequest, Forbidden, NotFound, UnsupportedFeature
from dragoman.core.serving import Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.ollama import residence
from dragoman.dialects.ollama.body import read_checked, read_json
from dragoman.dialects.ollama.derived import DerivedModel, DerivedModels, check_name
from dragoman.dialects.ollama.fields import COPY, CREATE, DELETE
from dragoman.dialects.ollama.models import Models, line, named
from dragoman.dialects.ollama.names import shown_name
from dragoman.dialects.ollama.render import JSON, NDJSON
from dragoman.dialects.ollama.translate import template_messages

BY_OPERATOR = "models are offered by the operator of this server; see --offer NAME=SOURCE"


class Managing:
    """The handlers."""

    def __init__(self, models: Models, derived: DerivedModels) -> None:
        self._models, self._derived = models, derived

    async def create(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/create``."""
        self._check_allowed()
        body = await read_json(context)
        reading = await context.check(CREATE, body)
        values, name = reading.values, self._new_name(serving, named(reading))
        if not values["from"]:
            raise BadRequest("neither 'from' or 'files' was specified", param="from")
        base = self._derived_from(serving, values["from"])
        if values["template"] not in ("", await self._models.template(serving, base.base)):
            raise UnsupportedFeature("'template': another one is not rendered", param="template")
        template_messages(values["messages"] or (), None)
        license = values["license"] or base.license
        model = DerivedModel(
            name=name,
            base=base.base,
            system=values["system"] or base.system,
            parameters={**base.parameters, **_given(body.get("parameters"))},
            messages=body.get("messages") or base.messages,
            license=license if isinstance(license, str) else "\n".join(license),
            modified=wall_time(),
        )
        context.report(reading)
        await context.run_blocking(lambda: self._derived.put(model), pool="disk")
        if values["stream"]:
            layers = [layer for layer in ("system", "parameters", "messages", "license") if getattr(model, layer)]
            await context.stream(_lines(layers), content_type=NDJSON)
        else:
            await context.reply({"status": "success"}, content_type=JSON)

    async def copy(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/copy``."""
        self._check_allowed()
        values = (await read_checked(context, COPY)).values
        name = self._new_name(serving, values["destination"])
        source = self._derived_from(serving, values["source"])
        model = msgspec.structs.replace(source, name=name, modified=wall_time())
        await context.run_blocking(lambda: self._derived.put(model), pool="disk")
        await context.reply_text("")

    async def delete(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``DELETE /api/delete``."""
        self._check_allowed()
        name = named(await read_checked(context, DELETE))
        if residence.derived_of(serving, self._derived, name) is None:
            residence.find(serving, name)  # raises ModelNotFound
            raise Forbidden(BY_OPERATOR)
        await context.run_blocking(lambda: self._derived.remove(name), pool="disk")
        await context.reply_text("")

    async def refuse(self, serving: Serving, context: RequestContext) -> None:
        """Handle what writes weights, or publishes them."""
        raise Forbidden(BY_OPERATOR)

    async def blob(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``HEAD /api/blobs/{digest}``: clients then send the file, which is refused."""
        raise NotFound("there is no such blob")

    def _check_allowed(self) -> None:
        if not self._derived.is_on:
            raise Forbidden(BY_OPERATOR)

    def _new_name(self, serving: Serving, name: str) -> str:
        """Return the name of a model to make. Raises BadRequest, and Forbidden for one of the operator's."""
        name = check_name(name)
        if serving.catalog.find(name) is not None or serving.catalog.named(name) is not None:
            raise Forbidden(BY_OPERATOR)
        return shown_name(name)

    def _derived_from(self, serving: Serving, name: str) -> DerivedModel:
        """Return a derived model by its name, or one that has nothing of its own by that of its base. Raises
        ModelNotFound."""
        if (derived := residence.derived_of(serving, self._derived, name)) is not None:
            return derived
        found = residence.find(serving, name)
        return DerivedModel(name="", base=found.served or found.offered or "")


def _given(parameters: Any) -> dict[str, Any]:
    """Return the parameters of a checked body that are not null."""
    return {name: value for name, value in (parameters or {}).items() if value is not None}


async def _lines(layers: list[str]) -> AsyncGenerator[bytes, None]:
    """Yield the lines about a model that has been made."""
    yield line({"status": "reading model metadata"})
    for layer in layers:
        yield line({"status": f"creating {layer} layer"})
    yield line({"status": "writing manifest"})
    yield line({"status": "success"})
