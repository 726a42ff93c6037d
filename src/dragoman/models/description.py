"""Description of a model: before it is loaded, from its small files, and after, for code that does not touch the
weights."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.core.errors import ModelError
from dragoman.core.pooling import PoolingInfo
from dragoman.models import gguf
from dragoman.models.checkpoint import Checkpoint, widest
from dragoman.models.config import LARGEST_HEAD, decoder_config, read_json, token_ids
from dragoman.models.families import FAMILIES, read_spec
from dragoman.models.hub import DownloadWatcher
from dragoman.models.parameters import parameters, seeing
from dragoman.models.pooling import PoolingPlan, plan_pooling
from dragoman.models.quantized import find_scheme
from dragoman.models.quantized.scheme import Scheme
from dragoman.models.rope_config import with_scaling
from dragoman.models.safetensors_file import read_header, stored_dtype
from dragoman.models.settings import PRECISIONS, Precision, RequestedPrecision
from dragoman.models.source import (
    AUTO,
    Source,
    find_source,
    find_weights,
    open_files,
    warn_of_projector,
    without_projector,
)
from dragoman.models.spec import DecoderSpec, EncoderSpec
from dragoman.models.tensors import Format
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.parameters import PREFIX as VISION_PREFIX
from dragoman.models.vision.parameters import is_vision
from dragoman.models.vision.readers import PREPROCESSOR_FILES, UNNAMED_IMAGE_TOKENS, preprocessor_of

_TEXT_ENDS = ("eos_token_id", "bos_token_id")


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a model by its small files alone.

    Attributes:
        stored_dtype: float32, float16 or bfloat16: type of the weights; the config's while they are not downloaded.
        formats: of all matrices, where any is quantized; without weight files, the formats that the config implies.
        quantization: scheme of the quantized weights; None where they are not quantized.
        eos_token_ids: each ends a sequence. bos_token_id: None where the model has none.
        encoder: None where the model has none.
        pooling: None where it makes no vectors of texts.
    """

    source: Source
    spec: DecoderSpec
    stored_dtype: str
    formats: Mapping[str, Format] = msgspec.field(default_factory=dict)
    quantization: Scheme | None = None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    encoder: EncoderInfo | None = None
    pooling: PoolingPlan | None = None

    @property
    def tokenizer_folder(self) -> Path:
        """Folder of the tokenizer's files."""
        return self.source.folder

    @property
    def stored_as(self) -> str:
        """Readable type of the weights, or how they are quantized."""
        return self.quantized_as or self.stored_dtype

    @property
    def quantized_as(self) -> str | None:
        """Readable name of the quantization; None where the weights are not quantized."""
        if self.source.gguf and self.formats:
            return f"GGUF {', '.join(gguf.quantized_types(gguf.open_gguf(self.source.gguf)))}"
        return self.quantization.summary if self.quantization else None

    def precision(self, requested: RequestedPrecision) -> Precision:
        """Return the precision that ``requested`` means for this model. Raises ModelError on an unknown one."""
        if requested != "auto":
            if requested not in PRECISIONS:
                raise ModelError(f"precision {requested!r} is not known; known: auto, {', '.join(PRECISIONS)}")
            return requested
        if self.formats:
            return self._most_used_precision()
        return "float32" if self.stored_dtype == "float32" else "bfloat16"

    def _most_used_precision(self) -> Precision:
        sizes: Counter[Precision] = Counter()
        for parameter in parameters(self.spec):
            if parameter.name in self.formats:
                sizes[self.formats[parameter.name].nearest] += math.prod(parameter.shape)
        return sizes.most_common(1)[0][0]


class EncoderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and special tokens that only encoder-decoder models have.

    Attributes:
        context_tokens: maximum number of tokens of an encoder's input.
        start_token_id: first input of every decoder sequence; not part of the output.
        first_token_id: forced first token of every output; None: the model has none.
        last_token_id: forced last token of an output of the maximum length; None: the model has none.
    """

    context_tokens: int
    start_token_id: int
    first_token_id: int | None = None
    last_token_id: int | None = None


class PackedFile(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a file of packed weights whose checksums were verified. Writing to the file changes one of these
    fields: the system sets the time of the last change."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Data of a loaded model for code outside this package.

    Attributes:
        context_tokens: maximum number of tokens of prompt and output together.
        hidden_size: size of a token's embedding.
        weight_bytes: the packed weights' size.
        quantization: scheme of the files' quantized weights, if any; ``precision`` is that of most weights as served.
        fingerprint: equal for two models exactly when everything that decides their outputs is equal: weights,
            precision, architecture, kernels and their instruction set.
        tokenizer_folder: folder of the tokenizer's files.
        encoder: None where the model has none; else ``context_tokens`` is for the decoder's tokens alone.
        weights: digest of the packed weights alone. kernels: the instruction set that computes.
        packed_file: file that the weights are mapped from; None where they are not mapped.
        pooling: how it makes vectors of texts; None: it makes none. generates: it generates text.
        vision: what it sees images with; None: it sees none.
    """

    name: str
    architecture: str
    precision: str
    kv_precision: str
    context_tokens: int
    vocab_size: int
    hidden_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    parameter_count: int
    weight_bytes: int
    fingerprint: str
    tokenizer_folder: str
    quantization: str | None = None
    encoder: EncoderInfo | None = None
    weights: str = ""
    kernels: str = ""
    packed_file: PackedFile | None = None
    pooling: PoolingInfo | None = None
    generates: bool = True
    vision: VisionDescription | None = None


