"""Libraries that would do more than they are asked for."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

PROGRAM = "import dragoman; from huggingface_hub import constants; print(constants.HF_HUB_DISABLE_TELEMETRY)"


@pytest.mark.parametrize(("own", "expected"), [({}, "True"), ({"HF_HUB_DISABLE_TELEMETRY": "0"}, "False")])
def test_the_hub_is_told_nothing_of_the_caller_unless_a_user_wants_it(own: dict[str, str], expected: str) -> None:
    """The library asks the hub which programs call it, at the first download, unless it finds this when imported."""
    unset = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK")
    environment = {name: value for name, value in os.environ.items() if name not in unset} | own
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


TOKENIZES = """
import os
from dragoman.core.third_party import tokenize_without_threads
from dragoman.models.source import embedded_path
from dragoman.text.tokenizer import Tokenizer
tokenize_without_threads()
assert Tokenizer.load(embedded_path()).encode("Hello")
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
@pytest.mark.parametrize(("own", "threads"), [({}, 1), ({"TOKENIZERS_PARALLELISM": "true"}, 3)])
def test_a_text_is_tokenized_without_threads_of_the_library_unless_a_user_wants_them(
    own: dict[str, str], threads: int
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"} | own
    environment |= {"RAYON_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", TOKENIZES], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == str(threads), done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_numpy_starts_no_threads_where_nothing_is_multiplied() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    program = (
        "import os; from dragoman.core.third_party import import_numpy; import_numpy(); "
        "print(len(os.listdir('/proc/self/task')), 'OPENBLAS_NUM_THREADS' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "1 False", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="macOS refuses limits of address space")
@pytest.mark.parametrize("limit", [1 << 46, resource.RLIM_INFINITY])
def test_numpy_is_imported_before_the_port_opens_where_address_space_is_limited(limit: int) -> None:
    program = (
        f"import resource, sys; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, resource.getrlimit(resource.RLIMIT_AS)[1])); "
        "from dragoman.core.third_party import import_numpy_within_limits; import_numpy_within_limits(); "
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == str(limit != resource.RLIM_INFINITY), done.stderr
