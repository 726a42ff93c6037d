"""Quantized matrices as tensors: their integers where packed groups can hold them, otherwise their numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from dragoman.core.errors import ModelError
from dragoman.models.safetensors_file import StoredTensor
from dragoman.models.tensors import Codes, Format, Tensor, checksum_of_order

GROUP = 32  # inputs that share a scale in the packed formats
_LARGEST_FLOAT16 = 65504.0
_LARGEST_SCALE = 1e35  # times any integer of 8 bits it is a float32
# A float16 rounds by at most this, relative, unless it is subnormal.
_FLOAT16_ROUNDING = 2.0**-11


class Grid(msgspec.Struct, frozen=True):
    """The scales and zero points of a matrix ``[N, K]`` of integers: w = scale * (integer - zero).

    Attributes:
        scales: float32 ``[N, G]``.
        zeros: int16 ``[N, G]``; None: all are 0.
        group: how many inputs in a row share a scale; ``G = ceil(K / group)``.
        of_input: for each input its group, where groups are not inputs in a row; int32 ``[K]``.
    """

    scales: NDArray[np.float32]
    zeros: NDArray[np.int16] | None
    group: int
    of_input: NDArray[np.int32] | None = None

    @property
    def order(self) -> NDArray[np.int32] | None:
        """The inputs sorted by group; None where they are already."""
        return None if self.of_input is None else np.argsort(self.of_input, kind="stable").astype(np.int32)

    @property
    def in_order(self) -> Grid:
        """The grid of inputs in ``order``."""
        return replace(self, of_input=None)

    def subtract_zeros(self, integers: NDArray[Any]) -> None:
        """Subtract the zero points in place: integer - zero."""
        if self.zeros is not None:
            self._combine(np.subtract, integers, self.zeros.astype(integers.dtype))

    def scale(self, numbers: NDArray[np.float32]) -> None:
        """Multiply by the scales in place: scale * number."""
        with np.errstate(over="ignore"):  # the reader of the numbers checks them
            self._combine(np.multiply, numbers, self.scales)

    def _combine(self, operation: np.ufunc, numbers: NDArray[Any], per_group: NDArray[Any]) -> None:
        rows, inputs = numbers.shape
        if self.of_input is not None:
            operation(numbers, per_group[:, self.of_input], out=numbers)
        elif per_group.shape[1] * self.group == inputs:
            blocks = numbers.reshape(rows, -1, self.group)
            operation(blocks, per_group[..., None], out=blocks)
        else:
            operation(numbers, np.repeat(per_group, self.group, axis=1)[:, :inputs], out=numbers)


class IntegerMatrix(msgspec.Struct, frozen=True):
    """A matrix of integers of ``bits`` (from -2^(bits - 1) up) and their grid.

    Attributes:
        read_integers: int8 ``[N, K]``. read_grid: much less.
    """

    name: str
    file: Path
    shape: tuple[int, ...]
    nbytes: int
    bits: int
    read_integers: Callable[[], NDArray[np.int8]]
    read_grid: Callable[[], Grid]

    @property
    def dtype(self) -> str:
        """The type of the numbers that ``read`` returns."""
        return "float32"

    @property
    def form(self) -> Format:
        """The packed format: int4 or int8 with these very integers; int8 with new rounding for groups that are not of
        32; bfloat16 for scales that float16, the type of scales in packed groups, cannot hold."""
        grid = self.read_grid()
        most = float(np.abs(grid.scales).max(initial=0.0)) * 2**self.bits  # of a minimum
        if not _fits_float16(grid.scales) or (grid.zeros is not None and most > _LARGEST_FLOAT16):
            return Format("bfloat16")
        if not self._aligned(grid) or (self.bits > 4 and not self._within_int8(grid)):
            return Format("int8")
        order = grid.order
        checksum = 0 if order is None else checksum_of_order(order)
        if self.bits > 4:
            return Format("int8", wide=self._wide(grid), order=checksum)
        return Format("int4", minimum=grid.zeros is not None, order=checksum)

    def read(self) -> NDArray[np.float32]:
        """Return the numbers of the matrix."""
        grid, numbers = self.read_grid(), self.read_integers().astype(np.float32)
        if float(np.abs(grid.scales).max(initial=0.0)) > _LARGEST_SCALE:
            raise self.fail("its scales make numbers beyond float32")
        grid.subtract_zeros(numbers)
        grid.scale(numbers)
        return numbers

    def codes(self, form: Format) -> Codes | None:
        """Return the integers, where groups of 32 can hold them. Scales that are not float16 are rounded to the
        nearest."""
        if form.precision not in ("int8", "int4"):
            return None
        grid = self.read_grid()
        order = grid.order
        if not self._aligned(grid) or not _fits_float16(grid.scales):
            return None
        if form.order != (0 if order is None else checksum_of_order(order)):
            return None
        if form.precision == "int4":
            if self.bits > 4 or (grid.zeros is not None and not form.minimum):
                return None
            return self._minimum_codes(grid, order) if form.minimum else self._codes(grid, order)
        if not self._within_int8(grid) or (form.wide and not self._wide(grid)):
            return None
        return self._codes(grid, order)

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        """Raise ModelError: the tensor is a single matrix."""
        raise self.fail("is one matrix, not a stack of them")

    def fail(self, reason: str) -> ModelError:
        """Return an error that names file and tensor."""
        return ModelError(f"{self.file}: tensor {self.name}: {reason}")

    def _codes(self, grid: Grid, order: NDArray[np.int32] | None) -> Codes:
        """Return the codes (integer - zero) and the scales."""
        integers = self._in_order(order)
        grid.in_order.subtract_zeros(integers)
        return Codes(integers, self._per_group(grid, grid.scales), order=order)

    def _minimum_codes(self, grid: Grid, order: NDArray[np.int32] | None) -> Codes | None:
        """Return codes from 0 up with minimums: scale * (integer - zero) as scale * code + minimum."""
        lift = 2 ** (self.bits - 1)
        zeros = np.zeros_like(grid.scales) if grid.zeros is None else grid.zeros
        minimums = -grid.scales * (zeros + np.float32(lift))
        if not _fits_float16(minimums):
            return None
        integers = self._in_order(order)
        integers += np.int8(lift)
        return Codes(integers, self._per_group(grid, grid.scales), self._per_group(grid, minimums), order)

    def _in_order(self, order: NDArray[np.int32] | None) -> NDArray[np.int8]:
        integers = self.read_integers()
        return integers if order is None else np.take(integers, order, axis=1)

    def _within_int8(self, grid: Grid) -> bool:
        """Return whether every possible integer - zero is an int8."""
        half = 2 ** (self.bits - 1)
        if grid.zeros is None:
            return True
        return bool(half - 128 <= -int(grid.zeros.max()) and half - int(grid.zeros.min()) <= 128)

    def _aligned(self, grid: Grid) -> bool:
        """Return whether groups are multiples of 32 inputs, once these are sorted by group."""
        if grid.of_input is not None:
            sizes = np.bincount(grid.of_input, minlength=grid.scales.shape[1])
            if not np.array_equal(sizes[:-1], np.full(len(sizes) - 1, grid.group)):
                return False
        return bool(grid.group % GROUP == 0 or grid.group >= self.shape[1])

    def _wide(self, grid: Grid) -> bool:
        """Return whether four groups of 32 always have one scale."""
        return grid.group % (4 * GROUP) == 0 or grid.group >= self.shape[1]

    def _per_group(self, grid: Grid, values: NDArray[np.float32]) -> NDArray[np.float16]:
        """Return for each group of 32 the value of its wider group."""
        groups = -(-self.shape[1] // GROUP)
        times = groups if values.shape[1] == 1 else grid.group // GROUP
        return np.repeat(values.astype(np.float16), times, axis=1)[:, :groups]


class NumberMatrix(msgspec.Struct, frozen=True):
    """A matrix of numbers that packed groups cannot hold exactly: rounded to ``form`` where no precision is
    requested."""

    name: str
    file: Path
    shape: tuple[int, ...]
    nbytes: int
    form: Format
    read_numbers: Callable[[], NDArray[np.float32]]

    @property
    def dtype(self) -> str:
        """The type of the numbers that ``read`` returns."""
        return "float32"

    def read(self) -> NDArray[np.float32]:
        """Return the numbers of the matrix. Raises ModelError where one is not finite."""
        numbers = self.read_numbers()
        if not np.isfinite(numbers).all():
            raise self.fail("holds numbers that are not finite")
        return numbers

    def codes(self, form: Format) -> Codes | None:
        """Return None: there are no integers."""
        return None

    def matrix(self, index: int, count: int | None = None) -> Tensor:
        """Raise ModelError: the tensor is a single matrix."""
        raise self.fail("is one matrix, not a stack of them")

    def fail(self, reason: str) -> ModelError:
        """Return an error that names file and tensor."""
        return ModelError(f"{self.file}: tensor {self.name}: {reason}")


def integer_form(bits: int, symmetric: bool, group: int | None) -> Format:
    """Return the format that an ``IntegerMatrix`` is packed in when its scales are usual ones. ``group``: None: all
    inputs."""
    if group is not None and group % GROUP:
        return Format("int8")
    if bits <= 4:
        return Format("int4", minimum=not symmetric)
    return Format("int8", wide=symmetric and (group is None or group % (4 * GROUP) == 0))


def block_grid(
    scales: NDArray[np.float32],
    shape: tuple[int, ...],
    block: tuple[int, int],
    zeros: NDArray[np.int16] | None = None,
    of_input: NDArray[np.int32] | None = None,
) -> Grid:
    """Return the grid of a matrix ``shape`` with a scale, and a zero point, for each block of outputs and inputs."""

    def of_outputs(values: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(values, block[0], axis=0)[: shape[0]]

    some = zeros is not None and zeros.any()
    return Grid(of_outputs(scales), of_outputs(zeros) if zeros is not None and some else None, block[1], of_input)


def input_order(stored: StoredTensor | None, inputs: int, group: int, groups: int) -> NDArray[np.int32] | None:
    """Return for each input its group (``g_idx``), where they are not in order.

    Raises ModelError on a group that does not exist.
    """
    if stored is None:
        return None
    order = stored.read_stored()
    if inputs and not (order.min() >= 0 and order.max() < groups):
        raise stored.fail(f"names groups from {order.min()} to {order.max()}, where there are {groups}")
    return None if np.array_equal(order, np.arange(inputs) // group) else order.astype(np.int32)


def _fits_float16(scales: NDArray[np.float32]) -> bool:
    """Return whether float16 holds them as well as its 11 bits can: none too large, and none so small that it has
    fewer."""
    with np.errstate(over="ignore"):
        rounded = scales.astype(np.float16).astype(np.float32)
    largest = float(np.abs(scales).max(initial=0.0))
    return largest <= _LARGEST_FLOAT16 and bool((np.abs(rounded - scales) <= _FLOAT16_ROUNDING * np.abs(scales)).all())
