"""The limits of the machine for a model: the time to read its weights, or to multiply by them, whichever is longer.

Steps that decode read every weight once, whatever the number of their rows, and for each sequence its state of
recurrent layers and the keys and values that its token sees. A prompt's tokens are multiplied by all weights but the
output projection and the last layers that keep no keys and values, and their attention by the multiply rate of
bfloat16, in which keys and values are kept. Of experts, only those that the rows of a step choose are read and
multiplied by, for even choices. An image takes its tower's multiplications. Other work of a server (norms, choosing
tokens, states, HTTP) is not counted.
"""

from __future__ import annotations

import math
from collections import Counter

import msgspec

from dragoman.models.description import ModelDescription
from dragoman.models.kv_groups import layer_kv_bytes
from dragoman.models.layout import plan_layout
from dragoman.models.memory import plan
from dragoman.models.parameter import Parameter
from dragoman.models.parameters import LAYER_TABLE, is_of_images, parameters, uses
from dragoman.models.settings import KVPrecision, ModelSettings, Precision
from dragoman.models.spec import DecoderSpec
from dragoman.models.vision.cost import products_of_image
from dragoman.models.vision.description import VisionDescription
from dragoman.models.vision.geometry import image_token_count

MULTIPLIED_AS: dict[Precision, Precision] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "int4": "int8",  # opened to eight bits on the way
}


class Machine(msgspec.Struct, frozen=True):
    """All threads together: bytes read from memory, and multiplications and additions by precision, per second.

    ``bytes_per_s`` is what reading had on average, ``best_bytes_per_s`` in its best 5 ms.
    """

    bytes_per_s: float
    operations_per_s: dict[str, float]
    best_bytes_per_s: float


class AttentionShape(msgspec.Struct, frozen=True, kw_only=True):
    """Layers whose attention sees the same positions.

    Attributes:
        window: maximum positions a token sees, its own included; 0: all.
        pair_operations: attention of one position to one that it sees.
        kv_bytes: keys and values of one token.
    """

    window: int = 0
    pair_operations: int
    kv_bytes: int

    def seen(self, tokens: int) -> int:
        """Return the positions that the last of so many tokens sees."""
        return min(tokens, self.window) if self.window else tokens

    def pairs(self, tokens: int, cached: int) -> float:
        """Return the pairs of positions of ``tokens`` tokens after ``cached`` ones that are there."""
        if not self.window:
            return tokens * (cached + tokens / 2)
        partial = max(0, min(tokens, self.window - cached))  # tokens that see all before them
        return partial * (cached + partial / 2) + (tokens - partial) * self.window


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model at a precision, in what it costs.

    Attributes:
        step_bytes: weights read by a step that decodes one token.
        expert_bytes: weights of all experts. expert_share: how much of these is at work for a token.
        resident_bytes: weights in memory.
        prompt_operations: for a token of a prompt, whose logits nobody needs.
        decode_operations: for a token that the next is drawn from.
        attention: layers with attention, by their windows.
        state_bytes: state of the recurrent layers of one sequence.
        vision: what it sees images with; None: it sees none.
    """

    precision: Precision
    step_bytes: int
    expert_bytes: int = 0
    expert_share: float = 0.0
    resident_bytes: int
    prompt_operations: int
    decode_operations: int
    attention: tuple[AttentionShape, ...]
    state_bytes: int = 0
    vision: VisionDescription | None = None

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return sum(each.kv_bytes for each in self.attention)

    def kept_bytes(self, tokens: int) -> int:
        """Return the bytes of what a sequence of so many tokens keeps: of layers with a window, those in it."""
        return self.state_bytes + sum(each.seen(tokens) * each.kv_bytes for each in self.attention)


def shape_of(described: ModelDescription, precision: Precision) -> Shape:
    """Return what follows from a model's description, without loading it."""
    spec, planned = described.spec, plan(described, ModelSettings(precision=precision))
    share = spec.experts.active / spec.experts.count if spec.experts else 0.0
    inside = 2 * int(
        sum(
            math.prod(p.shape) * _multiplied(p, spec)
            for p in parameters(spec)
            if p.matrix and p.module not in ("embedding", "head", LAYER_TABLE) and not is_of_images(p, spec)
        )
    )
    after = 2 * int(
        sum(
            math.prod(p.shape) * _multiplied(p, spec)
            for p in parameters(spec)
            if p.layer is not None and p.layer >= spec.written_layers and spec.encoder is None
            if p.matrix and not is_of_images(p, spec)
        )
    )
    entries = plan_layout(spec, planned.precision, planned.formats).entries
    return Shape(
        precision=precision,
        step_bytes=planned.bytes_per_decoded_token,
        expert_bytes=sum(entry.nbytes for entry in entries if entry.parameter.expert is not None),
        expert_share=share,
        resident_bytes=planned.resident_bytes,
        prompt_operations=inside - after,
        decode_operations=inside + 2 * spec.vocab_size * spec.width,
        attention=_attention(spec, planned.kv_precision),
        state_bytes=planned.bytes_per_state,
        vision=spec.vision,
    )


