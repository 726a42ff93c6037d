"""Memory of several nodes: spread where the system does that, and otherwise as before."""

import subprocess
import sys

import pytest

from dragoman import kernels

# In a process of its own: what is set counts for all memory from then on.
SPREAD = """
import sys
import numpy as np
from dragoman import kernels

spread = kernels.set_memory_nodes([0, 1])
weight = np.random.default_rng(0).standard_normal((512, 256)).astype(np.float32)
packed = kernels.pack(weight, "float32")
assert np.array_equal(packed.dequantize(), weight)
address = packed.data.__array_interface__["data"][0]
before = ""
for line in open("/proc/self/numa_maps"):
    if int(line.split()[0], 16) > address:
        break
    before = line
assert before.split()[1].startswith("interleave:") == spread, before
assert kernels.set_memory_nodes([0]) is False
assert kernels.set_memory_nodes([]) is False
print(spread)
"""


def test_weights_are_spread_over_nodes_where_the_system_does_that():
    """Of two nodes one suffices: Linux leaves out those that the machine lacks."""
    done = subprocess.run([sys.executable, "-c", SPREAD], capture_output=True, text=True)
    if "numa_maps" in done.stderr:
        pytest.skip("the system does not say where memory is")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("True", "False")


@pytest.mark.parametrize("nodes", [[-1], [0, 1024]])
def test_a_node_that_cannot_be_is_refused(nodes):
    with pytest.raises(ValueError, match="no such memory node"):
        kernels.set_memory_nodes(nodes)
