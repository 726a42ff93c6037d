"""Which kernels the tests of this folder run with."""

from __future__ import annotations

import pytest

THEIR_OWN = {
    "test_amx",
    "test_block_formats",
    "test_dispatch",
    "test_head_linear",
    "test_linear",
    "test_packing",
    "test_self_test",
}
"""Files about what each set of kernels has of its own: products of matrices, and the check of all that it has."""

SHARED = {"avx512_vnni": "avx512", "avx_vnni": "avx2"}
"""Sets whose other kernels are the sources of the second one, compiled for the same registers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of sets that differ in products alone, the self-test looks at the other kernels, and thorough tests do."""
    for item in items:
        if item.path.stem in THEIR_OWN or not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if set(SHARED) & {value for value in item.callspec.params.values() if isinstance(value, str)}:
            item.add_marker(pytest.mark.thorough)
