"""A server says how much of a prompt came from the prefix cache, in usage and metrics, from memory and from disk."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from command_server import start_server

PROMPT = "The quick brown fox jumps over the lazy dog and then tells a long story about it. " * 40


def asked(url: str) -> tuple[int, int]:
    """Ask in one dialect; return how many tokens the prompt has, and how many of them were cached."""
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2, "seed": 1}
    usage = httpx.post(f"{url}/openai/v1/chat/completions", json=body, timeout=60).raise_for_status().json()["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("kept", ["bfloat16", "int4"])
def test_usage_and_metrics_count_what_was_cached(kept: str, tmp_path: Path) -> None:
    """In each precision of keys and values, also after a restart."""
    options = ("--kv-precision", kept, "--prefix-cache-bytes", "100000000", "--prefix-cache-folder", str(tmp_path))
    for life in range(2):
        server, url = start_server(*options)
        try:
            found = [asked(url) for _ in range(3)]
            metrics = httpx.get(f"{url}/metrics").text
        finally:
            server.terminate()
            server.communicate()
        tokens = found[0][0]
        whole = (tokens - 1) // 32 * 32
        assert found == [(tokens, whole if life else 0), (tokens, whole), (tokens, whole)]
        counted = re.search(r"^dragoman_cached_prompt_tokens_total (\d+)", metrics, re.MULTILINE)
        assert counted is not None
        assert int(counted[1]) == sum(cached for _, cached in found)