def describe(
    source: str | Path | None = None,
    *,
    revision: str | None = None,
    token: str | None = None,
    rope: Mapping[str, object] | None = None,
    mmproj: str = AUTO,
    watcher: DownloadWatcher | None = None,
) -> ModelDescription:
    """Describe a model from its config: no weights are read, and none are downloaded but those in GGUF, which have the
    config.

    ``rope``: a rotary scaling in place of the config's. ``mmproj``: the projector file of a GGUF model, ``auto`` for
    the one beside it, or ``none``. ``watcher`` is told of a download.
    Raises ModelError when there is no such model, or its architecture or a feature of it is not supported.
    """
    return describe_source(
        find_source(source, revision=revision, token=token, mmproj=mmproj, watcher=watcher), rope=rope
    )


def describe_source(source: Source, *, rope: Mapping[str, object] | None = None) -> ModelDescription:
    """Describe a model whose files are already found: a GGUF model without the projector beside it, where they do not
    go together."""
    if not source.gguf:
        return _describe(source, rope)
    if source.projector is None or source.projector_asked:
        return _describe_gguf(source, rope)
    try:
        return _describe_gguf(source, rope)
    except ModelError as error:
        described = _describe_gguf(without_projector(source), rope)
        warn_of_projector(error)
        return described


def _describe_gguf(source: Source, rope: Mapping[str, object] | None) -> ModelDescription:
    try:
        described = _describe(source, rope)
    except ModelError as error:  # the config was made of the file's metadata
        raise error if str(source.gguf[0]) in str(error) else ModelError(f"{source.gguf[0]}: {error}") from None
    checkpoint = Checkpoint(open_files(source), FAMILIES[described.spec.architecture], described.spec)
    return replace(described, spec=checkpoint.spec, formats=checkpoint.formats)


def _describe(source: Source, rope: Mapping[str, object] | None) -> ModelDescription:
    folder = source.folder
    config = read_json(folder / "config.json")
    if rope is not None:
        config = with_scaling(config, rope)
    spec = with_vision(read_spec(config), config, folder)
    widest = max((spec.of_layer(layer).head_dim for layer in spec.kept_layers), default=0)
    if widest > LARGEST_HEAD:
        raise ModelError(f"{folder}: heads of {widest} numbers are not supported: they have up to {LARGEST_HEAD:,}")
    if rope is not None and not any(spec.ropes):
        raise ModelError(f"{folder}: the model has no rotary positions that could be scaled")
    generation = read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    places = (generation, config, decoder_config(config))
    eos, bos = (next(filter(None, (token_ids(place, key) for place in places)), ()) for key in _TEXT_ENDS)
    for key, ids in zip(_TEXT_ENDS, (eos, bos), strict=True):
        if beyond := [i for i in ids if i >= spec.vocab_size]:
            file = "generation_config.json" if token_ids(generation, key) else "config.json"
            raise ModelError(
                f"{folder / file}: {key} {beyond[0]} is beyond the vocabulary of {spec.vocab_size} in config.json"
            )
    stored = _stored_dtype(source, config.get("dtype") or config.get("torch_dtype"))
    scheme = find_scheme(folder, config)
    return ModelDescription(
        source=source,
        spec=spec,
        stored_dtype=stored,
        formats={} if scheme is None else _expected_formats(scheme, spec, stored),
        quantization=scheme,
        eos_token_ids=eos,
        bos_token_id=bos[0] if bos else None,
        encoder=None if spec.encoder is None else _encoder(spec, spec.encoder, folder, generation or config, config),
        pooling=None if spec.encoder is not None else _pooling(source, spec, config),
    )


def with_vision(spec: DecoderSpec, config: dict[str, Any], folder: Path) -> DecoderSpec:
    """Return the spec with what a model's files say of images. Raises ModelError for a tower that cannot be
    computed."""
    files = {name: read_json(folder / name) for name in PREPROCESSOR_FILES if (folder / name).is_file()}
    if (token := UNNAMED_IMAGE_TOKENS.get(str(config.get("model_type")))) and config.get("image_token_id") is None:
        config = config | {"image_token_id": _token_id(folder, token)}
    vision = VisionDescription.from_config(config, preprocessor_of(files))
    if vision is None:
        return spec
    if vision.projection.out != spec.embedding_width and not vision.cross_attention_layers:
        raise ModelError(
            f"{folder}: images have embeddings of {vision.projection.out} numbers, text of {spec.embedding_width}"
        )
    if vision.stacked >= spec.layers:
        raise ModelError(f"{folder}: images have {vision.stacked} stacked parts, the decoder {spec.layers} layers")
    spec = seeing(spec, vision)
    if (last := max(vision.tags.image_id, vision.padding_id)) >= spec.vocab_size:
        raise ModelError(f"{folder}: image token {last} is beyond the vocabulary of {spec.vocab_size}")
    return spec


