"""Which instruction set is used, what forces another, and what the machine measures."""

import os
import subprocess
import sys

import pytest

from dragoman import kernels


def import_with(value: str) -> "subprocess.CompletedProcess[str]":
    code = "from dragoman import kernels; print(kernels.instruction_set())"
    environment = {**os.environ, "DRAGOMAN_KERNELS": value}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", kernels.instruction_sets())
def test_the_environment_forces_an_instruction_set(name):
    assert import_with(name).stdout.strip() == name


def test_an_empty_variable_means_the_best():
    assert import_with("").stdout.strip() == kernels.instruction_sets()[0]


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    result = import_with("sse9")
    assert result.returncode != 0
    assert 'DRAGOMAN_KERNELS: unknown kernels "sse9"' in result.stderr
    assert "portable" in result.stderr


def test_portable_is_always_there():
    assert "portable" in kernels.instruction_sets()
    with pytest.raises(ValueError, match="unknown kernels"):
        kernels.force("sse9")


def test_measurements_are_plausible():
    """Between a slow phone and a large server; not a benchmark."""
    assert 1e8 < kernels.memory_bandwidth(0.05) < 1e13
    passes = kernels.memory_passes(1e-9)
    assert len(passes) == 3
    assert all(1e8 < rate < 1e13 for rate in passes)
    for precision in ("float32", "bfloat16", "int8", "int4"):
        assert 1e8 < kernels.multiply_peak(precision) < 1e16
    with pytest.raises(ValueError, match="seconds"):
        kernels.memory_bandwidth(-1)
    with pytest.raises(ValueError, match="unknown precision"):
        kernels.multiply_peak("int3")  # type: ignore[arg-type]
