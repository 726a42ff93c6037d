"""Specifications of the layers that take attention's place and keep a state of fixed size for each sequence."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from dragoman.models.alibi import alibi_slopes

MOST_TAPS = 16
"""Most inputs of a convolution: the kernel's limit."""


class ShortConvolution(msgspec.Struct, frozen=True, kw_only=True):
    """A gated short convolution (LFM2): (b, c, x)·W = input; out = (c · conv(b · x))·W.

    Attributes:
        taps: inputs of the convolution, the row's own and those before it. bias: of projections and convolution.
    """

    kind: ClassVar[str] = "short convolution"

    width: int
    taps: int
    bias: bool = False

    @property
    def inner(self) -> int:
        """Width of the output projection's input."""
        return self.width

    @property
    def buffers(self) -> int:
        """Floats of a token between the two projections."""
        return 4 * self.width

    @property
    def state(self) -> tuple[int, ...]:
        """Numbers in each part of a sequence's state."""
        return ((self.taps - 1) * self.width,)


class DeltaRule(msgspec.Struct, frozen=True, kw_only=True):
    """Gated DeltaNet (Yang et al. 2024, https://arxiv.org/abs/2412.06464), as Qwen3-Next and Qwen 3.5 have it.

    Queries, keys and values pass a short convolution with SiLU; queries and keys are normed to length 1. The output of
    each head is normed and gated by SiLU of a projection of the input.

    Attributes:
        factor_scale: of the factors of changes: 2 lets a state's part change its sign (OLMo-Hybrid).
        norm_eps: of the output's norm; None: as of the decoder's norms.
        apart: queries, keys, values and the gate are stored apart, and so are the convolutions.
    """

    kind: ClassVar[str] = "gated delta rule"

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    factor_scale: float = 1.0
    norm_eps: float | None = None
    apart: bool = False

    @property
    def keys(self) -> int:
        """Total width of the keys, or of the queries."""
        return self.key_heads * self.key_dim

    @property
    def convolved(self) -> int:
        """Width of queries, keys and values."""
        return 2 * self.keys + self.inner

    @property
    def inner(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def buffers(self) -> int:
        return self.convolved + 2 * self.inner + 4 * self.value_heads

    @property
    def state(self) -> tuple[int, ...]:
        padded = -(-self.value_dim // 16) * 16
        return ((self.taps - 1) * self.convolved, self.value_heads * self.key_dim * padded)


class StateSpace(msgspec.Struct, frozen=True, kw_only=True):
    """Mamba-2 (Dao, Gu 2024, https://arxiv.org/abs/2405.21060).

    Inputs, and the vectors B and C of each group of heads, pass a short convolution with SiLU. The output is gated by
    SiLU of a projection of the input, and normed, each group for itself.

    Attributes:
        state_dim: length of B and C. bias, out_bias, convolution_bias: of the input and output projection, of the
            convolution.
        least_step, most_step: limits of the time steps.
        norm: of the output after its gate, before it, or none. norm_groups: parts that are normed for themselves; 0:
            as many as there are groups of heads. norm_eps: of it; None: as of the decoder's norms.
        scales: factors on what the input projection gives: gate, inputs, B, C, time steps (Falcon-H1).
    """

    kind: ClassVar[str] = "Mamba-2"

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    taps: int
    bias: bool = False
    out_bias: bool = False
    convolution_bias: bool = True
    least_step: float = 0.0
    most_step: float = 3.0e38
    norm: Literal["after", "before"] | None = "after"
    norm_groups: int = 0
    norm_eps: float | None = None
    scales: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)

    @property
    def convolved(self) -> int:
        """Width of the inputs, B and C."""
        return self.inner + 2 * self.groups * self.state_dim

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def projected(self) -> int:
        """Width of the input projection: gate; inputs, B and C; time steps."""
        return self.inner + self.convolved + self.heads

    @property
    def buffers(self) -> int:
        return self.projected + self.inner + 2 * self.heads

    @property
    def state(self) -> tuple[int, ...]:
        padded = -(-self.head_dim // 16) * 16
        return ((self.taps - 1) * self.convolved, self.heads * self.state_dim * padded)


class SelectiveScan(msgspec.Struct, frozen=True, kw_only=True):
    """Mamba (Gu, Dao 2023, https://arxiv.org/abs/2312.00752): each channel has a state, and rates that differ in it.

    Inputs pass a short convolution with SiLU. One product of them gives vectors B and C, and what a second one makes
    time steps of. The output is gated by SiLU of a projection of the layer's input.

    Attributes:
        inner: number of channels. state_dim: numbers of a channel's state. rank: inputs of the time steps' product.
        norm: RMS norms of B, C and the time steps' inputs, with weights (Jamba) or without (Falcon Mamba).
        norm_eps: of these; None: as of the decoder's norms.
        bias, convolution_bias: of the projections, of the convolution.
        heads: parts of the channels, each of which has products for B, C and time steps by itself (Zamba).
    """

    kind: ClassVar[str] = "Mamba"

    inner: int
    state_dim: int
    rank: int
    taps: int
    norm: Literal["weighted", "plain"] | None = None
    norm_eps: float | None = None
    bias: bool = False
    convolution_bias: bool = True
    heads: int = 1

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.inner // self.heads

    @property
    def selection(self) -> int:
        """Width of the time steps' inputs, B and C."""
        return self.rank + 2 * self.state_dim

    @property
    def buffers(self) -> int:
        return 5 * self.inner + self.selection + self.rank

    @property
    def state(self) -> tuple[int, ...]:
        padded = -(-self.head_dim // 16) * 16
        return ((self.taps - 1) * self.inner, *(self.state_dim * padded,) * self.heads)


class GatedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """RG-LRU (De et al. 2024, Griffin, https://arxiv.org/abs/2402.19427), as RecurrentGemma has it: each channel has
    a state of one number, whose decay and input have gates.

    Inputs pass a short convolution. Its output gives the gates, each block of channels those of its own. The result is
    multiplied by GELU of a projection of the layer's input. All projections have biases.

    Attributes:
        blocks: of channels that gates depend on.
    """

    kind: ClassVar[str] = "RG-LRU"

    inner: int
    blocks: int
    taps: int

    @property
    def buffers(self) -> int:
        return 6 * self.inner

    @property
    def state(self) -> tuple[int, ...]:
        return ((self.taps - 1) * self.inner, self.inner)


class KeyedDeltaRule(msgspec.Struct, frozen=True, kw_only=True):
    """Kimi Delta Attention (Kimi Team 2025, https://arxiv.org/abs/2510.26692): a gated delta rule whose states have a
    decay for each number of a key.

    Queries, keys and values pass a short convolution with SiLU; queries and keys are normed to length 1. Decays are a
    product of low rank, and so is what the output's sigmoid is of, by which its norm is multiplied.

    Attributes:
        dim: of a head's key and of its value, and the rank of both products.
    """

    kind: ClassVar[str] = "Kimi delta attention"

    heads: int
    dim: int
    taps: int

    @property
    def inner(self) -> int:
        return self.heads * self.dim

    @property
    def buffers(self) -> int:
        return 8 * self.inner + 3 * (self.dim + self.heads)

    @property
    def state(self) -> tuple[int, ...]:
        padded = -(-self.dim // 16) * 16
        return ((self.taps - 1) * 3 * self.inner, self.inner * padded)


class LightningAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Lightning attention (MiniMax 2025, https://arxiv.org/abs/2501.08313): linear attention whose states have a fixed
    decay for each head, the slower the later the layer.

    Queries, keys and values pass the decoder's activation. The output of all heads is normed, and gated by the sigmoid
    of a projection of the input.

    Attributes:
        dim: of a head's key and of its value. norm_eps: of the output's norm.
        norm_groups: parts of the output that are normed by themselves.
        rotated: queries and keys are as attention's, normed by head, rotated and scaled, instead of any activation; and
            the decays are those of Ling's linear layers (inclusionAI 2025, https://arxiv.org/abs/2510.19338).
    """

    kind: ClassVar[str] = "lightning attention"

    heads: int
    dim: int
    norm_eps: float = 1e-6
    norm_groups: int = 1
    rotated: bool = False

    @property
    def inner(self) -> int:
        return self.heads * self.dim

    @property
    def buffers(self) -> int:
        return 5 * self.inner + 2 * self.heads

    @property
    def state(self) -> tuple[int, ...]:
        padded = -(-self.dim // 16) * 16
        return (self.inner * padded,)

    def rates(self, layer: int, layers: int) -> tuple[float, ...]:
        """Return the logarithm of each head's decay in a layer, without its sign.

        Ling's published code counts a layer less than there are before this one, so the first decays by more than the
        slopes; not all engines do.
        """
        if self.rotated:
            slower = 1 - (layer - 1) / max(layers - 1, 1) + 1e-5
            return tuple(slope * slower for slope in alibi_slopes(self.heads))
        slower = 1 - layer / (layers - 1 + 1e-5) + 1e-5
        return tuple(2.0 ** (-8 * (head + 1) / self.heads) * slower for head in range(self.heads))


Mixer = ShortConvolution | DeltaRule | StateSpace | SelectiveScan | GatedUnit | KeyedDeltaRule | LightningAttention
