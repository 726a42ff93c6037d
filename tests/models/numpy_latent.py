"""Latent attention once more, in plain NumPy on whole sequences: see ``numpy_decoder``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dragoman.models.optional_parts import Latent

if TYPE_CHECKING:
    from numpy_decoder import NumpyDecoder

Array = NDArray[Any]


def attend_to_latents(decoder: NumpyDecoder, latent: Latent, x: Array, layer: int) -> Array:
    """A layer's branch: queries through the matrix of keys, the mean of latents through that of values."""
    from numpy_decoder import rotate

    spec, at, tokens = decoder.spec, f"layers.{layer}.", len(x)
    low = x
    if latent.query_rank:
        low = norm(decoder.linear(x, at + "latent_query_in"), decoder.weights[at + "latent_query_norm.weight"], latent)
    queries = decoder.linear(low, at + "latent_query").reshape(tokens, spec.heads, -1)
    plain, rotated = queries[..., : latent.plain], queries[..., latent.plain :]
    kept = decoder.linear(x, at + "latent_in")
    latents = norm(kept[:, : latent.rank], decoder.weights[at + "latent_norm.weight"], latent) * np.float32(
        latent.scale
    )
    keys = kept[:, None, latent.rank :]
    if (rope := spec.rope(layer)) is not None:
        rotated, keys = rotate(rotated, rope), rotate(keys, rope)
    q = np.concatenate([by_head(decoder, plain, at + "latent_key"), rotated], axis=-1)
    if spec.query_scale is not None:
        q = q * spec.query_scale.table(tokens)[:, None, None]
    q, k = decoder.round_query(q), decoder.round_kv(np.concatenate([latents, keys[:, 0]], axis=-1))
    scores = np.einsum("qhd,kd->hqk", q, k) * np.float32(spec.attention_scales[layer])
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    total = weights.sum(-1).T[:, :, None]
    means = np.einsum("hqk,kd->qhd", decoder.round_query(weights), k[:, : latent.rank]) / total
    return decoder.linear(by_head(decoder, means, at + "latent_value").reshape(tokens, -1), at + "attention_out")


def by_head(decoder: NumpyDecoder, x: Array, name: str) -> Array:
    """Each head ``x[:, h]`` by its share of a matrix's rows."""
    matrix = decoder.weights[f"{name}.weight"].reshape(x.shape[1], -1, x.shape[2])
    heads = [decoder.round_input(x[:, h]) @ part.T for h, part in enumerate(matrix)]
    return np.stack(heads, axis=1)


def norm(x: Array, weight: Array, latent: Latent) -> Array:
    return np.asarray(x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(latent.norm_eps)) * weight)
