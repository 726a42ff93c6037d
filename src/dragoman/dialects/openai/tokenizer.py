"""The tokenizer over HTTP, and the version, in the forms of vLLM's server: what lm-eval's remote tokenizer asks for."""

from __future__ import annotations

import msgspec

from dragoman import __version__
from dragoman.core.errors import BadRequest
from dragoman.core.request import ChatPrompt, Prompt, TextPrompt
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.api import Operation, RequestContext, RouteHint
from dragoman.dialects.field import Field, Reading, Table, Treatment
from dragoman.dialects.field_types import Anything, Boolean, FieldError, FieldRule, ListOf, String
from dragoman.dialects.openai.fields import CHAT, MODEL, TOKEN_IDS
from dragoman.dialects.openai.messages import template_messages
from dragoman.dialects.openai.tools import shown_tools

_OF_CHAT = ("messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")

TOKENIZE = Table(
    name="tokenizer request",
    fields=(
        MODEL,
        Field(
            name="prompt",
            kind=String(),
            becomes="prompt",
            note="The text. Without it `messages` are tokenized; with it "
            "they, and what belongs to a conversation, are reported.",
        ),
        Field(
            name="add_special_tokens",
            kind=Boolean(),
            becomes="prompt.add_special_tokens",
            note="A text gets the tokenizer's own first and last tokens (BOS): the default. Those of a conversation "
            "are the template's.",
        ),
        *(
            Field(name=field.name, kind=field.kind, becomes=field.becomes, default=field.default, note=field.note)
            for field in CHAT.fields
            if field.name in _OF_CHAT
        ),
        Field(name="return_token_strs", kind=Boolean(), default=False, note="The text of each token, too."),
        Field(name="chat_template", kind=Anything(), treatment=Treatment.REFUSED, note="The model's own is used."),
        Field(
            name="mm_processor_kwargs", kind=Anything(), treatment=Treatment.REFUSED, note="The model reads text only."
        ),
    ),
)

DETOKENIZE = Table(
    name="detokenizer request",
    fields=(
        MODEL,
        Field(
            name="tokens",
            kind=ListOf(TOKEN_IDS.item, maximum=TOKEN_IDS.maximum),
            required=True,
            becomes="prompt.token_ids",
            note="Ids of tokens.",
        ),
    ),
)


async def tokenize(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /tokenize``."""
    reading = await context.read(TOKENIZE)
    card = serving.model(reading.core.get("model"))
    prompt = _prompt(reading, card)
    if isinstance(prompt, TextPrompt):
        unused = tuple(name for name in _OF_CHAT if reading.values[name])
        context.report(msgspec.structs.replace(reading, reported=(*reading.reported, *unused)))
    ids = await context.unless_gone(serving.tokenize(prompt, card.name, bounded=False))
    texts = None
    if reading.values["return_token_strs"]:
        texts = [raw.decode(errors="replace") for raw in await context.unless_gone(serving.token_bytes(ids))]
    await context.reply(
        {"count": len(ids), "max_model_len": card.context_tokens, "tokens": list(ids), "token_strs": texts}
    )


def _prompt(reading: Reading, card: ModelCard) -> Prompt:
    """Return what is tokenized. Raises BadRequest."""
    core = reading.core
    text, messages, special = core.get("prompt"), core.get("prompt.messages"), core.get("prompt.add_special_tokens")
    if text is not None:
        return TextPrompt(text=text, add_special_tokens=special is not False)
    if messages is None:
        raise FieldError(FieldRule.MISSING, ("prompt",), bound="prompt")
    if special:
        message = "'add_special_tokens' goes with 'prompt': the special tokens of a conversation are the template's."
        raise BadRequest(message, param="add_special_tokens")
    continues, opens = core.get("prompt.continue_final_message"), core.get("prompt.add_generation_prompt")
    return ChatPrompt(
        messages=template_messages(messages, card, takes_later_system=card.template_roles.later_system),
        tools=shown_tools(reading, card),
        add_generation_prompt=not continues if opens is None else opens,
        continue_final_message=bool(continues),
        template_kwargs=core.get("prompt.template_kwargs") or {},
    )


async def detokenize(serving: Serving, context: RequestContext) -> None:
    """Handle ``POST /detokenize``. ``content`` is llama.cpp's name: its clients send the same body to this path."""
    core = (await context.read(DETOKENIZE)).core
    ids, card = core.get("prompt.token_ids"), serving.model(core.get("model"))
    try:
        text = await context.unless_gone(serving.detokenize(ids, card.name)) if ids else ""
    except BadRequest as error:
        error.param = "tokens"
        raise
    await context.reply({"prompt": text, "content": text})


async def info(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /tokenizer_info``."""
    card = serving.model(None)
    await context.reply(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": card.bos_token or None,
            "eos_token": card.eos_token or None,
            "pad_token": None,
            "model_max_length": card.context_tokens,
            "chat_template": card.chat_template or None,
        }
    )


async def version(serving: Serving, context: RequestContext) -> None:
    """Handle ``GET /version``."""
    await context.reply({"version": __version__})


def _claims(call: RouteHint) -> bool:
    return call.has("prompt", "messages") and not call.has("inputs", "content")


OPERATIONS = (
    Operation(
        method="POST",
        path="/tokenize",
        summary="Return the tokens of a text or a conversation.",
        handler=tokenize,
        table=TOKENIZE,
        claims=_claims,
    ),
    Operation(
        method="POST", path="/detokenize", summary="Return the text of tokens.", handler=detokenize, table=DETOKENIZE
    ),
    Operation(method="GET", path="/tokenizer_info", summary="Describe the tokenizer.", handler=info),
    Operation(method="GET", path="/version", summary="Return the version of the server.", handler=version, open=True),
)
