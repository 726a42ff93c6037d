"""The operations of the llama.cpp dialect that generate nothing: tokens, templates, models and properties."""

from __future__ import annotations

from typing import Any

from dragoman.core.catalog import CatalogEntry, ModelDetails, ModelState
from dragoman.core.errors import EngineUnavailable, ModelError, ModelNotFound
from dragoman.core.request import ChatPrompt, TextPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import Table
from dragoman.dialects.llamacpp.errors import NotServed
from dragoman.dialects.llamacpp.fields import APPLY_TEMPLATE, COMPLETION, DETOKENIZE, MODEL, TOKENIZE
from dragoman.dialects.llamacpp.routes import sampling_settings
from dragoman.dialects.llamacpp.translate import sampling_of
from dragoman.dialects.model_list import ListedModel

BUILD = "b10000-dragoman"
UNKNOWN = "This server does not support this endpoint"
SLOTS = "This server does not support slots endpoint. Start it with `--slots`"
PROPS = "This server does not support changing global properties. Start it with `--props`"
VOCAB_TYPES = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4}
"""llama.cpp's numbers of the kinds of vocabularies."""
LORA = "This server changes adapters for one request only: see `lora`"


async def tokenize(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /tokenize``."""
    reading = await context.read(TOKENIZE, any_content_type=True)
    core = reading.core
    text = core.get("prompt.text")
    if not text:
        await context.reply({"tokens": []})
        return
    prompt = TextPrompt(
        text=text,
        add_special_tokens=core.get("prompt.add_special_tokens"),
        parse_special_tokens=core.get("prompt.parse_special_tokens"),
    )
    ids = await context.unless_gone(serving.tokenize(prompt, core.get("model"), bounded=False))
    tokens: list[Any] = list(ids)
    if reading.values["with_pieces"]:
        pieces = await context.unless_gone(serving.token_bytes(ids))
        tokens = [{"id": each, "piece": _piece(raw)} for each, raw in zip(ids, pieces, strict=True)]
    await context.reply({"tokens": tokens})


def _piece(raw: bytes) -> str | list[int]:
    """Return a token as text, or its bytes where these are none."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


async def detokenize(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /detokenize``. Special tokens are shown."""
    core = (await context.read(DETOKENIZE, any_content_type=True)).core
    ids, model = core.get("prompt.token_ids"), core.get("model")
    await context.reply({"content": await context.unless_gone(serving.detokenize(ids, model)) if ids else ""})


async def apply_template(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /apply-template``."""
    core = (await context.read(APPLY_TEMPLATE, any_content_type=True)).core
    prompt = ChatPrompt(**core.group("prompt"))
    await context.reply({"prompt": await context.unless_gone(serving.render(prompt, core.get("model")))})


async def props(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /props``. Does not wake a model that sleeps."""
    cards = serving.models()
    if not cards:
        raise EngineUnavailable("Loading model")
    card = cards[0]
    await context.reply(
        {
            "default_generation_settings": {"params": _defaults(card), "n_ctx": card.context_tokens},
            "total_slots": 1,
            "model_alias": card.name,
            "model_path": card.name,
            "modalities": {"vision": card.images is not None, "audio": False},
            "endpoint_slots": False,
            "endpoint_props": False,
            "endpoint_metrics": True,
            "chat_template": card.chat_template,
            "chat_template_caps": {"supports_tools": card.tool_calls is not None},
            "bos_token": card.bos_token,
            "eos_token": card.eos_token,
            "build_info": BUILD,
            "is_sleeping": serving.catalog.asleep is not None,
        }
    )


def _defaults(card: ModelCard) -> dict[str, Any]:
    """Return the sampling parameters of a request that says nothing."""
    core = _empty(COMPLETION)
    params = sampling_of(core, None).params
    known = {name: value for name, value in card.sampling.values.items() if hasattr(params, name)}
    shown = sampling_settings(params)
    renamed = {"repetition_penalty": "repeat_penalty", "mirostat_mode": "mirostat"}
    return shown | {renamed.get(name, name): value for name, value in known.items() if renamed.get(name, name) in shown}


def _empty(table: Table) -> Any:
    return table.read({"prompt": ""}).core


async def health(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /health``."""
    if context.not_ready:
        raise EngineUnavailable("Loading model")
    await context.reply({"status": "ok"})


async def models(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /models``."""
    cards = {card.name: card for card in serving.models()}
    listed = [
        await _model(serving, ListedModel(entry.id, cards.get(entry.id), entry)) for entry in serving.catalog.entries()
    ]
    await context.reply({"models": listed, "object": "list", "data": listed})


async def _model(serving: Serving, listed: ListedModel) -> dict[str, Any]:
    entry, card = listed.entry, listed.card
    described: dict[str, Any] = {
        "id": entry.id,
        "aliases": [alias for alias in entry.aliases if alias != entry.id],
        "tags": [],
        "object": "model",
        "created": int(entry.modified or 0),
        "owned_by": "llamacpp",
        "meta": None,
        "status": listed.status,
    }
    if entry.state is not ModelState.LOADED or card is None:
        return described
    details = await _details(serving, entry)
    described["meta"] = {
        "vocab_type": VOCAB_TYPES.get(details.tokenizer if details else "", 0),
        "n_vocab": card.vocab_size,
        "n_ctx": card.context_tokens,
        "n_ctx_train": details.context_tokens if details else card.context_tokens,
        "n_embd": card.hidden_size,
        "n_params": entry.parameters or (details.parameters if details else 0),
        "size": entry.size_bytes,
        "ftype": entry.precision,
    }
    return described


async def _details(serving: Serving, entry: CatalogEntry) -> ModelDetails | None:
    """Return the details of a model; None where its files are gone, or changed since it was loaded."""
    try:
        return await serving.catalog.details(entry.id)
    except (ModelError, ModelNotFound):
        return None


async def adapters(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /lora-adapters``."""
    names = [card.name for card in serving.models() if card.base is not None]
    await context.reply([{"id": i, "path": name, "scale": 0.0} for i, name in enumerate(names)])


async def set_adapters(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /lora-adapters``: all scales 0, which they are."""
    body = await context.read_json(any_content_type=True)
    if isinstance(body, list) and all(isinstance(each, dict) and not each.get("scale") for each in body):
        await context.reply({"success": True})
        return
    raise NotServed(LORA)


async def load_model(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /models/load``: answers at once, and makes the model the current one when it is there."""
    entry = _named(serving, (await context.read(MODEL, any_content_type=True)).values["model"])
    if not serving.catalog.is_resident(entry.id):
        serving.catalog.begin_loading(entry.id)
    await context.reply({"success": True})


async def unload_model(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /models/unload``: answers when the model's memory is free."""
    entry = _named(serving, (await context.read(MODEL, any_content_type=True)).values["model"])
    await context.unless_gone(serving.catalog.unload(entry.id))
    await context.reply({"success": True})


def _named(serving: Serving, name: str) -> CatalogEntry:
    entry = serving.catalog.find(name)
    if entry is None:
        raise ModelNotFound(f"model '{name[:256]}' not found", param="model")
    return entry


async def not_here(serving: Serving, context: RequestContext) -> None:
    """Handle paths of llama-server's own page."""
    raise NotServed(UNKNOWN)


async def no_slots(serving: Serving, context: RequestContext) -> None:
    """Handle ``/slots``."""
    raise NotServed(SLOTS)


async def no_props(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /props``."""
    raise NotServed(PROPS)
