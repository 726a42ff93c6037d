"""Description of a head: one layer that reads a decoder's hidden states, and guesses the token after the next.

That of a checkpoint comes after the decoder's last layer. Its input is a product of the next token's embedding and of
the decoder's hidden state, each after a norm of its own (DeepSeek-AI 2024, DeepSeek-V3,
https://arxiv.org/abs/2412.19437, section 2.2). Embeddings and output table are the decoder's.

An EAGLE-3 head is trained apart, and reads the decoder at three depths (Li et al. 2025, EAGLE-3,
https://arxiv.org/abs/2503.01840).
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from dragoman.models.spec import DecoderSpec, Embedding


class HeadSpec(DecoderSpec, frozen=True, kw_only=True):
    """The layer as a decoder of one layer.

    Attributes:
        feeds_normed: what it takes in for its own next guess is its hidden state after its last norm (Qwen); otherwise
            before it (DeepSeek).
    """

    feeds_normed: bool


class EagleSpec(DecoderSpec, frozen=True, kw_only=True):
    """An EAGLE-3 head as a decoder of one layer.

    Attributes:
        vocab_size: tokens that it guesses among. target_vocab: tokens of the model, all of which it reads.
        target_width: size of the model's residual stream.
        aux_layers: after how many of the model's layers its residual stream is read (auxiliary hidden states): three
            numbers in ascending order.
        own_embedding: it has a table of embeddings; otherwise the model's is used.
        states_norm: what is read has a norm before it is multiplied, one over all of it (``whole``) or one for each
            depth (``each``); None: it has none.
        stream_normed: its stream begins with the normed hidden state instead of the hidden state itself
            (``norm_before_residual`` in configs).
        feeds_normed: as of ``HeadSpec`` (``norm_output`` in configs).
    """

    target_vocab: int
    target_width: int
    aux_layers: tuple[int, ...]
    own_embedding: bool = False
    states_norm: Literal["whole", "each"] | None = None
    stream_normed: bool = False
    feeds_normed: bool = False


def head_spec(spec: DecoderSpec, *, feeds_normed: bool) -> HeadSpec:
    """Return the head of a decoder: as the last of its layers that has attention, with experts if any layer has."""
    layer = spec.attention_layers[-1]
    own = spec.of_layer(layer)
    values = {field: getattr(own, field) for field in DecoderSpec.__struct_fields__}
    experts = None if spec.experts is None else replace(spec.experts, dense_layers=())
    return HeadSpec(
        **values
        | {
            "layers": 1,
            "embedding": Embedding(scale=spec.embedding.scale, scale_rounded=spec.embedding.scale_rounded),
            "experts": experts,
            "head_norm": None if spec.head_norm is None else replace(spec.head_norm, layers=None),
            "ropes": (spec.rope(layer),) if spec.ropes else (),
            "query_scale": None,
            "windows": spec.windows[layer : layer + 1],
            "attention_scales": spec.attention_scales[layer : layer + 1],
            "mixers": (),
            "tied": False,
            "vision": None,
            "image_layers": None,
        },
        feeds_normed=feeds_normed,
    )
