"""``bench`` measures what it says it measures; ``plan`` says what the machine has and the model needs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from forked_command import run_forked

from dragoman.cli import console
from dragoman.cli.bench import Load, measure
from dragoman.cli.measurement import StreamRecord
from dragoman.cli.plan import adapter_sizes, adapters_of, plans_of
from dragoman.cli.settings import BenchSettings
from dragoman.core.errors import ModelError
from dragoman.models import ModelSettings, describe
from dragoman.serving.settings import AdapterSettings


class Recorder:
    """A target that takes no time and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Load, int]] = []

    async def time(self, load: Load, number: int) -> StreamRecord:
        self.asked.append((load, number))
        return StreamRecord(start_s=0.0, arrivals_s=[1.0, 2.0], tokens=2)


def run(settings: BenchSettings) -> tuple[Recorder, list[Load]]:
    target = Recorder()

    async def collect() -> list[Load]:
        return [load async for load, _ in measure(target, settings)]

    return target, asyncio.run(collect())


def test_every_length_with_every_number_of_streams() -> None:
    target, loads = run(BenchSettings(streams=(1, 4), prompt_tokens=(24, 32), output_tokens=8, rounds=3))
    assert [(load.prompt_tokens, load.streams) for load in loads] == [(24, 1), (24, 4), (32, 1), (32, 4)]
    counts = [sum(asked == load for asked, _ in target.asked) for load in loads]
    assert counts == [3, 12, 3, 12]


def test_no_prompt_is_sent_twice() -> None:
    target, _ = run(BenchSettings(streams=(2, 8), rounds=2))
    numbers = [number for _, number in target.asked]
    assert len(numbers) == len(set(numbers))


def dragoman(*arguments: str) -> str:
    done = run_forked(*arguments, environment={**os.environ, "DRAGOMAN_CONFIG": os.devnull, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bench_of_the_embedded_model_as_json() -> None:
    said = dragoman(
        "bench", "--streams", "2", "--prompt-tokens", "40", "--output-tokens", "6", "--rounds", "2", "--json"
    )
    [found] = [json.loads(line) for line in said.splitlines()]
    assert (found["requests"], found["failed"], found["prompt_tokens"]) == (4, 0, 40)
    assert found["output_tokens"] == 4 * 6
    assert 0 < found["ttft_p50_ms"] <= found["ttft_p99_ms"]
    # The time is rounded to milliseconds, of which a quick machine needs few.
    assert found["output_tokens"] / found["tokens_per_s"] == pytest.approx(found["wall_s"], abs=6e-4)


def test_plan_shows_the_stored_precision_and_those_below() -> None:
    precisions = [found.precision for found in plans_of(describe(None), ModelSettings())]
    assert precisions == ["bfloat16", "int8", "int4"]
    assert [found.precision for found in plans_of(describe(None), ModelSettings(precision="int8"))] == ["int8"]


def test_plan_says_memory_context_and_speed() -> None:
    said = dragoman("plan", "--precision", "int8", "--kv-precision", "int4")
    [found] = plans_of(describe(None), ModelSettings(precision="int8", kv_precision="int4"))
    for words in (console.size(found.weight_bytes), "2,048 tokens", "tokens/s", "GB/s", "int8"):
        assert words in said
    (own,) = (line for line in said.splitlines() if "of own blocks" in line)
    assert console.size(found.groups[1].nbytes) in own


def adapter(folder: Path, **config: object) -> Path:
    """An adapter's config, without its weights: the plan needs none."""
    folder.mkdir(parents=True)
    written = {"peft_type": "LORA", "r": 16, "target_modules": ["q_proj", "v_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return folder


def test_plan_counts_adapters(tmp_path: Path) -> None:
    first = adapter(tmp_path / "first")
    adapter(tmp_path / "offered" / "poems", r=32)
    found = AdapterSettings(lora_adapters=f"red={first}", adapters_folder=str(tmp_path / "offered"))
    described = describe(None)
    loaded, others = adapters_of(found, ModelSettings())
    sizes = [adapter_sizes(described, folders, "bfloat16") for folders in (loaded, others)]
    spec = described.spec
    width = 2 * spec.width + spec.query_width + spec.kv_heads * spec.head_dim
    assert sizes == [spec.layers * 2 * rank * width for rank in (16, 32)]

    given = ("--lora-adapters", f"red={first}", "--adapters-folder", str(tmp_path / "offered"))
    said = dragoman("plan", "--precision", "bfloat16", "--max-adapters", "5", "--adapter-bytes", "50000000", *given)
    rows = {line.rpartition("  ")[0].strip(): line.rpartition("  ")[2].strip() for line in said.splitlines()}
    assert rows["adapters at the start"] == console.size(sizes[0])
    assert rows["room for up to 5"] == "50 MB"
    assert rows["offered beside them"] == console.size(sizes[1])
    assert "its adapters do not" in dragoman("plan", "--adapter-bytes", "1", *given)


def test_plan_of_more_adapters_than_there_are_places(tmp_path: Path) -> None:
    named = ",".join(f"{name}={adapter(tmp_path / name)}" for name in ("red", "blue"))
    with pytest.raises(ModelError, match="2 adapters, and --max-adapters 1"):
        adapters_of(AdapterSettings(lora_adapters=named), ModelSettings(max_adapters=1))


def test_plan_says_why_a_model_does_not_fit() -> None:
    assert "does not fit" in dragoman("plan", "--kv-bytes", str(10**15))


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (1.5e9, "1.5 GB"), (4e15, "4e+03 TB")],
)
def test_sizes_read_well(number: float, said: str) -> None:
    assert console.size(number) == said


def test_plan_of_a_folder_without_a_model(tmp_path: Path) -> None:
    done = run_forked("plan", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1