def _token_id(folder: Path, token: str) -> int | None:
    """Return the id of an added token by the tokenizer's files; None where they do not say."""
    files = {name: folder / name for name in ("added_tokens.json", "tokenizer_config.json", "tokenizer.json")}
    known = {name: read_json(path) for name, path in files.items() if path.is_file()}
    added = known.get("tokenizer.json", {}).get("added_tokens")
    declared = known.get("tokenizer_config.json", {}).get("added_tokens_decoder")
    pairs: list[tuple[object, object]] = [*known.get("added_tokens.json", {}).items()]
    pairs += [(each.get("content"), each.get("id")) for each in _objects(added)]
    if isinstance(declared, dict):
        entries = ((each, key) for key, each in declared.items() if isinstance(each, dict) and str(key).isdecimal())
        pairs += [(each.get("content"), int(key)) for each, key in entries]
    return next((found for name, found in pairs if name == token and isinstance(found, int)), None)


def _objects(values: object) -> list[dict[str, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _pooling(source: Source, spec: DecoderSpec, config: Mapping[str, object]) -> PoolingPlan | None:
    others, named = FAMILIES[spec.architecture].others, config.get("architectures")
    names = map(str, named if isinstance(named, list) else ())
    head = next((others[name] for name in names if name in others), None)
    return plan_pooling(source.folder, source.name, config, width=spec.width, causal=spec.causal, head=head)


def _encoder(
    spec: DecoderSpec,
    encoder: EncoderSpec,
    folder: Path,
    generation: Mapping[str, object],
    config: Mapping[str, object],
) -> EncoderInfo:
    """Return the special tokens of an encoder-decoder model, as transformers finds them: forced tokens are those of
    ``generation`` alone, or, where that is the config, also those of the family."""
    defaults = FAMILIES[spec.architecture].token_ids

    def only(key: str, *places: Mapping[str, object]) -> int | None:
        ids = next((found for place in places if (found := token_ids(dict(place), key))), ())
        if len(ids) > 1:
            raise ModelError(f"{folder}: {key} must be one token id, got {list(ids)}")
        if ids and ids[0] >= spec.vocab_size:
            raise ModelError(f"{folder}: {key} {ids[0]} is beyond the vocabulary of {spec.vocab_size}")
        return ids[0] if ids else None

    start = only("decoder_start_token_id", generation, config, defaults)
    if start is None:
        start = only("bos_token_id", generation, config)
    if start is None:
        raise ModelError(f"{folder}: decoder_start_token_id is missing")
    forced = (generation,) if generation is not config else (config, defaults)
    return EncoderInfo(
        context_tokens=encoder.context,
        start_token_id=start,
        first_token_id=only("forced_bos_token_id", *forced),
        last_token_id=only("forced_eos_token_id", *forced),
    )


def _expected_formats(scheme: Scheme, spec: DecoderSpec, stored_dtype: str) -> dict[str, Format]:
    """Return the formats that the matrices of a quantized model have according to its config."""
    family = FAMILIES[spec.architecture]
    decoder = {module for module in family.transposed if not module.startswith(VISION_PREFIX)}
    if decoder and not getattr(scheme, "upright", False):
        raise ModelError(f"quantized weights of {spec.architecture}, which stores matrices turned, are not supported")
    plain = Format("float32" if stored_dtype == "float32" else "bfloat16")
    found = {}
    for parameter in parameters(spec):
        if parameter.matrix:
            # The first expert of a layer stands for all.
            modules = [_PLACE.sub(str(parameter.layer), name, count=1) for name in family.names[parameter.module]]
            forms = [scheme.form(_PLACE.sub("0", name)) or plain for name in modules]
            found[parameter.name] = plain if parameter.module == "embedding" else widest(forms)
            if is_vision(parameter) and found[parameter.name] == plain:
                found[parameter.name] = Format("int8", wide=True)
    return found


_PLACE = re.compile(r"\{\w+\}")


def _stored_dtype(source: Source, declared: object) -> str:
    """Return the dtype from the weights' headers where the files are present: configs are often wrong or silent about
    it."""
    if source.gguf:
        return gguf.most_used_dtype(gguf.open_gguf(source.gguf))
    if source.repository is None or source.weight_files:
        files = source.weight_files or find_weights(source).weight_files
        return stored_dtype(read_header(source.folder / name) for name in files)
    return declared if isinstance(declared, str) and declared in ("float32", "float16") else "bfloat16"
