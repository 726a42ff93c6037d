"""The bytes that steps have to read: by the definition, position by position, and of the embedded model as it runs."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from test_memory import described, hybrid, plan_1b

from dragoman.core.request import EngineRequest
from dragoman.engine.engine import Engine
from dragoman.models import ModelSettings, load, plan
from dragoman.models.batch import Batch
from dragoman.models.layout import plan_layout
from dragoman.models.reads import ReadCounter

Int32s = NDArray[np.int32]


def batch_of(rows: list[tuple[int, int]], logit_rows: int, encoder_lengths: Int32s | None = None) -> Batch:
    """A batch of sequences, each with the first and the last position that it computes."""
    positions = np.concatenate([np.arange(first, last + 1, dtype=np.int32) for first, last in rows])
    starts = np.cumsum([0, *(last + 1 - first for first, last in rows)]).astype(np.int32)
    tables = np.zeros((len(rows), 1), np.int32)
    wanted = np.arange(logit_rows, dtype=np.int32)
    return Batch(positions, positions, starts, tables, wanted, encoder_lengths=encoder_lengths)


@pytest.mark.parametrize("windows", [(0,), (7,), (0, 7, 7), (7, 64, 1, 0), (5000,)])
def test_each_layer_reads_every_position_that_some_row_sees_once(windows: tuple[int, ...]) -> None:
    found = plan_1b(24, max_context=1024)
    spec = described("llama-3.2-1b").spec
    spec = replace(spec, windows=tuple(windows[layer % len(windows)] for layer in range(spec.layers)))
    each = found.kv_bytes_per_token // spec.layers
    random = np.random.default_rng(3)
    for _ in range(20):
        firsts = random.integers(0, 300, 4)
        rows = [(int(first), int(first + random.integers(0, 40))) for first in firsts]
        seen = 0
        for window in spec.windows:
            for first, last in rows:
                positions = range(first, last + 1)
                reach = [range(max(0, p + 1 - window) if window else 0, p + 1) for p in positions]
                seen += len(set().union(*reach))
        counter = ReadCounter(spec, found)
        counter.add_step(batch_of(rows, 4))
        assert counter.total == found.bytes_per_decoded_token + each * seen


def test_weights_are_read_once_in_a_step_however_many_rows_it_has() -> None:
    found, spec = plan_1b(24, max_context=1024), described("llama-3.2-1b").spec
    totals = []
    for rows in ([(0, 0)], [(0, 99)], [(0, 0)] * 64):
        counter = ReadCounter(spec, found)
        counter.add_step(batch_of(rows, 1))
        totals.append(counter.total - found.kv_bytes_per_token * sum(last + 1 for _, last in rows))
    assert totals == [found.weight_bytes] * 3, "this model's table is its output projection too"


def test_a_step_that_needs_no_logits_reads_nothing_after_the_last_attention() -> None:
    found, spec = plan_1b(24, precision="bfloat16"), described("llama-3.2-1b").spec
    width, inner = 2048, 8192
    after = 2 * (width * width + 3 * width * inner) + 4 * width  # of the last layer: a norm is float32
    output = 2 * 128256 * width + 4 * width
    assert found.bytes_per_decoded_token - found.bytes_before_logits == after + output
    counter = ReadCounter(spec, found)
    counter.add_step(batch_of([(0, 31)], 0))
    assert counter.total == found.bytes_before_logits + 32 * found.kv_bytes_per_token


def test_an_encoders_weights_are_read_with_its_inputs_and_its_positions_by_the_decoder() -> None:
    found, spec = plan_1b(24), described("llama-3.2-1b").spec
    found = replace(found, encoder_bytes=1000)
    counter = ReadCounter(spec, found)
    counter.add_encoding(batch_of([(0, 99)], 0))
    assert counter.total == 1000
    counter.add_step(batch_of([(0, 0)], 1, np.array([100], np.int32)))
    assert counter.total == 1000 + found.bytes_per_decoded_token + 101 * found.kv_bytes_per_token


def test_the_engine_counts_what_the_embedded_model_reads() -> None:
    model = load(None, ModelSettings(max_context=512, max_sequences=4))
    engine = Engine(model)
    request = EngineRequest(request_id="a", prompt=tuple(range(10, 60)), seeds=(1,), max_tokens=9)
    engine.submit(request)
    while engine.has_work:
        stats = engine.step().stats
    layout = plan_layout(model.config, model.plan.precision, model.plan.formats)
    weights = sum(entry.nbytes for entry in layout.entries)
    table = sum(entry.nbytes for entry in layout.entries if entry.parameter.module == "embedding")
    assert stats.steps > 1
    assert stats.read_bytes == model.read_bytes
    # Between nothing but weights, and all weights with the whole sequence in every step.
    least = stats.steps * (weights - table) if not model.config.tied else stats.steps * weights
    assert least < stats.read_bytes < stats.steps * (weights + 59 * model.plan.kv_bytes_per_token)


def test_a_state_is_read_where_a_sequence_continues() -> None:
    found = plan(hybrid(), ModelSettings(max_context=4096), available_bytes=24 << 30)
    counter, stateless = (ReadCounter(hybrid().spec, found) for _ in range(2))
    batch = batch_of([(0, 40), (17, 17), (300, 310)], 3)
    stateless.add_step(batch)
    counter.add_step(batch._replace(state_slots=np.arange(3, dtype=np.int32)))
    assert counter.total - stateless.total == 2 * found.bytes_per_state
    assert stateless.total == found.bytes_per_decoded_token + (41 + 18 + 311) * found.kv_bytes_per_token
