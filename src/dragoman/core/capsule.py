"""Capsules: one generation as token ids, with all that decides them, so that it can be run again and compared.

A capsule is JSON, about 1 kB for a short chat. Fields at the default of their version are left out. It holds no API key
and nothing that follows from one; texts only where the operator records them. Whoever reads one may have it from a
stranger, so decoding is strict: unknown fields, wrong types and values out of range are errors, and so is a large file.
"""

from __future__ import annotations

import math
import zlib
from typing import Annotated

import msgspec
from msgspec import Meta

from dragoman.core.decoding import UNDECODABLE
from dragoman.core.errors import BadRequest
from dragoman.core.events import FinishReason, TokenLogprob
from dragoman.core.images import ImageTiles, PlacedImage
from dragoman.core.request import EngineRequest, PromptEmbeddings, ReasoningLimit
from dragoman.core.sampling import BeamParams, LogprobParams, SamplingParams

VERSION = 1
"""The version of the format. A field that gets another meaning or default needs another one."""

MOST_BYTES = 64 << 20
MOST_TOKENS = 1 << 20
MOST_SEQUENCES = 2048
MOST_TOP = 1024
MOST_IMAGES = 1024
MOST_PIXEL_BYTES = 128 << 20
"""Of all images of a capsule together."""

Id = Annotated[int, Meta(ge=0, lt=2**31)]
Ids = Annotated[tuple[Id, ...], Meta(max_length=MOST_TOKENS)]
Name = Annotated[str, Meta(max_length=512)]
Seeds = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=MOST_SEQUENCES)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]


class Environment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What computed the tokens.

    Attributes:
        model: name under which it was served. fingerprint: as in ``ModelCard``.
        weights: digest of the packed weights. kernels: the instruction set. version: of the server.
        precision, kv_precision: of the weights, and of keys and values.
        adapter: fingerprint of the adapter; empty without one.
    """

    model: Name
    fingerprint: Name
    weights: Name = ""
    kernels: Name = ""
    version: Name = ""
    precision: Name = ""
    kv_precision: Name = ""
    adapter: Name = ""


class RecordedImage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image of the prompt; see ``PlacedImage`` and ``ImageTiles``. ``pixels``: compressed (zlib)."""

    start: Count
    end: Count
    pixels: bytes
    tiles: Count
    height: Count
    width: Count
    rows: Count
    columns: Count
    image_height: Count
    image_width: Count
    tokens: Count
    embeddings: Count
    service: Count
    digest: bytes


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parameters as the engine had them, after all defaults; see ``EngineRequest``.

    ``reported``: the client asked for the log-probabilities, by ``logprobs``; otherwise they are the recorder's.
    ``stop``: the stop strings, which end a sequence after its tokens. ``banned_token_ids``: those whose bias is -inf,
    which JSON cannot say; ``sampling.logit_bias`` has the others.
    """

    prompt: Ids
    seeds: Seeds
    max_tokens: Count
    sampling: SamplingParams = SamplingParams()
    min_tokens: Count = 0
    length_first: bool = False
    eos_after_grammar: bool = False
    end_token_ids: Ids = ()
    stop_token_ids: Ids = ()
    logprobs: LogprobParams | None = None
    generated: Annotated[tuple[Ids, ...], Meta(max_length=MOST_SEQUENCES)] = ()
    mirostat: Annotated[tuple[float | None, ...], Meta(max_length=MOST_SEQUENCES)] = ()
    grammar: str | None = None
    reasoning: ReasoningLimit | None = None
    beams: BeamParams | None = None
    embeddings: PromptEmbeddings | None = None
    images: Annotated[tuple[RecordedImage, ...], Meta(max_length=MOST_IMAGES)] = ()
    adapter: Name | None = None
    encoder_input: Ids = ()
    first_token_id: Id | None = None
    last_token_id: Id | None = None
    reported: bool = False
    stop: Annotated[tuple[str, ...], Meta(max_length=4096)] = ()
    banned_token_ids: Ids = ()


class RecordedSequence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One output: its new tokens, the log-probability of each, and those of the likeliest others where they were
    asked for. ``finish`` None: it was not finished when its request ended."""

    token_ids: Ids = ()
    logprobs: Annotated[tuple[float | None, ...], Meta(max_length=MOST_TOKENS)] = ()
    top: Annotated[
        tuple[Annotated[tuple[TokenLogprob, ...], Meta(max_length=MOST_TOP)], ...], Meta(max_length=MOST_TOKENS)
    ] = ()
    finish: FinishReason | None = None


class RecordedText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prompt and the outputs as text."""

    prompt: str
    outputs: Annotated[tuple[str, ...], Meta(max_length=MOST_SEQUENCES)]


class Capsule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One recorded generation. ``created``: its time, in UTC. ``dialect``, ``operation``: what it was asked by."""

    version: Annotated[int, Meta(ge=1)]
    created: Name
    environment: Environment
    request: RecordedRequest
    outputs: Annotated[tuple[RecordedSequence, ...], Meta(max_length=MOST_SEQUENCES)]
    dialect: Name = ""
    operation: Name = ""
    text: RecordedText | None = None


class _Outline(msgspec.Struct):
    version: int
    request: dict[str, msgspec.Raw] = {}


