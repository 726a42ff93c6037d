"""Prompts of requests for vectors: texts, token ids, and pairs of texts as the model was trained to read them."""

from __future__ import annotations

import msgspec

from dragoman.core.errors import BadRequest, UnsupportedOperation
from dragoman.core.pooling import PoolingInfo, PoolingParams
from dragoman.core.request import GenerationRequest, PairPrompt, TextPrompt, TokenPrompt
from dragoman.serving.model import ServedModel
from dragoman.serving.prompts import PromptReader, overflow
from dragoman.text import Tokenizer

# As Qwen3-Reranker was trained: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B
_JUDGE_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_JUDGE_BETWEEN = (
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}"
)
_JUDGE_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


async def read_pooled(
    model: ServedModel, reader: PromptReader, request: GenerationRequest, wanted: PoolingParams
) -> tuple[PoolingParams, tuple[int, ...]]:
    """Return what the engine pools, and the token ids.

    Raises UnsupportedOperation where the model makes no such vectors, BadRequest, and ContextOverflow.
    """
    info, prompt = model.card.pooling, request.prompt
    if info is None:
        raise UnsupportedOperation(f"The model '{model.card.name}' makes no vectors of texts.", param="model")
    if isinstance(prompt, PairPrompt):
        return await _read_pair(model, reader, prompt, info, request.truncate)
    if info.scores and wanted.kind is not None:
        raise UnsupportedOperation(f"The model '{model.card.name}' is a classifier.", param="pooling")
    pooling = msgspec.structs.replace(wanted, kind=wanted.kind or info.kind)
    most = model.max_prompt_tokens
    cut = None if request.truncate is None else min(most, request.truncate)
    match prompt:
        case TextPrompt(text=text) if cut is not None:
            limit = cut
            ids = await reader.in_thread(len(text), lambda: model.tokenizer.encode_beginning(text, limit), "prompt")
        case TextPrompt(text=text):
            ids = await reader.in_thread(len(text), lambda: model.tokenizer.encode(text, max_tokens=most), "prompt")
        case TokenPrompt(token_ids=given):
            ids = given[:cut]
            if ids and not 0 <= min(ids) <= max(ids) < model.vocab_size:
                message = f"Token ids are from 0 to {model.vocab_size - 1}: are these of another model's tokenizer?"
                raise BadRequest(f"{message} Send the text itself.", param="prompt")
        case _:
            raise BadRequest("A vector is made of a text or of token ids.", param="prompt")
    model.require_known(ids, "prompt")
    if not ids:
        raise BadRequest("The text is empty: it has no tokens.", param="prompt")
    if len(ids) > most:
        raise overflow(model, f"the input has {len(ids)}", "prompt", prompt_tokens=len(ids))
    return pooling, ids


async def _read_pair(
    model: ServedModel, reader: PromptReader, prompt: PairPrompt, info: PoolingInfo, truncate: int | None
) -> tuple[PoolingParams, tuple[int, ...]]:
    chars, most, tokenizer = len(prompt.query) + len(prompt.document), model.max_prompt_tokens, model.tokenizer

    cut = None if truncate is None else min(most, truncate)

    def joined(document: str) -> tuple[PoolingParams, tuple[int, ...]]:
        ids, start = tokenizer.encode_pair(prompt.query, document, most if cut is None else None)
        return PoolingParams(kind=info.kind, segment_start=start), ids

    def judged(document: str) -> tuple[PoolingParams, tuple[int, ...]]:
        answers = tuple(tokenizer.token_id(word) for word in ("no", "yes"))
        if None in answers:
            raise UnsupportedOperation("The model's tokenizer has no tokens for yes and no.", param="model")
        between = _JUDGE_BETWEEN.format(query=prompt.query, document=document)
        ids = (
            *tokenizer.encode(_JUDGE_BEFORE, add_special_tokens=False),
            *tokenizer.encode(
                between, add_special_tokens=False, parse_special=False, max_tokens=most if cut is None else None
            ),
            *tokenizer.encode(_JUDGE_AFTER, add_special_tokens=False),
        )
        return PoolingParams(token_ids=tuple(each for each in answers if each is not None)), ids

    if info.pairs is None:
        raise UnsupportedOperation(f"The model '{model.card.name}' reads no pairs of texts.", param="model")
    encode = joined if info.pairs == "segments" else judged

    def work() -> tuple[PoolingParams, tuple[int, ...]]:
        document = prompt.document
        pooling, ids = encode(document)
        while cut is not None and len(ids) > cut:
            document = _without_last(tokenizer, document, len(ids) - cut)
            pooling, ids = encode(document)
        return pooling, ids

    pooling, ids = await reader.in_thread(chars, work, "prompt")
    model.require_known(ids, "prompt")
    if len(ids) > most:
        raise overflow(model, f"query and document have {len(ids)}", "prompt", prompt_tokens=len(ids))
    return pooling, ids


def _without_last(tokenizer: Tokenizer, document: str, tokens: int) -> str:
    """Return a document without its last so many tokens, or without more where several are parts of one character.
    Raises BadRequest where nothing would be left."""
    read = tokenizer.encode_with_offsets(document, add_special_tokens=False)
    content, kept = document.encode(), read[: max(0, len(read) - tokens)]
    # All tokens of a character reach to its end: at the document's end such a token would take nothing away.
    end = next((token.stop for token in reversed(kept) if token.stop < len(content)), 0)
    if not end:
        raise BadRequest("The limit of tokens leaves no room for a document.", param="truncate")
    return content[:end].decode("utf-8", "ignore")
