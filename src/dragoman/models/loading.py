"""Loading of a model from a source; what cannot be served is refused before weights are read."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

import dragoman
from dragoman import kernels
from dragoman.core.errors import ModelError
from dragoman.core.user_folders import expand_user, is_file
from dragoman.models.calibration import calibrated_matrices, calibration_name
from dragoman.models.checkpoint import Checkpoint
from dragoman.models.decoder import build_hidden_program, build_program
from dragoman.models.description import ModelDescription, ModelInfo, PackedFile, describe_source
from dragoman.models.draft_head import DraftHead, build_program_for_head, head_checkpoint
from dragoman.models.eagle import EagleChoice, find_eagle, open_eagle
from dragoman.models.encoder import build_encoder
from dragoman.models.families import FAMILIES
from dragoman.models.head_spec import EagleSpec, HeadSpec, head_spec
from dragoman.models.hub import DownloadWatcher
from dragoman.models.image_layers import ImageWriter
from dragoman.models.kv_groups import OWN_PRECISION, KVGroup
from dragoman.models.layout import SMALLEST_CACHED_BYTES as _SMALLEST_CACHED_BYTES
from dragoman.models.layout import Layout, plan_layout
from dragoman.models.memory import (
    MemoryPlan,
    available_memory,
    chosen_formats,
    plan,
    reserve_bytes,
    with_whole_images,
)
from dragoman.models.model import Model
from dragoman.models.packed_cache import Packed, PackedCache, cache_key
from dragoman.models.packing import Weights, entry_checksums, pack_checkpoint
from dragoman.models.parameters import parameter_count
from dragoman.models.pooling import ModelPooling
from dragoman.models.progress import READING, Progress, ignore_progress, part
from dragoman.models.recording import StepLimits
from dragoman.models.settings import ModelSettings, default_cache_folder
from dragoman.models.source import find_source, find_weights, open_files
from dragoman.models.spec import DecoderSpec
from dragoman.models.step_buffers import longest_step
from dragoman.models.vision.tower_programs import kept_precision
from dragoman.models.vision.towers import build_tower

_LOG = logging.getLogger("dragoman.models")

# Progress values at which the stages of loading end.
_DOWNLOAD_SHARE = 0.5
_PACKED_SHARE = 0.95
_CALIBRATED_SHARE = 0.8
_PACKING_SHARE = 0.85  # of packing and keeping what is packed


class PackedModel(msgspec.Struct, frozen=True):
    """Result of packing a model.

    Attributes:
        path: of the packed file; None: the model is too small to be kept.
        was_there: the file existed and was only verified.
    """

    described: ModelDescription
    planned: MemoryPlan
    path: Path | None
    was_there: bool


def load(
    source: str | Path | None = None,
    settings: ModelSettings | None = None,
    progress: Progress = ignore_progress,
    checked: PackedFile | None = None,
    head_context: int | None = None,
    eagle: EagleChoice | None = None,
    is_restart: bool = False,
    available_bytes: int | None = None,
) -> Model:
    """Load a model: a folder, a hub id, or None for the embedded one. ``progress`` is called with each stage.

    ``checked``: a file of packed weights that is not verified again while it is unchanged. ``head_context``: tokens of
    the longest sequences that the checkpoint's head drafts for; None: it is not loaded. ``eagle``: in place of that
    head an EAGLE-3 one. ``is_restart``: as of ``plan``. ``available_bytes``: the most that it may take of what there
    is.
    Raises ModelError when it is missing, of an unknown architecture, unsafe, corrupt or too large for this machine.
    Checks on the config run before weights are downloaded, and all checks before memory is allocated.
    """
    settings = settings or ModelSettings()
    opened = _open(source, settings, progress, is_restart=is_restart, available_bytes=available_bytes)
    described, planned, layout = opened.described, opened.planned, opened.layout
    planned.require_fit()
    settings = with_whole_images(described.spec, settings)
    cache, key = _cache_of(opened, settings, checked)
    packed, checksums = _packed(opened, settings, cache, key, part(progress, _DOWNLOAD_SHARE, _PACKED_SHARE))
    progress(READING, _PACKED_SHARE)
    weights = Weights(layout, packed)
    read = None
    if head_context is not None:
        read = _head_weights(opened, settings, weights) if eagle is None else _eagle(opened, settings, weights, eagle)
    spec = described.spec.served_within(planned.context_tokens)
    try:
        kv = _kv_pool(spec, planned)
        states = kernels.StatePool(slots=planned.state_slots, floats=spec.state_parts) if spec.state_parts else None
        decoder = _decoder(spec, weights, kv, states, planned, settings, read, head_context)
        encoder = None
        if spec.encoder is not None:
            encoder = build_encoder(
                spec,
                weights,
                kv,
                context=planned.encoder_tokens,
                max_tokens=max(settings.max_tokens, planned.encoder_tokens),
                max_sequences=settings.max_sequences,
            )
        tower = None if spec.vision is None else build_tower(weights, spec.vision, planned.precision)
        has_cross_attention = spec.vision is not None and spec.vision.cross_attention_layers
        image_writer = ImageWriter(spec, weights, kv) if has_cross_attention else None
    except ValueError as error:  # valid sizes beyond the kernels' limits
        raise ModelError(f"{described.source.name} cannot be run: {error}") from error
    digests = fingerprint(spec, planned, layout, checksums, settings.calibrate), weights_digest(layout, checksums)
    pooling = None
    if described.pooling is not None:
        pooling = ModelPooling(described.pooling, spec.width, opened.checkpoint.files)
    card = _card(described, planned, settings, *digests)
    if key:
        card = replace(card, packed_file=cache.checked)
    return Model(
        config=spec,
        program=decoder.program,
        weights=weights,
        kv=kv,
        states=states,
        card=card,
        plan=planned,
        settings=settings,
        encoder=encoder,
        pooling=pooling,
        tower=tower,
        image_writer=image_writer,
        head=decoder.head,
        hidden=decoder.hidden,
    )


def _kv_pool(spec: DecoderSpec, planned: MemoryPlan) -> kernels.KVPool:
    """Memory for the keys and values that were planned. Raises ValueError where the kernels have no such sizes."""
    return kernels.KVPool(
        layers=len(spec.kept_layers),
        blocks=[group.blocks for group in planned.groups if not group.own],
        groups=_group_of_layers(planned.groups),
        kv_heads=[spec.of_layer(layer).kv_heads for layer in spec.kept_layers],
        head_dim=[spec.of_layer(layer).head_dim for layer in spec.kept_layers],
        precision=planned.kv_precision,
        latent=spec.latent.rank if spec.latent else 0,
        own_blocks=sum(group.blocks for group in planned.groups if group.own),
    )


class _Decoder(NamedTuple):
    """The decoder's program; with a head, the head, and the buffer of the hidden states that it reads."""

    program: kernels.Program
    head: DraftHead | None = None
    hidden: int | None = None


