"""What all tests share."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
import ssl
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

# One thread for each product of NumPy and PyTorch: with several processes of tests on two cores, their threads wait for
# each other in a loop, up to a hundred times as long as a small product takes. Read when the libraries are loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Each client of a test reads all certificates that the system trusts: 33 ms, hundreds of times, and none of them speaks
# to a server outside. Here they read them once.
ssl.create_default_context = functools.cache(ssl.create_default_context)  # type: ignore[assignment]

# How long a client waits that says nothing of it: httpx's 5 seconds are few on a machine that stands still for some.
httpx._config.DEFAULT_TIMEOUT_CONFIG.connect = 60.0
httpx._config.DEFAULT_TIMEOUT_CONFIG.read = 60.0
httpx._config.DEFAULT_TIMEOUT_CONFIG.write = 60.0
httpx._config.DEFAULT_TIMEOUT_CONFIG.pool = 60.0

# A shell without job control starts what it runs in the background with Ctrl-C ignored, and so would every process that
# tests start be, whose ends by Ctrl-C they look at.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers of tests keep no prompts in the user's cache folder.
os.environ["DRAGOMAN_PREFIX_CACHE_BYTES"] = "0"

THOROUGH = bool(os.environ.get("DRAGOMAN_THOROUGH"))

SLOW = re.compile(
    r"\b(torch|transformers|subprocess|multiprocessing|Popen|EngineClient|running_server|RunningServer|tiny_server"
    r"|server: httpx|client: openai|import openai|llm: LLM|import LLM|hypothesis|numpy|SourceCopy"
    r"|tiny_model|RealVllm|FakeVllm|GrammarProcess|ChatTemplate(?=\()|soaked|with_beams)\b"
)
"""What is in a file whose tests load PyTorch, start processes (a chat template of their own is one), draw examples or
compute: they take seconds."""

LONGEST = (
    "engine/test_same_request_same_tokens.py",
    "kernels/test_attention_batches.py",
    "kernels/test_attention.py",
    "engine_client/test_crash_replay.py",
    "models/test_truth_rounded.py",
    "server/test_waiting_for_models.py",
    "siege/test_siege.py",
    "server/test_progress.py",
    "kernels/test_self_test.py",
    "server/test_lifecycle.py",
    "dialects/test_reasoned_calls.py",
    "simulation/test_simulation.py",
    "dialects/test_documents.py",
    "benchmarks/test_bench.py",
    "soak/test_soak.py",
    "server/test_behind_a_proxy.py",
    "server/test_parsing.py",
    "models/test_hub.py",
    "cli/test_code_blocks.py",
    "server/test_key_before_body.py",
    "models/test_truth_float32.py",
    "cluster/test_survival.py",
    "server/test_listening.py",
    "llm/test_living.py",
    "server/test_rude_crowd.py",
)
"""Files that take long, in their order: several processes divide the files, and the last ones should be short."""

VERBS = {"browser", "fuzz", "siege", "simulation", "soak"}
"""Folders of tests that ``make`` has commands for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out files of tests that take seconds")


def pytest_configure(config: pytest.Config) -> None:
    """A drawn example may take as long as it needs: on a busy machine each one is slow for once.

    The short profile draws the same examples in every run, so a change is judged by what it changes; the thorough
    one draws new ones.
    """
    config.addinivalue_line("markers", "thorough: only with DRAGOMAN_THOROUGH, as a case of something that others show")
    if not config.getoption("--fast"):
        from hypothesis import settings

        settings.register_profile("short", deadline=None, max_examples=25, derandomize=True, database=None)
        settings.register_profile("thorough", deadline=None)
        settings.load_profile("thorough" if THOROUGH else "short")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Before a file is imported: importing PyTorch alone takes seconds."""
    if not config.getoption("--fast"):
        return None
    if collection_path.is_dir():
        return collection_path.name in VERBS or None
    if collection_path.suffix != ".py":
        return None
    return SLOW.search(collection_path.read_text("utf-8")) is not None or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage meanwhile, and look at nothing loaded afterwards: it stays, and takes a seventh of the time
    here and some hundredths of it later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not THOROUGH:
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
    folder = Path(__file__).parent
    places = {str(folder / name): place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(str(item.path), len(LONGEST)))


KEEP_OUT = gc.freeze
"""Keeps all there is out of sight of the garbage collector."""


def pytest_collection_finish() -> None:
    """What is loaded now stays until the end, and the garbage collector need not look at it again.

    PyTorch and 18,000 tests are some millions of objects: a tenth to half a second each time. Every server of a test
    has garbage collected before its start and after it, and there takes back what is kept out, in a process that it
    takes for its own. Here that would be all of this.
    """
    KEEP_OUT()
    gc.freeze = gc.unfreeze = lambda: None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """After the last test of a file, what is no garbage stays, too: modules that its tests have imported, and caches.

    To look at all of that again and again took a fifth of the processor time of tests that run servers.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            KEEP_OUT()
