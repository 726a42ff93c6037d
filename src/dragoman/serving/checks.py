"""Checks of a request against the model that it is for, made before anything is generated. They raise BadRequest."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.core.engine_fields import wire_name
from dragoman.core.errors import BadRequest, UnsupportedFeature
from dragoman.core.images import PlacedImage, images_refused
from dragoman.core.request import GenerationRequest, PromptEmbeddings
from dragoman.core.sampling import LogprobParams
from dragoman.models import EncoderInfo
from dragoman.serving.model import ServedModel

MAX_LOGPROBS = 2**22
"""The most log-probabilities of one prompt's whole answer. They are held in memory until it is complete: some
hundred megabytes at most."""

WIRE_NAMES = {"forced_tokens": "forced_output_tokens"}
"""Names of sampling parameters on the wire, where they differ."""


def check_streamed(request: GenerationRequest) -> None:
    """Raise BadRequest for a request that can only be answered whole."""
    if (request.best_of or request.n) != request.n:
        raise BadRequest("'best_of' sequences can only be chosen from when all are finished.", param="best_of")


def check_beams(request: GenerationRequest) -> None:
    """Raise BadRequest for what contradicts the request's beam search; accept a request without one."""
    beams = request.beams
    if beams is None:
        return
    for name in beams.excludes(request.sampling):
        name = WIRE_NAMES.get(name, name)
        raise BadRequest(f"'{name}' and a {beams.kind} beam search exclude each other.", param=name)
    if request.best_of is not None:
        raise BadRequest("'best_of' and a beam search exclude each other.", param="best_of")
    if request.seeds is not None and len(request.seeds) > 1:
        raise BadRequest("A beam search has one seed.", param="seed")
    if request.ending.stop:
        message = "'stop' and a beam search exclude each other; 'stop_token_ids' are tokens that end a text."
        raise BadRequest(message, param="stop")
    if request.ending.max_tokens == 0:
        raise BadRequest("A beam search needs 'max_tokens' of 1 at least.", param="max_tokens")
    if fault := beams.fault():
        raise BadRequest(fault[1], param=fault[0])
    if request.n > beams.num_beams:
        message = f"'n' ({request.n}) is more than 'num_beams' ({beams.num_beams}): there are no more hypotheses."
        raise BadRequest(message, param="n")


def check_encoder_options(request: GenerationRequest, encoder: EncoderInfo | None, context_tokens: int) -> None:
    """Raise BadRequest for an option of the other kind of model. ``context_tokens``: as on the model's card; a total
    of so many is no limit at all."""
    ending = request.ending
    if encoder is None:
        for name in request.sampling.about_encoder:
            raise BadRequest(f"'{name}' is for encoder-decoder models, and this one is none.", param=name)
        return
    totals = {"max_total_tokens": ending.max_total_tokens, "min_total_tokens": ending.min_total_tokens or None}
    for name, total in totals.items():
        if total is not None and (name, total) != ("max_total_tokens", context_tokens):
            message = f"'{name}' is for decoders: of an encoder-decoder model prompt and output have a length each."
            raise BadRequest(message, param=name)
    if request.echo and request.logprobs is not None:
        message = "The prompt of an encoder-decoder model is only read: it has no log-probabilities."
        raise BadRequest(f"{message} Ask for 'echo' or for 'logprobs'.", param="echo")


def check_ids(model: ServedModel, param: str, ids: Sequence[int] | dict[int, float]) -> None:
    if ids and not 0 <= min(ids) <= max(ids) < model.vocab_size:
        raise BadRequest(f"'{param}': token ids are from 0 to {model.vocab_size - 1}.", param=param)


def check_logprobs(logprobs: LogprobParams, tokens: int, vocab_size: int) -> None:
    if logprobs.top > vocab_size:
        raise BadRequest(f"The model has only {vocab_size} tokens.", param="logprobs")
    if tokens * (logprobs.most + 1) > MAX_LOGPROBS:
        message = (
            f"{tokens} tokens with {logprobs.most} alternatives each are more than {MAX_LOGPROBS} log-probabilities."
        )
        raise BadRequest(f"{message} Ask for fewer tokens, sequences or alternatives.", param="logprobs")


def check_images(model: ServedModel, request: GenerationRequest) -> None:
    """Raise UnsupportedFeature for images that the model cannot see, or in a request that cannot have any."""
    if not request.images:
        return
    if model.vision is None:
        raise images_refused(model.card.name, request.images_param)
    if request.pooling is not None:
        raise UnsupportedFeature("Vectors are made of texts, not of images.", param=request.images_param)


def check_placed_images(
    model: ServedModel, request: GenerationRequest, images: Sequence[PlacedImage], prompt_tokens: int
) -> None:
    """Raise for a prompt whose tokens see later ones, where these do not fit into a step, or the log-probabilities of
    the prompt are asked for."""
    if not images or model.vision is None or model.vision.both_ways == "none":
        return
    name = model.card.name
    if request.logprobs is not None and request.logprobs.prompt:
        message = f"The model '{name}' reads images in one step: the prompt's tokens have no log-probabilities."
        raise UnsupportedFeature(message, param=wire_name("logprobs.prompt"))
    longest, what = max(image.end - image.start for image in images), "an image"
    if model.vision.both_ways == "prompt":
        longest, what = prompt_tokens, "a prompt with images"
    if longest > model.image_tokens:
        message = f"The model '{name}' reads {what} of {longest} tokens in one step, which has room for "
        raise UnsupportedFeature(f"{message}{model.image_tokens} here (--step-tokens).", param=request.images_param)


def check_embeddings(embeddings: PromptEmbeddings, prompt_tokens: int, hidden_size: int) -> None:
    last, count = embeddings.token_indices[-1], len(embeddings.token_indices)
    if last >= prompt_tokens:
        name = wire_name("embeddings.token_indices")
        raise BadRequest(f"'{name}' names place {last} of a prompt of {prompt_tokens} tokens.", param=name)
    if len(embeddings.values) != 4 * count * hidden_size:
        name, numbers = wire_name("embeddings.values", "embeddings"), len(embeddings.values) // 4
        raise BadRequest(f"'{name}' has {numbers} numbers, not {count} times {hidden_size}.", param=name)
