"""AWQ (Lin et al. 2023, https://arxiv.org/abs/2306.00978), the ``gemm`` layout of AutoAWQ.

A matrix ``[N, K]`` is ``qweight`` int32 ``[K, N/8]`` and ``qzeros`` int32 ``[G, N/8]``, both packed along the outputs
in AWQ's order, and ``scales`` ``[G, N]``. w = scale * (q - zero).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.quantized.bit_packing import unpack
from dragoman.models.quantized.matrices import Grid, IntegerMatrix, integer_form
from dragoman.models.quantized.module_names import in_layers, is_kept
from dragoman.models.quantized.scheme import FLOATS, Options, Pieces, find_pieces, read_finite, replace_pieces
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Format, Tensor

_BITS = 4
_IN_WORD = 8
# The positions of the eight outputs in a word: AWQ packs 0, 2, 4, 6, 1, 3, 5, 7.
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])

_DECISIVE = frozenset(
    {"quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format"}
    | {"modules_to_not_convert"}
)
_HARMLESS = frozenset(
    {
        "backend",
        "do_fuse",
        "fuse_max_seq_len",
        "modules_to_fuse",
        "exllama_config",
        "meta",
        "desc_act",
        "sym",
        "dataset",
    }
    | {"damp_percent", "true_sequential", "batch_size", "cache_block_outputs", "act_group_aware", "lm_head"}
    | {"checkpoint_format", "pack_dtype"}
)


class Awq(msgspec.Struct, frozen=True):
    """``size``: inputs of a group; -1: all. ``kept``: modules that are not quantized."""

    size: int
    kept: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The method, bits and groups."""
        return f"awq, 4 bits, {'one group an output' if self.size < 0 else f'groups of {self.size}'}, asymmetric"

    def form(self, module: str) -> Format | None:
        """Return the format of a module's matrix by the config."""
        if not in_layers(module) or is_kept(module, self.kept):
            return None
        return integer_form(_BITS, False, self.size if self.size > 0 else None)

    def join(self, stored: Mapping[str, StoredTensor]) -> Mapping[str, Tensor]:
        """Return the tensors with each ``qweight`` and its pieces as one matrix."""
        modules = find_pieces(stored, "qweight", ("qzeros", "scales"))
        return replace_pieces(stored, modules, [self._matrix(pieces) for pieces in modules.values()])

    def _matrix(self, pieces: Pieces) -> IntegerMatrix:
        words = pieces.piece("qweight", ("I32",))
        if is_kept(pieces.module, self.kept):
            raise words.fail("is quantized, where the config says that its module is not")
        if len(words.shape) != 2:
            raise words.fail(f"its shape {list(words.shape)} is not that of a matrix")
        inputs, outputs = words.shape[0], words.shape[1] * _IN_WORD
        size = inputs if self.size < 0 else self.size
        count = -(-inputs // size)
        zeros = pieces.piece("qzeros", ("I32",), (count, words.shape[1]))
        scales = pieces.piece("scales", FLOATS, (count, outputs))

        def read_grid() -> Grid:
            points = _unpack(zeros.read_stored()).astype(np.int16)
            return Grid(np.ascontiguousarray(read_finite(scales).T), points if points.any() else None, size)

        return IntegerMatrix(
            name=f"{pieces.module}.weight",
            file=words.file,
            shape=(outputs, inputs),
            nbytes=sum(piece.nbytes for piece in pieces.stored.values()),
            bits=_BITS,
            read_integers=lambda: _unpack(words.read_stored()),
            read_grid=read_grid,
        )


def _unpack(words: NDArray[np.int32]) -> NDArray[np.int8]:
    """Return words ``[rows, N/8]`` as integers -8 … 7 ``[N, rows]``."""
    rows, width = words.shape
    codes = unpack(np.ascontiguousarray(words.T).reshape(width * rows, 1), _BITS, _IN_WORD).reshape(width, rows, -1)
    turned = np.empty((width, _IN_WORD, rows), np.int8)
    for output, place in enumerate(_PLACES):
        turned[:, output] = codes[:, :, place]
    return turned.reshape(width * _IN_WORD, rows)


def read_awq(options: Options) -> Awq:
    """Return the scheme of a ``quantization_config``, or of ``quant_config.json`` with its shorter names."""
    options.refuse_unknown(_DECISIVE, _HARMLESS)
    version = options.values.get("version") or options.values.get("format") or "gemm"
    if str(version).lower() != "gemm":
        raise ModelError(f"{options.where}: AWQ's layout {version!r} is not supported; known: gemm")
    options.one_of("bits", options.one_of("w_bit", _BITS, (_BITS,)), (_BITS,))
    if not options.flag("zero_point", True):
        raise ModelError(f"{options.where}: zero_point = false is not supported")
    size = options.values.get("group_size", options.values.get("q_group_size", 128))
    if not isinstance(size, int) or isinstance(size, bool) or (size != -1 and not 0 < size < 2**31):
        raise ModelError(f"{options.where}: group_size must be -1 or a positive integer, got {size!r}")
    return Awq(size, options.names("modules_to_not_convert"))
