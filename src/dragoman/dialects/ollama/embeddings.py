"""The operations of the Ollama dialect that make vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dragoman.core.errors import ContextOverflow, ModelNotFound
from dragoman.core.events import Usage
from dragoman.core.request import TextPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import Reading
from dragoman.dialects.ollama import residence
from dragoman.dialects.ollama.body import read_checked
from dragoman.dialects.ollama.derived import DerivedModels
from dragoman.dialects.ollama.errors import NotServed
from dragoman.dialects.ollama.fields import EMBED, OLD_EMBED
from dragoman.dialects.ollama.render import JSON, Clock
from dragoman.dialects.ollama.settings import OllamaSettings
from dragoman.dialects.pooled import Embedded, as_numbers, embed, embeds
from dragoman.dialects.truncation import ranges

NUMBERS = ("total_duration", "load_duration", "prompt_eval_count")


class Embedding:
    """The handlers. They need the operator's settings."""

    def __init__(self, settings: OllamaSettings, derived: DerivedModels) -> None:
        self._settings, self._derived = settings, derived

    async def embed(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/embed``."""
        reading = await read_checked(context, EMBED)
        values, texts = reading.values, reading.core.get("prompt") or ()
        clock = Clock(context.elapsed_s)
        card = await self._model(serving, context, reading)
        clock.loaded()
        if values["truncate"] and (cut := await _too_long(serving, context, texts, card)):
            reading = msgspec.structs.replace(reading, truncated=(f"input {ranges(cut)}",))
        residence.keep_as_asked(serving, context, self._settings, reading)
        work = embed(
            serving,
            [TextPrompt(text=text) for text in texts],
            context.request_id,
            model=card.name,
            dimensions=values["dimensions"] or None,
            truncate=card.prompt_tokens if values["truncate"] else None,
        )
        found = await context.unless_gone(work)
        usage = Usage(prompt_tokens=found.prompt_tokens, completion_tokens=0)
        numbers = {name: number for name, number in clock.numbers(usage).items() if name in NUMBERS}
        vectors = await context.run_blocking(lambda: [as_numbers(vector) for vector in found.vectors])
        answer = {"model": reading.core.get("model"), "embeddings": vectors} | numbers
        await context.reply(answer, content_type=JSON)

    async def old_embed(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/embeddings``: one vector, which is not normalized."""
        reading = await read_checked(context, OLD_EMBED)
        text = reading.core.get("prompt")
        card = await self._model(serving, context, reading)
        residence.keep_as_asked(serving, context, self._settings, reading)
        found = Embedded([], 0)
        if text:
            prompt = TextPrompt(text=text)
            work = embed(serving, [prompt], context.request_id, model=card.name, normalize=False)
            found = await context.unless_gone(work)
        numbers = [number for vector in found.vectors for number in as_numbers(vector)]
        await context.reply({"embedding": numbers}, content_type=JSON)

    async def _model(self, serving: Serving, context: RequestContext, reading: Reading) -> ModelCard:
        """Return the card of the model. Raises NotServed for one that makes no embeddings, and as ``model_of`` does."""
        name = reading.core.get("model")
        derived = residence.derived_of(serving, self._derived, name)
        base = name if derived is None else derived.base
        try:
            card = await residence.model_of(serving, context, self._settings, base)
        except ModelNotFound:
            raise ModelNotFound(f'model "{name[:256]}" not found, try pulling it first', param="model") from None
        if not embeds(card):
            raise NotServed(f"{name[:256]} does not support embeddings")
        return card


async def _too_long(
    serving: Serving, context: RequestContext, texts: Sequence[str], card: ModelCard
) -> tuple[int, ...]:
    """Return the places of the texts of which the model reads only the beginning."""
    found: list[int] = []
    for place, text in enumerate(texts):
        try:
            ids = await context.unless_gone(serving.tokenize(TextPrompt(text=text), card.name))
        except ContextOverflow:
            found.append(place)
        else:
            found += [place] if len(ids) > card.prompt_tokens else []
    return tuple(found)
