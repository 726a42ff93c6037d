"""BitNet b1.58: weights of -1, 0 and 1 with one scale for a matrix (Ma et al. 2024, https://arxiv.org/abs/2402.17764).

``weight`` holds four numbers in a byte: of ``[N / 4, K]`` bytes the lowest two bits are the first quarter of the
outputs, each number stored plus 1, with ``weight_scale``, which multiplies (``autobitlinear``) or divides
(``bitlinear``). In the mode ``online`` ``weight`` holds the trained numbers, which are rounded to these three here.
Activations have 8 bits and a scale for each token there; here they have the format of the selected precision.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.models.quantized.matrices import Grid, IntegerMatrix
from dragoman.models.quantized.module_names import in_layers, is_kept
from dragoman.models.quantized.scheme import FLOATS, Options, Pieces, find_pieces, read_finite, replace_pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor, to_float32

_FORM = Format("int4")
_DECISIVE = frozenset(
    {"quant_method", "linear_class", "quantization_mode", "modules_to_not_convert", "use_rms_norm", "rms_norm_eps"}
)
_NOTE = "the activations' own 8-bit format is not used: products take them as the precision says"


class BitNet(msgspec.Struct, frozen=True):
    """``divides``: the scale divides. ``online``: weights are stored as they were trained. ``kept``: not quantized."""

    divides: bool
    online: bool
    kept: tuple[str, ...]
    notes: tuple[str, ...] = (_NOTE,)

    @property
    def summary(self) -> str:
        """The method and its numbers."""
        return "bitnet, -1, 0 and 1"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        return _FORM if in_layers(module) and not is_kept(module, self.kept) else None

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each matrix of the layers and its scale as one."""
        modules = {
            module: pieces
            for module, pieces in find_pieces(stored, "weight", ("weight_scale",)).items()
            if self.form(module) and len(pieces.stored["weight"].shape) == 2
        }
        make = _trained if self.online else self._packed
        return replace_pieces(stored, modules, [make(pieces) for pieces in modules.values()])

    def _packed(self, pieces: Pieces) -> IntegerMatrix:
        weight, scale = pieces.piece("weight", ("U8",)), pieces.piece("weight_scale", FLOATS, (1,))
        rows, inputs = weight.shape

        def read_integers() -> NDArray[np.int8]:
            quarters = weight.read_stored()
            return np.concatenate([(quarters >> shift & 3).astype(np.int8) - np.int8(1) for shift in (0, 2, 4, 6)])

        def read_grid() -> Grid:
            value = read_finite(scale)[0]
            if self.divides and not value:
                raise scale.fail("is zero, and divides")
            return _one_scale(np.float32(1) / value if self.divides else value, 4 * rows, inputs)

        return IntegerMatrix(
            name=f"{pieces.module}.weight",
            file=weight.file,
            shape=(4 * rows, inputs),
            nbytes=weight.nbytes + scale.nbytes,
            bits=4,
            read_integers=read_integers,
            read_grid=read_grid,
        )


def _trained(pieces: Pieces) -> IntegerMatrix:
    weight = pieces.piece("weight", FLOATS)

    def size(numbers: NDArray[np.float32]) -> np.float32:
        return np.float32(max(float(np.abs(numbers).mean(dtype=np.float64)), 1e-5))

    def read_integers() -> NDArray[np.int8]:
        numbers = to_float32(weight.read())
        rounded: NDArray[np.int8] = np.clip(np.rint(numbers / size(numbers)), -1, 1).astype(np.int8)
        return rounded

    def read_grid() -> Grid:
        return _one_scale(size(read_finite(weight)), *weight.shape)

    return IntegerMatrix(
        name=f"{pieces.module}.weight",
        file=weight.file,
        shape=weight.shape,
        nbytes=weight.nbytes,
        bits=4,
        read_integers=read_integers,
        read_grid=read_grid,
    )


def _one_scale(value: np.float32, outputs: int, inputs: int) -> Grid:
    return Grid(np.full((outputs, 1), value, np.float32), None, inputs)


def read_bitnet(options: Options) -> BitNet:
    """Return the scheme of a ``quantization_config`` of the method ``bitnet``."""
    options.refuse_unknown(_DECISIVE, frozenset())
    options.refuse("use_rms_norm", False)
    kind = options.one_of("linear_class", "bitlinear", ("bitlinear", "autobitlinear"))
    mode = options.one_of("quantization_mode", "offline", ("offline", "online"))
    kept = options.names("modules_to_not_convert")
    return BitNet(kind == "bitlinear", kind == "autobitlinear" and mode == "online", kept)
