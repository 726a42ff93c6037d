"""The operations of the Ollama dialect on models: lists, descriptions, and what is managed by the operator alone."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from dragoman.core.catalog import CatalogEntry, FileProgress, ModelDetails
from dragoman.core.entropy import wall_time
from dragoman.core.errors import BadRequest, DragomanError, Forbidden, LoadFailed, ModelError, ModelNotFound
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import RequestContext
from dragoman.dialects.field import Reading
from dragoman.dialects.json_lines import json_line
from dragoman.dialects.ollama import residence
from dragoman.dialects.ollama.body import read_checked
from dragoman.dialects.ollama.derived import DerivedModel, DerivedModels
from dragoman.dialects.ollama.fields import PULL, SHOW
from dragoman.dialects.ollama.names import LIBRARY, shown_name, spellings
from dragoman.dialects.ollama.render import JSON, NDJSON, timestamp
from dragoman.dialects.ollama.settings import OllamaSettings
from dragoman.dialects.openai_stream import encode
from dragoman.dialects.pooled import embeds

COPILOT = "githubcopilotchat/"
FOR_EVER_S = 100 * 365.25 * 86400
SUFFIX_MARK = "{#- .Suffix -#}"
"""Behind the template of a model that fills gaps: clients look for this name in it."""
FAILED = "pull model manifest: "
NOT_OFFERED = FAILED + "this server offers only the models of its operator"
_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_DECIMALS = {"T": 1, "B": 1, "M": 2, "K": 0}
_PARAMETERS = {
    "repetition_penalty": "repeat_penalty",
    "mirostat_mode": "mirostat",
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "mirostat_tau", "mirostat_eta")},
}


class Models:
    """The handlers. They need the operator's settings."""

    def __init__(self, settings: OllamaSettings, derived: DerivedModels) -> None:
        self._settings, self._derived = settings, derived

    async def root(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /``."""
        await context.reply_text("Ollama is running")

    async def version(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /api/version``."""
        await context.reply({"version": self._settings.ollama_version}, content_type=JSON)

    async def status(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /api/status``."""
        await context.reply({"cloud": {"disabled": True, "source": "none"}}, content_type=JSON)

    async def tags(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /api/tags``."""
        listed = [await _tag(serving, entry, is_listed=True) for entry in serving.catalog.entries()]
        now = serving.catalog.current() or serving.catalog.asleep
        adapters = [card for card in serving.models() if card.base is not None]
        if now is not None and adapters:
            base = await _tag(serving, now, is_listed=True)
            listed += [_adapter_tag(card, base) for card in adapters]
        bases = {tag["name"]: tag for tag in listed}
        for model in self._derived.all():
            if (own := bases.get(shown_name(model.base))) is not None and shown_name(model.name) not in bases:
                listed.append(_derived_tag(model, own))
        await context.reply({"models": listed}, content_type=JSON)

    async def ps(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``GET /api/ps``."""
        described = []
        for resident in serving.catalog.residences():
            entry = serving.catalog.find(resident.id)
            if entry is None or resident.state != "loaded":
                continue
            limit_s = resident.idle_limit_s
            expires_s = FOR_EVER_S if limit_s is None else max(0.0, limit_s - (resident.idle_s or 0.0))
            described.append(
                await _tag(serving, entry, is_listed=False)
                | {
                    "size": entry.memory_bytes or 0,
                    "expires_at": timestamp(wall_time() + expires_s),
                    "size_vram": 0,
                    "context_length": entry.context_tokens or 0,
                }
            )
        await context.reply({"models": described}, content_type=JSON)

    async def show(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/show``. Loads nothing."""
        name = named(await read_checked(context, SHOW))
        derived = residence.derived_of(serving, self._derived, name)
        found = residence.find(serving, name if derived is None else derived.base)
        card = None if found.served is None else residence.served_card(serving, found.served)
        id = found.offered if found.served is None else serving.catalog.named(found.served)
        entry = serving.catalog.find(id or "")
        if entry is None:
            raise ModelNotFound(f"model '{name[:256]}' not found", param="model")
        details = await _details(serving, entry)
        shown_as = name if context.headers.get("user-agent", "").lower().startswith(COPILOT) else entry.id
        await context.reply(_shown(entry, card, details, shown_as, derived), content_type=JSON)

    async def template(self, serving: Serving, name: str) -> str:
        """Return the template of a model as ``show`` has it. Raises ModelNotFound."""
        found = residence.find(serving, name)
        card = None if found.served is None else residence.served_card(serving, found.served)
        entry = serving.catalog.find(serving.catalog.named(found.served) or "" if found.served else found.offered or "")
        return _template(card, None if entry is None else await _details(serving, entry))

    async def pull(self, serving: Serving, context: RequestContext) -> None:
        """Handle ``POST /api/pull``: what is offered is there, or is downloaded. Nothing is loaded."""
        reading = await read_checked(context, PULL)
        name = named(reading)
        derived = residence.derived_of(serving, self._derived, name)
        files = _missing_files(serving, name if derived is None else derived.base)
        try:
            first = await context.unless_gone(anext(files, None))
            if not reading.values["stream"]:
                await context.unless_gone(_read_to_the_end(files))
        except ModelError as error:
            raise LoadFailed(FAILED + error.message) from None
        finally:
            if not reading.values["stream"]:
                await files.aclose()
        if not reading.values["stream"]:
            await context.reply({"status": "success"}, content_type=JSON)
            return
        await context.stream(_lines_of_pull(first, files), content_type=NDJSON)


def _missing_files(serving: Serving, name: str) -> AsyncGenerator[FileProgress, None]:
    """Return the download of what is missing of a model, which is none of the served ones. Raises Forbidden for a name
    that is not offered."""
    served = {card.name for card in serving.models()}
    for spelling in spellings(name.strip()):
        if spelling in served:
            return _none_missing()
        if not spelling.startswith(LIBRARY):
            with contextlib.suppress(ModelNotFound):
                return serving.catalog.download(spelling)
    try:
        found = residence.find(serving, name)
    except ModelNotFound:
        raise Forbidden(NOT_OFFERED) from None
    return _none_missing() if found.offered is None else serving.catalog.download(found.offered)


async def _none_missing() -> AsyncGenerator[FileProgress, None]:
    return
    yield


async def _read_to_the_end(files: AsyncGenerator[FileProgress, None]) -> None:
    async for _ in files:
        pass


async def _lines_of_pull(
    first: FileProgress | None, files: AsyncGenerator[FileProgress, None]
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a download that has begun with ``first``; None: nothing was missing."""
    yield line({"status": "pulling manifest"})
    async with aclosing(files):
        try:
            if first is not None:
                yield _pulling(first)
                async for each in files:
                    yield _pulling(each)
                yield line({"status": "verifying sha256 digest"})
                yield line({"status": "writing manifest"})
        except DragomanError as error:
            yield line({"error": FAILED + error.message})
            return
    yield line({"status": "success"})


def _pulling(file: FileProgress) -> bytes:
    digest = hashlib.sha256(file.name.encode()).hexdigest()
    counts = {"digest": f"sha256:{digest}", "total": file.total, "completed": file.done}
    return line({"status": f"pulling {digest[:12]}", **counts})


def line(value: dict[str, Any]) -> bytes:
    """Return a line of a stream of statuses."""
    return json_line(value)


def named(reading: Reading) -> str:
    """Return the model that a request names, in its new or its old field. Raises BadRequest for none."""
    name: str = reading.values["model"] or reading.values["name"] or ""
    if not name.strip():
        raise BadRequest("model is required", param="model")
    return name


async def _details(serving: Serving, entry: CatalogEntry) -> ModelDetails | None:
    """Return the details of a model whose files are on this machine; None where they cannot be read."""
    is_known = serving.catalog.is_resident(entry.id) or entry == serving.catalog.asleep
    if entry.size_bytes is None and not is_known:
        return None
    try:
        return await serving.catalog.details(entry.id)
    except (ModelError, ModelNotFound):
        return None


async def _tag(serving: Serving, entry: CatalogEntry, *, is_listed: bool) -> dict[str, Any]:
    details = await _details(serving, entry)
    name = shown_name(entry.id)
    size = entry.size_bytes or 0
    tag: dict[str, Any] = {"name": name, "model": name}
    if is_listed:
        tag["modified_at"] = timestamp(entry.modified or 0.0)
    digest = hashlib.sha256(f"{entry.id} {size}".encode()).hexdigest()
    tag |= {"size": size, "digest": digest, "details": _detail_keys(entry, details)}
    if is_listed:
        tag["capabilities"] = _capabilities(_card_of(serving, entry), details)
    return tag


def _adapter_tag(card: ModelCard, base: dict[str, Any]) -> dict[str, Any]:
    name = shown_name(card.name)
    details = base["details"] | {"parent_model": card.base or ""}
    digest = hashlib.sha256(f"{card.name} {card.fingerprint}".encode()).hexdigest()
    return base | {"name": name, "model": name, "size": 0, "digest": digest, "details": details}


def _derived_tag(model: DerivedModel, base: dict[str, Any]) -> dict[str, Any]:
    name = shown_name(model.name)
    details = base["details"] | {"parent_model": model.base}
    digest = hashlib.sha256(base["digest"].encode() + encode(msgspec.to_builtins(model))).hexdigest()
    changed = {"name": name, "model": name, "modified_at": timestamp(model.modified)}
    return base | changed | {"digest": digest, "details": details}


def _card_of(serving: Serving, entry: CatalogEntry) -> ModelCard | None:
    return next((card for card in serving.models() if card.name == entry.id), None)


def _detail_keys(entry: CatalogEntry, details: ModelDetails | None) -> dict[str, Any]:
    family = _family(entry, details)
    parameters = entry.parameters or (details.parameters if details else 0)
    stored_as = details.stored_as if details else entry.precision
    return {
        "parent_model": "",
        "format": details.format if details else "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": parameter_size(parameters),
        "quantization_level": _quantization(stored_as),
        "context_length": entry.context_tokens or (details.context_tokens if details else 0),
        "embedding_length": details.hidden_size if details else 0,
    }


def _family(entry: CatalogEntry, details: ModelDetails | None) -> str:
    """Return the architecture under GGUF's name: ``qwen2`` for ``Qwen2ForCausalLM``."""
    known = (details.architecture if details else "") or entry.architecture
    return known.partition("For")[0].removesuffix("LMHeadModel").removesuffix("Model").lower()


def _quantization(stored_as: str) -> str:
    short = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
    return short.get(stored_as, stored_as.partition(",")[0].upper())


def parameter_size(count: int) -> str:
    """Return a number of weights as Ollama writes it: ``7B``, ``7.6B``, ``494.03M``."""
    for unit, letter in _UNITS:
        if count >= unit:
            value = round(count / unit, _DECIMALS[letter])
            return f"{value:.0f}{letter}" if value == int(value) else f"{value:.{_DECIMALS[letter]}f}{letter}"
    return str(count) if count else ""


def _capabilities(card: ModelCard | None, details: ModelDetails | None) -> list[str]:
    """Return what a loaded model can do, or what the files of another one say."""
    has = {"completion": True}
    if card is not None:
        has = {
            "completion": card.generates,
            "vision": card.images is not None,
            "tools": card.tool_calls is not None,
            "thinking": card.reasoning is not None,
            "insert": card.has_fill_tokens,
            "embedding": embeds(card),
        }
    elif details is not None:
        has |= {"tools": details.tools, "thinking": details.reasoning, "insert": details.fill}
    return [name for name, is_on in has.items() if is_on]


def _shown(
    entry: CatalogEntry,
    card: ModelCard | None,
    details: ModelDetails | None,
    shown_as: str,
    derived: DerivedModel | None,
) -> dict[str, Any]:
    context = (card.context_tokens if card else entry.context_tokens) or (details.context_tokens if details else 0)
    parameters = _parameter_lines(card, context, derived)
    modelfile = ["# Modelfile", f"FROM {entry.id if derived is None else derived.base}"]
    shown: dict[str, Any] = {
        "license": details.license if details else "",
        "parameters": "\n".join(parameters),
        "template": _template(card, details),
        "details": _detail_keys(entry, details),
        "model_info": _model_info(entry, card, details, shown_as, context),
        "tensors": [],
        "capabilities": _capabilities(card, details),
        "modified_at": timestamp(entry.modified or 0.0),
    }
    if derived is None and card is not None and card.base is not None:
        shown["details"] = shown["details"] | {"parent_model": card.base}
        modelfile.append(f"ADAPTER {card.name}")
    if derived is not None:
        shown["license"] = derived.license or shown["license"]
        shown["details"] = shown["details"] | {"parent_model": derived.base}
        shown["modified_at"] = timestamp(derived.modified)
        shown |= {key: value for key, value in (("system", derived.system), ("messages", derived.messages)) if value}
        modelfile += [f"SYSTEM {encode(derived.system).decode()}"] if derived.system else []
    modelfile += [f"PARAMETER {parameter}" for parameter in parameters]
    return {"license": shown.pop("license"), "modelfile": "\n".join(modelfile) + "\n", **shown}


def _template(card: ModelCard | None, details: ModelDetails | None) -> str:
    text = (card.chat_template if card else "") or (details.chat_template if details else "")
    return text + SUFFIX_MARK if "insert" in _capabilities(card, details) else text


def _parameter_lines(card: ModelCard | None, context: int, derived: DerivedModel | None) -> list[str]:
    """Return the lines of ``parameters``: texts in quotes, each stop string in a line of its own."""
    values: dict[str, Any] = {"num_ctx": context}
    for name, value in (card.sampling.values if card else {}).items():
        if name in _PARAMETERS:
            values[_PARAMETERS[name]] = value
    values |= derived.parameters if derived else {}
    lines = []
    for name, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            shown = f"{each:g}" if type(each) is float else encode(each).decode()
            lines.append(f"{name:<30} {shown}")
    return lines


def _model_info(
    entry: CatalogEntry, card: ModelCard | None, details: ModelDetails | None, shown_as: str, context: int
) -> dict[str, Any]:
    family = _family(entry, details) or "unknown"
    info: dict[str, Any] = {"general.architecture": family, "general.basename": shown_as.rpartition("/")[2]}
    if shown_as != entry.id:
        info["general.basename"] = shown_as
    parameters = entry.parameters or (details.parameters if details else 0)
    info["general.parameter_count"] = parameters
    info[f"{family}.context_length"] = context
    if details is not None:
        info |= {
            f"{family}.embedding_length": details.hidden_size,
            f"{family}.block_count": details.layers,
            f"{family}.attention.head_count": details.heads,
            f"{family}.attention.head_count_kv": details.kv_heads,
            f"{family}.vocab_size": details.vocab_size,
        }
        if details.tokenizer:
            info["tokenizer.ggml.model"] = details.tokenizer
        ids = {"bos": details.bos_token_id, "eos": details.eos_token_ids[0] if details.eos_token_ids else None}
        info |= {f"tokenizer.ggml.{name}_token_id": each for name, each in ids.items() if each is not None}
    elif card is not None:
        info |= {f"{family}.embedding_length": card.hidden_size, f"{family}.vocab_size": card.vocab_size}
    return info