def _decoder(
    spec: DecoderSpec,
    weights: Weights,
    kv: kernels.KVPool,
    states: kernels.StatePool | None,
    planned: MemoryPlan,
    settings: ModelSettings,
    read: _Head | None,
    head_context: int | None,
) -> _Decoder:
    """Record the decoder: with the head that was ``read``, whose sequences are as long as ``head_context``; for logits;
    or for the hidden states alone, of a model that is not causal. Raises ValueError where the kernels have no such
    sizes."""
    limits = StepLimits(planned.context_tokens, settings.max_tokens, settings.max_sequences, settings.max_logit_rows)
    if read is None or head_context is None:
        if spec.causal:
            return _Decoder(build_program(spec, weights, kv, limits, states))
        limits = replace(limits, max_tokens=longest_step(planned.context_tokens, settings))
        return _Decoder(build_hidden_program(spec, weights, kv, limits))
    eagle = (read.spec, read.weights) if isinstance(read.spec, EagleSpec) else None
    program, hidden = build_program_for_head(spec, weights, kv, limits, states, eagle=eagle)
    own = read.spec
    if isinstance(own, HeadSpec):
        own = head_spec(spec, feeds_normed=own.feeds_normed)
    context = min(head_context, planned.context_tokens, own.context)
    return _Decoder(program, DraftHead(own, read.weights, settings, context, read.target_ids), hidden)


class _Head(msgspec.Struct, frozen=True):
    """A head that was read: its packed weights with the tables of the decoder, and the model's token for each of its
    own (None: they are the same)."""

    spec: HeadSpec | EagleSpec
    weights: Weights
    target_ids: NDArray[np.int32] | None = None


