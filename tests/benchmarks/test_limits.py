"""What the machine allows is arithmetic: bytes over bandwidth, operations over the multiply rate."""

from __future__ import annotations

import pytest

from benchmarks.make_models import SHAPES
from dragoman.models import ModelDescription
from dragoman.models.families import read_spec
from dragoman.models.limits import AttentionShape, Limits, Machine, Shape, shape_of
from dragoman.models.settings import Precision
from dragoman.models.source import Source

MACHINE = Machine(1e9, {"bfloat16": 1e12, "int8": 2e12}, 1e9)


def shape(**changes: object) -> Shape:
    sizes: dict[str, object] = {
        "precision": "bfloat16",
        "step_bytes": 100_000_000,
        "resident_bytes": 120_000_000,
        "prompt_operations": 10**9,
        "decode_operations": 2 * 10**9,
        "attention": (AttentionShape(pair_operations=10**6, kv_bytes=1000),),
    }
    return Shape(**(sizes | changes))  # type: ignore[arg-type]


LIMITS = Limits(shape(), MACHINE)


def test_one_stream_reads_all_weights_for_each_token() -> None:
    assert LIMITS.decode_tokens_per_s() == pytest.approx(10)


@pytest.mark.parametrize(("rows", "seconds"), [(1, 0.1), (50, 0.1), (100, 0.2)])
def test_a_step_takes_the_longer_of_reading_and_multiplying(rows: int, seconds: float) -> None:
    assert LIMITS.step_s(rows) == pytest.approx(seconds)


def test_more_rows_read_more_experts() -> None:
    """Half of the experts are at work for a row, so that two rows read three quarters of them."""
    mixture = Limits(shape(step_bytes=100_000_000, expert_bytes=120_000_000, expert_share=0.5), MACHINE)
    assert mixture.step_s(1) == pytest.approx(0.1)
    assert mixture.step_s(2) == pytest.approx(0.13)


def test_a_prompt_is_multiplied_and_attends_to_itself() -> None:
    tokens = 1000
    assert LIMITS.first_token_s(tokens) == pytest.approx((tokens * 1e9 + tokens**2 / 2 * 1e6) / 1e12)


def test_a_short_prompt_reads_the_weights_all_the_same() -> None:
    assert LIMITS.first_token_s(1) == pytest.approx(0.1)


def test_integers_multiply_at_their_own_rate_and_attention_does_not() -> None:
    tokens = 1000
    limits = Limits(shape(precision="int8"), MACHINE)
    assert limits.first_token_s(tokens) == pytest.approx(tokens * 1e9 / 2e12 + tokens**2 / 2 * 1e6 / 1e12)


def test_streams_compute_their_prompts_and_then_a_token_of_each_per_step() -> None:
    seconds = LIMITS.prompts_s(4, 100) + 9 * LIMITS.step_s(4, 105)
    assert LIMITS.tokens_per_s(4, 100, 10) == pytest.approx(4 * 10 / seconds)


def test_a_shared_prefix_is_computed_once() -> None:
    shared, own = LIMITS.prompts_s(1, 1000), LIMITS.prompts_s(6, 50, cached=1000)
    assert LIMITS.shared_prefix_s(6, 2, 1000, 50, 5) == pytest.approx(shared + own + 3 * 4 * LIMITS.step_s(2, 1052))
    assert LIMITS.shared_prefix_s(6, 2, 1000, 50, 5) < 6 * shared


def test_memory_is_weights_and_keys_and_values() -> None:
    assert LIMITS.memory_bytes(8, 1024) == 120_000_000 + 8192 * 1000


def test_layers_with_a_window_keep_and_see_its_positions() -> None:
    """Half of the layers see the last 100 positions: of 1,000 tokens, and of one after 250 or after 60."""
    layers = tuple(AttentionShape(window=window, pair_operations=10**6, kv_bytes=500) for window in (0, 100))
    limits = Limits(shape(attention=layers), MACHINE)
    assert limits.memory_bytes(8, 1024) == 120_000_000 + 8 * (1024 + 100) * 500
    assert limits.step_s(2, 250) == pytest.approx((100_000_000 + 2 * 350 * 500) / 1e9)
    assert limits.step_s(2, 60) == pytest.approx((100_000_000 + 2 * 60 * 1000) / 1e9)
    pairs = 1000**2 / 2 + (100**2 / 2 + 900 * 100)
    assert limits.first_token_s(1000) == pytest.approx((1000 * 1e9 + pairs * 1e6) / 1e12)
    after = 50 * (1000 + 25) + 50 * 100
    assert limits.prompts_s(1, 50, cached=1000) == pytest.approx(max(0.1, (50 * 1e9 + after * 1e6) / 1e12))


def test_each_sequence_reads_and_keeps_its_state() -> None:
    limits = Limits(shape(state_bytes=10_000_000), MACHINE)
    assert limits.step_s(1) == pytest.approx(0.11)
    assert limits.step_s(8) == pytest.approx(0.18)
    assert limits.memory_bytes(8, 0) == 200_000_000


@pytest.mark.parametrize(
    ("precision", "one_stream", "first_512", "eight", "many"),
    [("bfloat16", 19, 0.98, 115, 231), ("int8", 37.4, 0.49, 227, 460), ("int4", 57, 0.49, 305, 460)],
)
def test_the_one_billion_shape_on_a_known_machine(
    precision: Precision, one_stream: float, first_512: float, eight: float, many: float
) -> None:
    """Worked out by hand: 1.236 billion parameters, of which 0.973 multiply every token of a prompt; 32 KiB of keys and
    values for each of 192 tokens in the middle of a stream."""
    described = ModelDescription(
        source=Source("a model", folder=None),  # type: ignore[arg-type]
        spec=read_spec(SHAPES["llama-3.2-1b"]),
        stored_dtype="bfloat16",
        eos_token_ids=(),
        bos_token_id=None,
    )
    limits = Limits(shape_of(described, precision), Machine(47e9, {"bfloat16": 1.02e12, "int8": 2.04e12}, 47e9))
    assert limits.decode_tokens_per_s() == pytest.approx(one_stream, rel=0.02)
    assert limits.first_token_s(512) == pytest.approx(first_512, rel=0.05)
    assert limits.tokens_per_s(8, 128, 128) == pytest.approx(eight, rel=0.02)
    assert limits.tokens_per_s(32, 128, 128) == pytest.approx(many, rel=0.02)
