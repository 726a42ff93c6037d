"""Translation from wire to core: a checked body becomes one request for each answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.core.entropy import random_bits
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.request import GenerationRequest, Prompt, TextPrompt, TokenPrompt
from dragoman.core.sampling import MAX_SEED, SamplingParams
from dragoman.core.serving import ModelCard, Serving
from dragoman.dialects.field import CoreParams, Reading
from dragoman.dialects.images import base64_parts
from dragoman.dialects.llamacpp.fields import MOST_PROMPTS

MULTIMODAL, MARK = "prompt.multimodal_data", "<__media__>"
SAMPLERS = ("penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The steps that llama-server names and this one has, in their order here."""
_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typ_p",
    "p": "top_p",
    "m": "min_p",
} | {
    "x": "xtc",
    "t": "temperature",
    "i": "infill",
}
_SPELLINGS = {"typical_p": "typ_p", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p", "typical": "typ_p"} | {
    "typical-p": "typ_p",
    "temp": "temperature",
}
_NEUTRAL: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0},
}
_TRUNCATIONS = ("top_k", "typ_p", "top_p", "min_p", "xtc")
MAX_BIASES = 4096
MAX_BIAS = 1e30
PIECES_AT_ONCE = 16
"""Short texts that are tokenized one after the other before others have their turn: some milliseconds of them."""


class Piece(NamedTuple):
    """A part of a prompt: text, or token ids. ``images``: in base64, one for each mark in the text."""

    text: str | None
    token_ids: tuple[int, ...] = ()
    images: tuple[str, ...] = ()


def prompts_of(value: Any) -> list[list[Piece]]:
    """Return the prompts of a body, each in pieces. Raises BadRequest."""
    prompts = value if _is_list_of_prompts(value) else [value]
    if not 0 < len(prompts) <= MOST_PROMPTS:
        raise BadRequest(f'"prompt" is one prompt, or up to {MOST_PROMPTS}', param="prompt")
    return [_pieces(prompt) for prompt in prompts]


def _is_list_of_prompts(value: Any) -> bool:
    return isinstance(value, list | tuple) and not any(type(each) is int for each in value)


def _pieces(value: Any) -> list[Piece]:
    match value:
        case str():
            return [Piece(value)]
        case {"prompt_string": str(text)}:
            return [Piece(text, images=tuple(value.get("multimodal_data") or ()))]
        case [_, *_] if all(isinstance(each, str) or (type(each) is int and each >= 0) for each in value):
            found: list[Piece] = []
            for kind, run in itertools.groupby(value, key=type):
                parts = tuple(run)
                found += map(Piece, parts) if kind is str else (Piece(None, parts),)
            return found
    raise BadRequest('"prompt" elements must be a string, a list of tokens, or a list of both', param="prompt")


async def prompts_from(serving: Serving, several: Sequence[Sequence[Piece]], model: str) -> list[Prompt]:
    """Return the prompts of a body."""
    return [await prompt_of(serving, pieces, model) for pieces in several]


async def let_others_run(place: int) -> None:
    """Let other requests run now and then in a loop over many short pieces, of which this one is at ``place``."""
    if place % PIECES_AT_ONCE == PIECES_AT_ONCE - 1:
        await asyncio.sleep(0)


async def prompt_of(serving: Serving, pieces: Sequence[Piece], model: str) -> Prompt:
    """Return the prompt of pieces. BOS comes before a text that begins it."""
    if len(pieces) == 1 and pieces[0].text is not None:
        return _text_prompt(pieces[0].text, pieces[0].images, serving.model(model))
    ids: list[int] = []
    most = serving.model(model).prompt_tokens
    for place, piece in enumerate(pieces):
        if piece.text is None:
            ids += piece.token_ids
        elif piece.text or not place:
            ids += await serving.tokenize(TextPrompt(text=piece.text, add_special_tokens=not place), model)
        if len(ids) > most:
            break  # it is refused; there may be hundreds of thousands more
        await let_others_run(place)
    return TokenPrompt(token_ids=tuple(ids))


def _text_prompt(text: str, images: Sequence[str], card: ModelCard) -> TextPrompt:
    """Return a text with its images in place of their marks. Raises BadRequest, UnsupportedFeature."""
    if not images:
        return TextPrompt(text=text)
    if card.images is None:
        message = "This server does not support multimodal. Start it with a model that sees images."
        raise UnsupportedFeature(message, param=MULTIMODAL)
    parts = text.split(MARK)
    if len(parts) != len(images) + 1:
        message = f"number of media markers in text ({len(parts) - 1}) does not match number of bitmaps ({len(images)})"
        raise BadRequest(message, param=MULTIMODAL)
    sources = tuple(part["source"] for part in base64_parts(images, ("prompt", "multimodal_data")))
    places = tuple(itertools.accumulate(map(len, parts[:-1])))
    return TextPrompt(text="".join(parts), image_places=places, images=sources)