def _head_weights(opened: _Opened, settings: ModelSettings, weights: Weights) -> _Head:
    """Return the head of a checkpoint."""
    described, planned = opened.described, opened.planned
    settings = replace(settings, calibrate=0)  # a head guesses; its own weights are not rounded for texts
    checkpoint = head_checkpoint(opened.checkpoint.files, described.spec, described.source.name)
    assert isinstance(checkpoint.spec, HeadSpec)
    formats = chosen_formats(replace(described, formats=checkpoint.formats), settings.precision)
    layout = plan_layout(checkpoint.spec, planned.precision, formats)
    own = _Opened(described, planned, checkpoint, layout)
    packed, _ = _packed(own, settings, *_cache_of(own, settings), ignore_progress)
    return _Head(checkpoint.spec, Weights(layout, packed).for_head(weights, tied=described.spec.tied))


def _eagle(opened: _Opened, settings: ModelSettings, weights: Weights, choice: EagleChoice) -> _Head:
    """Return an EAGLE-3 head for a model."""
    described, planned = opened.described, opened.planned
    source = find_eagle(choice, settings.token)
    checkpoint, ids = open_eagle(source, described.spec, described.source.name, token=settings.token)
    assert isinstance(checkpoint.spec, EagleSpec)
    precision = planned.precision if choice.precision == "auto" else choice.precision
    layout = plan_layout(checkpoint.spec, precision)
    own = _Opened(described, planned, checkpoint, layout)
    packed, _ = _packed(own, settings, *_cache_of(own, settings), ignore_progress)
    return _Head(checkpoint.spec, Weights(layout, packed).with_embedding(weights), ids)


def pack(
    source: str | Path | None = None,
    settings: ModelSettings | None = None,
    progress: Progress = ignore_progress,
    watcher: DownloadWatcher | None = None,
) -> PackedModel:
    """Pack a model's weights into the cache, where the next ``load`` of the same precision finds them.

    ``watcher`` is told of a download, instead of the ``progress``. Raises ModelError as ``load`` does, and where the
    cache is off or cannot keep them.
    """
    settings = settings or ModelSettings()
    if not settings.cache_bytes:
        raise ModelError("--cache-bytes 0 turns the cache off: there is nothing to pack for")
    if not settings.kept_bytes:
        raise ModelError(f"{default_cache_folder()} is in memory: name a folder on a disk with --cache-folder")
    opened = _open(source, settings, progress, watcher)
    cache, key = _cache_of(opened, settings)
    was_there = bool(key) and is_file(cache.path(key))
    if key and not was_there and (reason := cache.obstacle(opened.layout.nbytes)):
        raise ModelError(reason)  # before the work: large models take minutes
    _packed(opened, settings, cache, key, part(progress, _DOWNLOAD_SHARE, 1.0))
    if cache.failure:
        raise ModelError(cache.failure)
    return PackedModel(opened.described, opened.planned, cache.path(key) if key else None, was_there)


class _Opened(msgspec.Struct, frozen=True):
    """A model whose files are present and checked."""

    described: ModelDescription
    planned: MemoryPlan
    checkpoint: Checkpoint
    layout: Layout


def _open(
    source: str | Path | None,
    settings: ModelSettings,
    progress: Progress,
    watcher: DownloadWatcher | None = None,
    *,
    is_restart: bool = False,
    available_bytes: int | None = None,
) -> _Opened:
    def planned_now(described: ModelDescription) -> MemoryPlan:
        left = available_memory()
        # What the server has planned for itself need not be exact: what stays free is for that.
        available = left if available_bytes is None else min(left + reserve_bytes(available_bytes), available_bytes)
        return plan(described, settings, available_bytes=available, is_restart=is_restart)

    fetching = part(progress, 0.0, _DOWNLOAD_SHARE)
    found = find_source(
        source,
        revision=settings.revision,
        token=settings.token,
        mmproj=settings.mmproj,
        progress=fetching,
        watcher=watcher,
    )
    described = describe_source(found, rope=settings.rope)
    planned_now(described).require_fit()
    described = describe_source(
        find_weights(described.source, token=settings.token, progress=fetching, watcher=watcher), rope=settings.rope
    )
    progress(READING, _DOWNLOAD_SHARE)
    if described.quantization is not None:
        for note in described.quantization.notes:
            _LOG.info("%s: %s", described.quantization.summary, note)
    checkpoint = Checkpoint(open_files(described.source), FAMILIES[described.spec.architecture], described.spec)
    if checkpoint.text_only:
        _LOG.info("%s", checkpoint.text_only)
    described = replace(described, spec=checkpoint.spec, formats=checkpoint.formats)
    planned = planned_now(described)
    return _Opened(described, planned, checkpoint, plan_layout(described.spec, planned.precision, planned.formats))


