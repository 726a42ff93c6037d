"""A server says how much of a prompt came from the prefix cache, in usage and metrics, from memory and from disk."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import httpx
import pytest
from command_server import ADDRESS, read_until, start_command

from dragoman.engine.prefix_store.folder import CacheFolder
from dragoman.engine.prefix_store.segment import scan

PROMPT = "The quick brown fox jumps over the lazy dog and then tells a long story about it. " * 32
INDEXED = re.compile(r"(?=.*cached on disk: (\d+) blocks of this model)(?=.*address +http)", re.DOTALL)
"""What a server has said that knows what is on disk: a first prompt waits three seconds for that, and no longer."""


def asked(url: str) -> tuple[int, int]:
    """Ask in one dialect; return how many tokens the prompt has, and how many of them were cached."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2, "seed": 1}
    usage = httpx.post(f"{url}/openai/v1/chat/completions", json=body, timeout=60).raise_for_status().json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def stored(path: Path) -> int:
    """Return how many whole blocks are on disk."""
    found = 0
    with contextlib.closing(CacheFolder(path)) as folder:
        for segment in folder.segments():
            with open(folder.open_segment(segment.model, segment.name), "rb") as file:
                found += len(list(scan(file.fileno())))
    return found


@pytest.mark.parametrize("kept", ["bfloat16", "int4"])
def test_usage_and_metrics_count_what_was_cached(kept: str, tmp_path: Path) -> None:
    """In each precision of keys and values, also after a restart."""
    options = ("--kv-precision", kept, "--prefix-cache-bytes", "100000000", "--prefix-cache-folder", str(tmp_path))
    whole = 0
    for life in range(2):
        server = start_command(*options)
        try:
            said = read_until(server, INDEXED)
            indexed, address = INDEXED.search(said), ADDRESS.search(said)
            assert indexed is not None
            assert address is not None
            assert int(indexed[1]) == whole // 32
            found = [asked(address[1]) for _ in range(3)]
            metrics = httpx.get(f"{address[1]}/metrics").text
            tokens = found[0][0]
            whole = (tokens - 1) // 32 * 32
            # A server that stops has one second for what is not written yet, which a busy machine can take longer for.
            end = time.monotonic() + 60
            while stored(tmp_path) < whole // 32:
                assert time.monotonic() < end, f"{stored(tmp_path)} of {whole // 32} blocks are written"
                time.sleep(0.01)
        finally:
            server.terminate()
            server.communicate()
        assert found == [(tokens, whole if life else 0), (tokens, whole), (tokens, whole)]
        counted = re.search(r"^dragoman_cached_prompt_tokens_total (\d+)", metrics, re.MULTILINE)
        assert counted is not None
        assert int(counted[1]) == sum(cached for _, cached in found)
