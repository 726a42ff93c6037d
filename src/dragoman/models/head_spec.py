"""Description of a head: one layer after a decoder's last one, which guesses the token after the next.

Its input is a product of the next token's embedding and of the decoder's hidden state, each after a norm of its own
(DeepSeek-AI 2024, DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2). Embeddings and output table are the
decoder's.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from dragoman.models.spec import DecoderSpec, Embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec(DecoderSpec):
    """The layer as a decoder of one layer.

    Attributes:
        feeds_normed: what it takes in for its own next guess is its hidden state after its last norm (Qwen); otherwise
            before it (DeepSeek).
    """

    feeds_normed: bool


def head_spec(spec: DecoderSpec, *, feeds_normed: bool) -> HeadSpec:
    """Return the head of a decoder: as the last of its layers that has attention, with experts if any layer has."""
    layer = spec.attention_layers[-1]
    own = spec.of_layer(layer)
    values = {field.name: getattr(own, field.name) for field in fields(DecoderSpec)}
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
        },
        feeds_normed=feeds_normed,
    )