def _group_of_layers(groups: Sequence[KVGroup]) -> list[int]:
    """Return the group of each layer that has memory for keys and values."""
    group_of = {place: index for index, group in enumerate(groups) if not group.own for place in group.layers}
    return [group_of[place] for place in range(len(group_of))]


def fingerprint(
    spec: DecoderSpec, planned: MemoryPlan, layout: Layout, checksums: Sequence[int], calibrate: int = 0
) -> str:
    """Return a digest of everything that decides a model's outputs: packed weights, architecture, precisions,
    kernels."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(f"{dragoman.__version__} {kernels.instruction_set()} {spec!r} {planned.kv_precision}".encode())
    if any(group.own for group in planned.groups):
        digest.update(f"own blocks in {OWN_PRECISION}".encode())
    digest.update(f"{layout!r} {list(checksums)}".encode())
    digest.update(calibration_name(calibrate).encode())
    context = planned.context_tokens
    if any(rope is not None and rope.served_within(context) != rope for rope in spec.ropes):
        digest.update(b"rotations of a long context")
    if spec.vision is not None:
        digest.update(f"keys and values of the tower in {kept_precision(planned.precision)}".encode())
    return f"fp_{digest.hexdigest()}"


def weights_digest(layout: Layout, checksums: Sequence[int]) -> str:
    """Return a digest of the packed weights alone, whatever computes with them."""
    return hashlib.blake2b(f"{layout!r} {list(checksums)}".encode(), digest_size=8).hexdigest()


def _packed(opened: _Opened, settings: ModelSettings, cache: PackedCache, key: str, progress: Progress) -> Packed:
    """Return packed weights from the cache, or pack them and store them for the next start."""
    if key and (found := cache.read(key, opened.layout, settings.weights_memory)) is not None:
        return found
    share, begun, ready = _PACKING_SHARE if key else 1.0, 0.0, None
    if settings.calibrate:
        begun = _CALIBRATED_SHARE
        ready = calibrated_matrices(
            opened.described, opened.checkpoint, opened.layout, settings, part(progress, 0.0, begun)
        )
    packed = pack_checkpoint(opened.checkpoint, opened.layout, part(progress, begun, share), ready)
    checksums = entry_checksums(packed)
    if key:
        cache.write(key, opened.layout, packed, checksums, part(progress, share, 1.0))
        return cache.with_rows_in_file(key, opened.layout, (packed, checksums), settings.weights_memory)
    return packed, checksums


def _cache_of(opened: _Opened, settings: ModelSettings, checked: PackedFile | None = None) -> tuple[PackedCache, str]:
    """Return the cache and the model's key in it; an empty key for a model that is not cached."""
    folder = expand_user(settings.cache_folder) if settings.cache_folder else default_cache_folder()
    large = opened.layout.nbytes >= _SMALLEST_CACHED_BYTES or settings.calibrate > 0
    kept = settings.kept_bytes > 0 and large
    if settings.cache_bytes and large and not kept:
        _LOG.info("packed weights are not kept: %s is in memory; --cache-folder names a folder on a disk", folder)
    return PackedCache(folder, settings.cache_bytes, checked), cache_key(
        opened.checkpoint, opened.layout, calibration_name(settings.calibrate)
    ) if kept else ""


def _card(
    described: ModelDescription, planned: MemoryPlan, settings: ModelSettings, fingerprint: str, weights: str
) -> ModelInfo:
    return ModelInfo(
        name=settings.name or described.source.name,
        architecture=described.spec.architecture,
        precision=planned.precision,
        kv_precision=planned.kv_precision,
        context_tokens=planned.context_tokens,
        vocab_size=described.spec.vocab_size,
        hidden_size=described.spec.embedding_width,
        eos_token_ids=described.eos_token_ids,
        bos_token_id=described.bos_token_id,
        parameter_count=parameter_count(described.spec),
        weight_bytes=planned.weight_bytes,
        fingerprint=fingerprint,
        weights=weights,
        kernels=kernels.instruction_set(),
        tokenizer_folder=str(described.tokenizer_folder),
        quantization=described.quantized_as,
        encoder=described.encoder and replace(described.encoder, context_tokens=planned.encoder_tokens),
        pooling=None if described.pooling is None else described.pooling.info,
        generates=described.spec.causal,
        vision=described.spec.vision,
    )
