#!/usr/bin/env python3
"""The speed of a mixture of experts, compared to a dense model with as many active weights per token.

    python -m benchmarks.experts --precision int8

Both have random weights in a temporary folder (1 GB): 32 experts of which 4 are chosen, and one network of
four times an expert's width, all else equal. Steps alternate, and the median of each is shown. The limit is the time
to read, at the bandwidth measured just before, the weights that a step needs; a chunk's is multiplication, not shown.
The last column has the bytes that the mixture's steps need, of the experts that their rows use, over the dense model's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.make_models import make_model
from benchmarks.steps import batch_of
from dragoman import kernels, models
from dragoman.models.layout import plan_layout

_SHARED: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
EXPERTS, ACTIVE, INNER = 32, 4, 384
MIXTURE = _SHARED | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": EXPERTS,
    "num_experts_per_tok": ACTIVE,
    "moe_intermediate_size": INNER,
    "intermediate_size": INNER,
    "norm_topk_prob": True,
}
DENSE = _SHARED | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "intermediate_size": ACTIVE * INNER,
}


def loaded(config: dict[str, Any], precision: Any) -> models.Model:
    settings = models.ModelSettings(precision=precision, kv_bytes=1 << 28, cache_bytes=0)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), config)
        return models.load(folder, settings)


def bytes_read(model: models.Model, rows: int) -> float:
    """Weights that a step of so many rows reads, where rows choose their experts evenly and each for itself."""
    used = 1 - (1 - ACTIVE / EXPERTS) ** rows
    entries = plan_layout(model.config, model.plan.precision).entries
    return sum(entry.nbytes * (1.0 if entry.parameter.expert is None else used) for entry in entries)


def medians(pair: tuple[models.Model, ...], sequences: int, tokens: int, repeat: int) -> list[float]:
    """Seconds of a step of each model."""
    batches = [batch_of(sequences, tokens, 128, model) for model in pair]
    taken: list[list[float]] = [[] for _ in pair]
    for _ in range(repeat + 1):
        for model, batch, seconds in zip(pair, batches, taken, strict=True):
            started = time.perf_counter()
            model.run(batch)
            seconds.append(time.perf_counter() - started)
    return [statistics.median(seconds[1:]) for seconds in taken]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="int8", choices=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    pair = (loaded(MIXTURE, options.precision), loaded(DENSE, options.precision))
    sizes = " and ".join(f"{model.plan.weight_bytes / 1e6:.0f} MB" for model in pair)
    table = Table(
        "step", "mixture, tokens/s", "of limit", "dense, tokens/s", "of limit", "time, mixture : dense", "bytes"
    )
    for title, sequences, tokens in (
        ("1 stream", 1, 1),
        ("8 streams", 8, 1),
        ("32 streams", 32, 1),
        ("chunk of 512", 1, 512),
    ):
        rows = sequences * tokens
        bandwidth = kernels.memory_bandwidth(0.3)
        seconds = medians(pair, sequences, tokens, options.repeat if tokens == 1 else max(3, options.repeat // 6))
        limits = [bytes_read(model, rows) / bandwidth for model in pair]
        cells = [
            cell
            for taken, limit in zip(seconds, limits, strict=True)
            for cell in (f"{rows / taken:,.0f}", f"{limit / taken:.0%}" if tokens == 1 else "")
        ]
        table.add_row(title, *cells, f"{seconds[0] / seconds[1]:.2f}", f"{limits[0] / limits[1]:.2f}")
    console = Console()
    console.print(f"{options.precision}, {sizes} of weights, {kernels.threads()} threads, {kernels.instruction_set()}")
    console.print(table)


if __name__ == "__main__":
    main()
