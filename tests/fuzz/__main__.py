"""Readers of strangers' files under atheris, and the kernels under sanitizers: ``make fuzz``, or ``--short``.

Each reader has ten minutes (``--seconds``), or five seconds. Only documented errors may come out; anything else, an
input that takes over 2 s and a process that takes over 2 GB is a finding: its input is kept in ``build/fuzz``, and a
line says how to run it again. The inputs that reached new code stay in ``build/fuzz/<reader>``, where the next run
begins. The exit code is 1 where anything was found.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.native import run_sanitized

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "build" / "fuzz"
READERS = (
    *("gguf", "vocabulary", "tokenizer", "settings", "sentencepiece", "tiktoken", "tekken", "pieces"),
    *("safetensors", "header", "config"),
)
HANGS_AFTER_S = 2
MOST_MEMORY_MB = 2048
LARGEST_INPUT_BYTES = 1 << 16


def fuzz(name: str, seconds: int) -> bool:
    """Run one reader for so long; whether nothing was found."""
    corpus = FOUND / name
    corpus.mkdir(parents=True, exist_ok=True)
    command = (
        sys.executable, "-m", "tests.fuzz.under_atheris", name, str(corpus), f"-max_total_time={seconds}",
        f"-timeout={HANGS_AFTER_S}", f"-rss_limit_mb={MOST_MEMORY_MB}", f"-max_len={LARGEST_INPUT_BYTES}",
        f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1", "-verbosity=1",
    )  # fmt: skip
    started = time.monotonic()
    # A hang that not even libFuzzer's alarm ends is ended from here.
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=seconds + 120, check=False)
        output, status = (done.stdout + done.stderr).decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        output, status = (late.stderr or b"").decode(errors="replace"), 1
    (FOUND / f"{name}.log").write_text(output)
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", output) or re.search(r"#(\d+)(?!.*#\d)", output, re.S)
    memory = re.search(r"stat::peak_rss_mb:\s*(\d+)", output)
    print(
        f"{name}: {int(runs[1]) if runs else 0:,} executions in {time.monotonic() - started:.0f} s, "
        f"{memory[1] if memory else '?'} MB, {'nothing found' if status == 0 else 'FOUND:'}",
        flush=True,
    )
    if status:
        print("\n".join(line for line in output.splitlines() if not line.startswith(("#", "INFO:")))[-3000:])
        kept = re.search(r"Test unit written to (\S+)", output)
        print(f"  again: python -m tests.fuzz.under_atheris {name} {kept[1] if kept else ''}")
    return status == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=[*READERS, "native"], action="append", help="only this one")
    parser.add_argument("--seconds", type=int, help="for each reader")
    parser.add_argument(
        "--short", action="store_true", help="a few seconds for each reader, a few tests of the kernels"
    )
    options = parser.parse_args()
    parts = options.part or [*READERS, "native"]
    if importlib.util.find_spec("atheris") is None and parts != ["native"]:
        print("atheris is missing: pip install atheris, which has builds for Python 3.11 to 3.13", file=sys.stderr)
        return 2
    seconds = options.seconds or (5 if options.short else 600)
    fine = [fuzz(name, seconds) for name in parts if name != "native"]
    if "native" in parts:
        fine.append(run_sanitized(options.short) == 0)
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