def _multiplied(parameter: Parameter, spec: DecoderSpec) -> float:
    """Return how often a token is multiplied by a matrix: by an expert's as often as it is chosen."""
    if parameter.expert is not None and spec.experts is not None:
        return spec.experts.active / spec.experts.count
    return uses(parameter, spec)


def _attention(spec: DecoderSpec, kv_precision: KVPrecision) -> tuple[AttentionShape, ...]:
    """Return the layers by their windows; two operations for each element of query times key and of weight times
    value. Layers that use the keys and values of others have none."""
    operations, kv_bytes = Counter[int](), Counter[int]()
    for layer in spec.attention_layers:
        own = spec.of_layer(layer)
        operations[spec.windows[layer]] += 2 * own.heads * (own.head_dim + own.value_dim)
    for layer in spec.kv_layers:
        kv_bytes[spec.windows[layer]] += layer_kv_bytes(spec, layer, kv_precision)
    return tuple(
        AttentionShape(window=window, pair_operations=operations[window], kv_bytes=kv_bytes[window])
        for window in sorted(operations)
    )


class Limits:
    """The least seconds, and the most tokens per second, of a shape on a machine."""

    def __init__(self, shape: Shape, machine: Machine) -> None:
        self._shape, self._machine = shape, machine
        self._peak = machine.operations_per_s[MULTIPLIED_AS[shape.precision]]
        self._attention_peak = machine.operations_per_s["bfloat16"]

    def read_s(self, rows: int) -> float:
        """Return the time to read all weights that so many rows need, once."""
        shape = self._shape
        chosen = 1 - (1 - shape.expert_share) ** rows
        more = (chosen - shape.expert_share) * shape.expert_bytes  # than those of one row
        return (shape.step_bytes + more) / self._machine.bytes_per_s

    def step_s(self, rows: int, context: int = 0) -> float:
        """Return the time of one step that decodes a token of each of ``rows`` sequences of ``context`` tokens."""
        kept = rows * self._shape.kept_bytes(context) / self._machine.bytes_per_s
        return max(self.read_s(rows) + kept, rows * self._shape.decode_operations / self._peak)

    def prompts_s(self, count: int, tokens: int, cached: int = 0) -> float:
        """Return the time of ``count`` prompts of ``tokens`` tokens after ``cached`` ones that are there."""
        products = count * tokens * self._shape.prompt_operations / self._peak
        pairs = sum(each.pairs(tokens, cached) * each.pair_operations for each in self._shape.attention)
        return max(self.read_s(count * tokens), products + count * pairs / self._attention_peak)

    def first_token_s(self, tokens: int) -> float:
        """Return the time of a prompt that shares nothing with another."""
        return self.prompts_s(1, tokens)

    def image_s(self, width: int, height: int) -> float:
        """Return the time of the tower's multiplications for an image of so many pixels: by weights at the rate of the
        model's precision, of attention at that of bfloat16. Raises ValueError for a model that sees none."""
        if self._shape.vision is None:
            raise ValueError("the model sees no images")
        found = products_of_image(self._shape.vision, width, height)
        return 2 * found.weights / self._peak + 2 * found.attention / self._attention_peak

    def first_token_of_image_s(self, width: int, height: int, text_tokens: int) -> float:
        """Return the time of an image and of the prompt that it is in, with so many tokens of text beside its own."""
        seconds = self.image_s(width, height)
        assert self._shape.vision is not None
        return seconds + self.first_token_s(text_tokens + image_token_count(width, height, self._shape.vision))

    def streams_s(self, streams: int, prompt: int, output: int) -> float:
        """Return the time of ``streams`` requests at once: their prompts, then steps for all tokens but the first."""
        steps = (output - 1) * self.step_s(streams, prompt + output // 2)
        return self.prompts_s(streams, prompt) + steps

    def tokens_per_s(self, streams: int, prompt: int, output: int) -> float:
        """Return the output tokens in a second of ``streams`` requests at once, their prompts' time included."""
        return streams * output / self.streams_s(streams, prompt, output)

    def decode_tokens_per_s(self, context: int = 0) -> float:
        """Return the tokens in a second of one stream of ``context`` tokens after its first token."""
        return 1 / self.step_s(1, context)

    def shared_prefix_s(self, requests: int, streams: int, shared: int, own: int, output: int) -> float:
        """Return the time of ``requests``, so many at a time, whose first ``shared`` tokens are computed once."""
        prompts = self.prompts_s(1, shared) + self.prompts_s(requests, own, shared)
        context = shared + own + output // 2
        return prompts + requests / streams * (output - 1) * self.step_s(streams, context)

    def memory_bytes(self, sequences: int, tokens: int) -> int:
        """Return the bytes of weights, and of keys, values and states of ``sequences`` of ``tokens`` tokens each."""
        return self._shape.resident_bytes + sequences * self._shape.kept_bytes(tokens)
