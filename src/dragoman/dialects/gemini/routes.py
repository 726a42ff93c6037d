"""The operations of the Gemini dialect: read, translate, generate, render."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.core.entropy import random_bits, token_hex
from dragoman.core.errors import BadRequest, ModelNotFound
from dragoman.core.request import TextPrompt
from dragoman.core.sampling import MAX_SEED
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Handler, Operation, RequestContext, RouteHint
from dragoman.dialects.chat_stream import ChatStream
from dragoman.dialects.field import Table
from dragoman.dialects.gemini import models
from dragoman.dialects.gemini.calls import OF_LISTS, SERVER_TIMEOUT, asked_form, timeout_s
from dragoman.dialects.gemini.content import plain_text
from dragoman.dialects.gemini.fields import BATCH_EMBED, COUNT_TOKENS, EMBED, GENERATE
from dragoman.dialects.gemini.names import read_checked
from dragoman.dialects.gemini.render import Framing, Head, ResponseChunks, whole_response
from dragoman.dialects.gemini.settings import GeminiSettings
from dragoman.dialects.gemini.translate import content_request, counted_prompt, thinking_of, without_beside
from dragoman.dialects.model_list import listed_model, listed_models
from dragoman.dialects.openai_stream import encoded, stream_answer
from dragoman.dialects.pooled import as_numbers, embed

GEMINI = "gemini-"
KEY_HEADER, KEY_PARAM = "x-goog-api-key", "key"
CLIENT_HEADER = "x-goog-api-client"
VERSIONS = ("/v1beta", "/v1")


def is_client(headers: Mapping[str, str]) -> bool:
    """Return whether the headers of a call are surely those of one of Google's clients."""
    return KEY_HEADER in headers or CLIENT_HEADER in headers


def _is_googles(call: RouteHint) -> bool:
    return is_client(call.headers)