_INNER: dict[str, type[msgspec.Struct]] = {
    "sampling": SamplingParams,
    "logprobs": LogprobParams,
    "beams": BeamParams,
    "embeddings": PromptEmbeddings,
    "reasoning": ReasoningLimit,
}
"""The structs of the core in a recorded request. Elsewhere unknown names in them are left out; here they are errors."""

_SHARED = tuple(
    name
    for name in RecordedRequest.__struct_fields__
    if name in EngineRequest.__struct_fields__ and name not in ("logprobs", "images")
)
_OF_TILES = tuple(name for name in ImageTiles.__struct_fields__ if name != "pixels")


def recorded(request: EngineRequest, *, reported: bool, stop: tuple[str, ...], adapter: str | None) -> RecordedRequest:
    """Return a request of the engine as it is recorded: without its caller, its salt and its place in the queue."""
    shared = {name: getattr(request, name) for name in _SHARED}
    shared["adapter"] = adapter
    shared["images"] = tuple(map(_recorded_image, request.images))
    biases = request.sampling.logit_bias
    banned = tuple(id for id, bias in biases.items() if bias == -math.inf)
    if banned:
        others = {id: bias for id, bias in biases.items() if bias > -math.inf}
        shared["sampling"] = msgspec.structs.replace(request.sampling, logit_bias=others)
    return RecordedRequest(**shared, logprobs=request.logprobs, reported=reported, stop=stop, banned_token_ids=banned)


def engine_request(request_id: str, found: RecordedRequest) -> EngineRequest:
    """Return the recorded request for an engine. Raises BadRequest for images that are damaged."""
    shared = {name: getattr(found, name) for name in _SHARED}
    if sum(_pixel_bytes(image) for image in found.images) > MOST_PIXEL_BYTES:
        raise BadRequest(f"its images have more than {MOST_PIXEL_BYTES} bytes")
    images = tuple(map(_placed_image, found.images))
    if found.banned_token_ids:
        biases = found.sampling.logit_bias | dict.fromkeys(found.banned_token_ids, -math.inf)
        shared["sampling"] = msgspec.structs.replace(found.sampling, logit_bias=biases)
    return EngineRequest(request_id=request_id, logprobs=found.logprobs, images=images, **shared)


def _recorded_image(image: PlacedImage) -> RecordedImage:
    of_tiles = {name: getattr(image.tiles, name) for name in _OF_TILES}
    return RecordedImage(start=image.start, end=image.end, pixels=zlib.compress(image.tiles.pixels, 1), **of_tiles)


def _pixel_bytes(image: RecordedImage) -> int:
    return 3 * image.tiles * image.height * image.width


def _placed_image(image: RecordedImage) -> PlacedImage:
    reader = zlib.decompressobj()
    try:
        pixels = reader.decompress(image.pixels, _pixel_bytes(image) + 1)
    except zlib.error:
        raise BadRequest("the pixels of an image are damaged") from None
    tiles = ImageTiles(pixels=pixels, **{name: getattr(image, name) for name in _OF_TILES})
    if not tiles.is_sound:
        raise BadRequest("an image is not what its digest is of")
    return PlacedImage(start=image.start, end=image.end, tiles=tiles)


def encode(capsule: Capsule) -> bytes:
    """Return the capsule's JSON, with a line feed at its end."""
    return msgspec.json.encode(capsule) + b"\n"


_decoder = msgspec.json.Decoder(Capsule)


def decode(data: bytes) -> Capsule:
    """Return the capsule of a file, whoever has made it. Raises BadRequest with the reason."""
    if len(data) > MOST_BYTES:
        raise BadRequest(f"it has more than {MOST_BYTES} bytes")
    try:
        outline = msgspec.json.decode(data, type=_Outline)
        if outline.version != VERSION:
            raise BadRequest(f"it is of version {outline.version}; this program reads version {VERSION}")
        capsule = _decoder.decode(data)
        for name, struct in _INNER.items():
            given = msgspec.json.decode(outline.request.get(name, b"null"))
            if unknown := set(given or ()) - set(struct.__struct_fields__):
                raise BadRequest(f"'{name}' has the unknown field '{min(unknown)[:64]}'")
    except (*UNDECODABLE, RecursionError) as error:
        raise BadRequest(f"it is no capsule: {error}") from None
    _check(capsule)
    return capsule


def _check(capsule: Capsule) -> None:
    """Raise BadRequest for values that contradict one another."""
    request, outputs = capsule.request, capsule.outputs
    if len(outputs) != len(request.seeds):
        raise BadRequest(f"it has {len(outputs)} outputs for {len(request.seeds)} seeds")
    if max(request.seeds) >= 2**64:
        raise BadRequest("a seed is above 2^64 - 1")
    for output in outputs:
        for values in (output.logprobs, output.top):
            if values and len(values) != len(output.token_ids):
                raise BadRequest(f"it has {len(values)} log-probabilities for {len(output.token_ids)} tokens")
        if any(value is not None and not (math.isfinite(value) and value <= 1e-3) for value in output.logprobs):
            raise BadRequest("a log-probability is above 0")
        if any(not (each.logprob <= 1e-3 and 0 <= each.token_id < 2**31) for top in output.top for each in top):
            raise BadRequest("an alternative is no token with a log-probability")
    if sum(len(output.token_ids) for output in outputs) > MOST_TOKENS:
        raise BadRequest(f"it has more than {MOST_TOKENS} tokens")
    names = request.sampling.out_of_range
    if names:
        raise BadRequest(f"{names[0]} is out of its range")