async def biases_of(serving: Serving, value: Any, model: str, *, vocab_size: int) -> dict[int, float]:
    """Return the logit biases of a body by token. Raises BadRequest."""
    if value is None:
        return {}
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or len(pairs) > MAX_BIASES:
        raise BadRequest('"logit_bias" is a list of pairs, or an object', param="logit_bias")
    found: dict[int, float] = {}
    for place, pair in enumerate(pairs):
        await let_others_run(place)
        match pair:
            case [key, False] | (key, False):
                bias = -float("inf")
            case [key, int() | float() as number] | (key, int() | float() as number) if not isinstance(number, bool):
                bias = float(max(-MAX_BIAS, min(number, MAX_BIAS)))
            case _:
                raise BadRequest('"logit_bias" has pairs of a token and a number, or false', param="logit_bias")
        if isinstance(value, dict) and isinstance(key, str) and key.isascii() and key.isdigit():
            key = int(key[:20])
        if isinstance(key, str) and key:
            ids = await serving.tokenize(TextPrompt(text=key, add_special_tokens=False), model)
        elif type(key) is int and 0 <= key < vocab_size:
            ids = (key,)
        else:
            raise BadRequest(f'"logit_bias": there is no token {str(key)[:32]}', param="logit_bias")
        found |= dict.fromkeys(ids, bias)
    return found


class Chosen(NamedTuple):
    """The sampling parameters of a body. ``names``: the steps that run; ``off``: the parameters of the others, which no
    default turns on; ``unused``: its list has no effect in part."""

    params: SamplingParams
    names: tuple[str, ...]
    off: frozenset[str]
    unused: bool


def sampling_of(core: CoreParams, samplers: Sequence[str] | str | None) -> Chosen:
    """Return the sampling parameters with the steps that are not named turned off."""
    params = msgspec.structs.replace(core.sampling(), temperature_last=True)
    named = _named(samplers)
    names = SAMPLERS if named is None else tuple(name for name in SAMPLERS if name in named)
    off = [name for name in SAMPLERS if name not in names]
    if params.mirostat_mode:
        off += _TRUNCATIONS
    neutral = {parameter: value for name in off for parameter, value in _NEUTRAL[name].items()}
    params = msgspec.structs.replace(params, **neutral)
    ordered = named is None or [name for name in named if name in SAMPLERS] == list(names)
    others = set(named or ()) - set(SAMPLERS) - {"top_n_sigma"}
    return Chosen(params, names, frozenset(neutral), not ordered or bool(others))


def _named(samplers: Sequence[str] | str | None) -> list[str] | None:
    if samplers is None:
        return None
    if isinstance(samplers, str):
        return [_LETTERS.get(letter, letter) for letter in samplers]
    return list(dict.fromkeys(_SPELLINGS.get(name, name) for name in samplers))


def adapter_of(lora: Sequence[Mapping[str, Any]] | None, cards: Sequence[ModelCard]) -> str | None:
    """Return the adapter that a body asks for. Raises UnsupportedFeature for several, and for other scales."""
    adapters = [card.name for card in cards if card.base is not None]
    asked = [each for each in lora or () if each.get("scale")]
    if not asked:
        return None
    place, scale = asked[0].get("id"), asked[0].get("scale")
    if len(asked) > 1 or scale != 1 or type(place) is not int or not 0 <= place < len(adapters):
        raise UnsupportedFeature('"lora" is one adapter of /lora-adapters with scale 1', param="lora")
    return adapters[place]


def requests_of(
    reading: Reading,
    request_id: str,
    card: ModelCard,
    prompts: Sequence[Prompt],
    chosen: Chosen,
    biases: dict[int, float],
) -> tuple[list[GenerationRequest], Reading]:
    """Return one request for each answer, and the reading with the fields that have no effect."""
    values, core = reading.values, reading.core
    count = values["n_cmpl"] or values["n"] or 1
    if len(prompts) * count > MOST_PROMPTS:
        raise BadRequest(f'"prompt" and "n" make up to {MOST_PROMPTS} answers', param="n")
    constraints = list(core.given("constraint"))
    seed = (core.get("seeds") or (random_bits(32),))[0]
    sampling = msgspec.structs.replace(chosen.params, logit_bias=biases)
    ending = msgspec.structs.replace(core.ending(), clamp_to_context=True)
    requests = [
        core.request(
            f"{request_id}-{i}" if i else request_id,
            prompt,
            model=card.name,
            seeds=((seed + i % count) & MAX_SEED,),
            sampling=sampling,
            unset_sampling=tuple(name for name in core.unset_sampling if name not in chosen.off),
            ending=ending,
            constraint=constraints[0][1] if constraints else None,
            constraint_param=constraints[0][0] if constraints else "grammar",
        )
        for i, prompt in enumerate(prompt for prompt in prompts for _ in range(count))
    ]
    unused = {"samplers": chosen.unused, "json_schema": len(constraints) > 1}
    reported = (*reading.reported, *(name for name, is_unused in unused.items() if is_unused))
    return requests, msgspec.structs.replace(reading, reported=reported)