class Api:
    """All operations. Handlers are its methods: they need the operator's settings."""

    def __init__(self, settings: GeminiSettings) -> None:
        self._gemini = settings.gemini_model

    def operations(self) -> tuple[Operation, ...]:
        """Return the operations. Paths that end in a method come first: the name of a model may have any character."""
        methods: tuple[tuple[str, str, Handler, Table], ...] = (
            ("generateContent", "Answer a conversation.", self.generate, GENERATE),
            ("streamGenerateContent", "Answer a conversation in chunks.", self.stream, GENERATE),
            ("countTokens", "Count the tokens of the prompt that a conversation would have.", self.count, COUNT_TOKENS),
            ("embedContent", "Return the vector of a text.", self.embed_one, EMBED),
            ("batchEmbedContents", "Return the vectors of texts.", self.embed_many, BATCH_EMBED),
        )
        found = [
            Operation(
                method="POST",
                path=f"{version}/models/{{model:path}}:{name}",
                summary=summary,
                handler=handler,
                table=table,
                reads=(SERVER_TIMEOUT,) if table is GENERATE else (),
                media=("text/event-stream", "application/json") if name == "streamGenerateContent" else None,
                model_param="model",
            )
            for version in VERSIONS
            for name, summary, handler, table in methods
        ]
        for version in VERSIONS:
            for path, summary, handler in (
                ("/models", "List the served models.", self.models),
                ("/models/{id:path}", "Describe a served model.", self.model),
            ):
                # Those of /v1 are OpenAI's, too.
                claims = _is_googles if version == "/v1" else None
                operation = Operation(
                    method="GET", path=version + path, summary=summary, handler=handler, claims=claims
                )
                found.append(operation)
        return tuple(found)

    async def generate(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``:generateContent``."""
        asked_form(context)
        await self._generate(serving, context, None)

    async def stream(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``:streamGenerateContent``: with ``alt=sse`` in events, otherwise in an array."""
        await self._generate(serving, context, Framing(events=asked_form(context, streams=True) == "sse"))

    async def _generate(self, serving: Serving, context: RequestContext, framing: Framing | None) -> None:
        reading = await read_checked(context, GENERATE)
        card = self._card(serving, reading.core.get("model"))
        given = reading.core.get("seeds")
        seed = random_bits(63) if given is None else given[0]
        id = token_hex(12)
        request, shape, reading = content_request(reading, id, seed & MAX_SEED, card, timeout_s(context.headers))
        context.report(reading)
        head = Head(
            id=id,
            model=card.name,
            shape=shape,
            shows_thoughts=thinking_of(reading.values["generationConfig"] or {}).shown,
            logprobs=None if request.logprobs is None else request.logprobs.top,
        )
        headers = {"x-dragoman-seed": str(seed)}
        if framing is None:
            result = await context.unless_gone(serving.generate(request))
            in_thread = shape.format is not None or shape.reasoning is not None or head.logprobs is not None
            answer = await encoded(context, lambda: whole_response(head, result), in_thread=in_thread)
            await context.reply(answer, headers=headers)
            return
        chunks = ResponseChunks(head, framing, request.n)
        await stream_answer(
            serving,
            context,
            [request],
            [ChatStream(chunks, request.n)],
            end=chunks.end,
            fault=chunks.fault,
            headers=headers,
            content_type=framing.content_type,
        )

    async def count(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``:countTokens``."""
        asked_form(context)
        reading = without_beside(await read_checked(context, COUNT_TOKENS))
        context.report(reading)
        card = self._card(serving, reading.core.get("model"))
        prompt = counted_prompt(reading, card)
        ids = await context.unless_gone(serving.tokenize(prompt, card.name, bounded=False))
        await context.reply({"totalTokens": len(ids)})

    async def embed_one(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``:embedContent``."""
        asked_form(context)
        reading = await read_checked(context, EMBED)
        texts = [plain_text(reading.core.get("prompt"), ("content",))]
        vectors, tokens = await self._vectors(
            serving, context, reading.core.get("model"), texts, ["content"], reading.values["outputDimensionality"]
        )
        await context.reply({"embedding": vectors[0], "usageMetadata": tokens})

    async def embed_many(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``:batchEmbedContents``."""
        asked_form(context)
        reading = await read_checked(context, BATCH_EMBED)
        name, requests = reading.core.get("model"), reading.core.get("prompt")
        self._check_models(serving, name, requests)
        lengths = {each["outputDimensionality"] for each in requests}
        if len(lengths) > 1:
            place = "requests.outputDimensionality"
            raise BadRequest(f"'{place}' is the same in all requests of a batch.", param=place)
        texts = [plain_text(each["content"], ("requests", i, "content")) for i, each in enumerate(requests)]
        places = [f"requests[{i}].content" for i in range(len(texts))]
        vectors, tokens = await self._vectors(serving, context, name, texts, places, lengths.pop())
        await context.reply({"embeddings": vectors, "usageMetadata": tokens})

    async def _vectors(
        self,
        serving: Serving,
        context: RequestContext,
        name: str,
        texts: Sequence[str],
        places: Sequence[str],
        dimensions: int | None,
    ) -> tuple[list[dict[str, Any]], dict[str, int]]:
        card = self._card(serving, name)
        if dimensions is not None and card.pooling is not None and dimensions > card.pooling.width:
            message = f"'outputDimensionality': the vectors of the model have {card.pooling.width} numbers."
            raise BadRequest(message, param="outputDimensionality")
        work = embed(
            serving,
            [TextPrompt(text=text) for text in texts],
            context.request_id,
            places=places,
            model=card.name,
            dimensions=dimensions,
        )
        found = await context.unless_gone(work)
        vectors = await context.run_blocking(lambda: [{"values": as_numbers(vector)} for vector in found.vectors])
        return vectors, {"promptTokenCount": found.prompt_tokens, "totalTokenCount": found.prompt_tokens}

    def _check_models(self, serving: Serving, name: str, requests: Sequence[Mapping[str, Any]]) -> None:
        """Raise BadRequest where a request of a batch names another model than the path."""
        for i, each in enumerate(requests):
            own = each["model"]
            if own is not None and own.removeprefix(models.PREFIX) != name:
                place = f"requests[{i}].model"
                raise BadRequest(f"'{place}' is not the model of the path, '{models.PREFIX}{name}'.", param=place)

    async def models(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1beta/models``."""
        asked_form(context, allowed=OF_LISTS)
        await context.reply(models.page(listed_models(serving, context.scopes), context.query))

    async def model(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /v1beta/models/{model}``; names may hold slashes."""
        asked_form(context)
        name = context.path_params["id"]
        try:
            listed = listed_model(serving, context.scopes, name)
        except ModelNotFound:
            listed = listed_model(serving, context.scopes, self._card(serving, name).name)
        await context.reply(models.model(listed))

    def _card(self, serving: Serving, given: Any) -> ModelCard:
        """Return the model that answers to a name. Raises ModelNotFound."""
        name = None if given is None else str(given)
        try:
            return serving.model(name)
        except ModelNotFound:
            if name is not None and name.lower().startswith(GEMINI) and self._gemini != "none":
                return serving.model(self._gemini)
            shown = models.PREFIX + (name or "")[:256]
            raise ModelNotFound(
                f"{shown} is not found: the list of models has those that are.", param="model"
            ) from None
