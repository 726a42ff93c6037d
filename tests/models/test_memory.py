"""The plan: numbers that add up, a context that fits, and a refusal with the numbers when nothing does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from small_models import make_models

from dragoman.core.errors import ModelError
from dragoman.models import MemoryPlan, ModelDescription, ModelSettings, cgroups, plan
from dragoman.models.families import read_spec
from dragoman.models.kv_groups import BLOCK_TOKENS
from dragoman.models.memory import available_memory
from dragoman.models.parameters import parameter_count
from dragoman.models.settings import PRECISIONS
from dragoman.models.source import Source

GIB = 2**30


def described(name: str) -> ModelDescription:
    """A published shape, without a file on disk."""
    return ModelDescription(
        source=Source(name, folder=None),  # type: ignore[arg-type]
        spec=read_spec(make_models.SHAPES[name]),
        stored_dtype="bfloat16",
        eos_token_ids=(0,),
        bos_token_id=None,
    )


def plan_1b(available: float, **settings: object) -> MemoryPlan:
    asked = msgspec.convert(settings, ModelSettings)
    return plan(described("llama-3.2-1b"), asked, available_bytes=int(available * GIB))


def test_weights_of_a_known_shape() -> None:
    """1,235,814,400 parameters, 67,584 of them in norms; a scale of two bytes for 128 at int8, for 32 at int4."""
    table, norms = 128256 * 2048, 33 * 2048
    finer = table + 2 * 8192 * 2048  # the first layer's and the last's feed-forward output
    matrices = parameter_count(described("llama-3.2-1b").spec) - norms
    assert matrices + norms == 1_235_814_400
    expected = {
        "float32": 4 * matrices,
        "bfloat16": 2 * matrices,
        "int8": matrices * 130 // 128,
        "int4": (matrices - finer) * 18 // 32 + finer * 130 // 128,
    }
    for precision in PRECISIONS:
        found = plan_1b(24, precision=precision)
        assert found.weight_bytes == expected[precision] + 4 * norms
        assert found.bytes_per_decoded_token == found.weight_bytes  # the table is the output projection too
        assert found.kv_bytes_per_token == 2 * 16 * 8 * 64 * (4 if precision == "float32" else 2)


@pytest.mark.parametrize(
    ("kv_precision", "numbers"), [("float32", 4 * 64), ("bfloat16", 2 * 64), ("int8", 64 + 4), ("int4", 32 + 4 + 1)]
)
def test_keys_and_values_have_a_precision_of_their_own(kv_precision: str, numbers: int) -> None:
    found = plan_1b(24, precision="int4", kv_precision=kv_precision)
    assert found.kv_precision == kv_precision
    assert found.kv_bytes_per_token == 2 * 16 * 8 * numbers


def test_of_experts_only_the_chosen_are_read() -> None:
    """Two of eight: a quarter of their weights, beside everything else. Routers are float32 at any precision, and
    filled up to 32 rows."""
    config = make_models.SHAPES["llama-3.2-1b"] | {"architectures": ["MixtralForCausalLM"], "intermediate_size": 512}
    spec = read_spec(config | {"num_local_experts": 8, "num_experts_per_tok": 2})
    mixture = replace(described("llama-3.2-1b"), spec=spec)
    found = plan(mixture, ModelSettings(precision="int8"), available_bytes=24 * GIB)
    experts = 16 * 8 * 3 * 512 * 2048 * 130 // 128
    assert found.weight_bytes - found.bytes_per_decoded_token == experts * 3 // 4
    dense = plan(
        replace(mixture, spec=replace(spec, experts=None, feed_forward=8 * 512)), ModelSettings(precision="int8")
    )
    assert found.weight_bytes == dense.weight_bytes + 4 * 16 * 32 * 2048


def test_a_table_of_which_rows_are_read_stays_in_its_file() -> None:
    """Gemma 3n E2B at int8: of 5.5 GB of weights 2 GB are inputs of layers. They are in memory only while packed."""
    config = {"architectures": ["Gemma3nForCausalLM"], "intermediate_size": 8192, "num_hidden_layers": 30}
    model = replace(described("llama-3.2-1b"), spec=read_spec(config))
    settings = ModelSettings(precision="int8", max_context=4096)
    table = 262_144 * 30 * 256 * 130 // 128
    found = plan(model, settings, available_bytes=24 * GIB)
    assert found.mapped_bytes == table
    assert found.resident_bytes == found.weight_bytes - table
    whole = plan(model, msgspec.structs.replace(settings, weights_memory="copy"), available_bytes=24 * GIB)
    assert (whole.mapped_bytes, whole.resident_bytes) == (0, whole.weight_bytes)
    assert whole.total_bytes == found.total_bytes + table
    assert found.loading_bytes == whole.loading_bytes + table
    assert plan(model, msgspec.structs.replace(settings, cache_bytes=1 << 30), available_bytes=24 * GIB) == whole
    # Packing takes the whole table, however little of it is read later. A tenth stays free.
    needed = (found.weight_bytes + whole.loading_bytes) * 10 // 9
    assert plan(model, settings, available_bytes=needed + 10).refusal is None
    refused = plan(model, settings, available_bytes=needed - 10)
    assert "does not fit in memory" in str(refused.refusal)
    assert refused.concurrency >= 1


def test_bandwidth_gives_the_expected_speed() -> None:
    found = plan_1b(24, precision="int8")
    assert found.tokens_per_second(2 * found.weight_bytes) == 2.0


def test_plenty_of_memory_gives_the_whole_context_and_room_for_many() -> None:
    found = plan_1b(64)
    assert found.refusal is None
    assert found.context_tokens == 131072
    assert found.concurrency >= 1
    assert found.kv_bytes <= 8 * GIB


def test_context_is_shortened_to_what_fits_unless_it_was_asked_for() -> None:
    found = plan_1b(4)
    assert found.refusal is None
    assert 1024 <= found.context_tokens < 131072
    assert found.concurrency >= 1
    refusal = plan_1b(4, max_context=131072).refusal
    assert refusal is not None
    assert "llama-3.2-1b at bfloat16 does not fit in memory: it needs" in refusal
    assert "weights 2.30 GiB, keys and values 4.00 GiB for 131072 tokens" in refusal
    assert "4.00 GiB is available" in refusal


def test_what_does_not_fit_is_refused() -> None:
    too_small = plan_1b(2)
    assert too_small.refusal is not None
    with pytest.raises(ModelError, match=r"does not fit in memory.*2\.00 GiB is available"):
        too_small.require_fit()
    plan_1b(2, precision="int4").require_fit()


def test_a_model_that_was_in_memory_may_take_what_a_first_start_leaves_free() -> None:
    first = plan_1b(4)
    asked = ModelSettings(max_context=first.context_tokens)
    sizes = {"available_bytes": int(3.9 * GIB)}  # the server has grown
    assert plan(described("llama-3.2-1b"), asked, **sizes).refusal is not None
    again = plan(described("llama-3.2-1b"), asked, is_restart=True, **sizes)
    assert (again.refusal, again.context_tokens, again.reserve_bytes) == (None, first.context_tokens, 0)
    assert again.total_bytes < again.available_bytes


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ModelError, match="this model allows 1 to 131072 tokens"):
        plan_1b(24, max_context=131073)
    with pytest.raises(ModelError, match="cannot hold one context of 4096 tokens"):
        plan_1b(24, max_context=4096, kv_bytes=1 << 20)
    with pytest.raises(ModelError, match="precision 'int3' is not known"):
        plan(described("tiny"), ModelSettings(precision="int3"))  # type: ignore[arg-type]


def test_adapters_get_what_keys_and_values_leave() -> None:
    bare = plan_1b(24, max_context=4096, kv_bytes=GIB)
    assert bare.first_adapters_bytes == 0
    assert bare.total_bytes + bare.adapter_room_bytes < 24 * GIB
    assert plan_1b(24, max_context=4096, kv_bytes=2 * GIB).adapter_room_bytes == bare.adapter_room_bytes - GIB
    assert plan_1b(24, max_context=4096, kv_bytes=GIB, adapter_bytes=1000).adapter_room_bytes == 1000
    assert plan_1b(24, max_context=4096, kv_bytes=GIB, max_adapters=0).adapter_room_bytes == 0


def test_adapters_of_the_start_are_counted_and_refused_where_they_do_not_fit() -> None:
    model, asked = described("llama-3.2-1b"), ModelSettings(kv_bytes=GIB, adapter_bytes=1 << 20)
    bare, some = (plan(model, asked, available_bytes=24 * GIB, first_adapters_bytes=size) for size in (0, 1 << 20))
    assert some.total_bytes == bare.total_bytes + (1 << 20)
    assert (some.kv_bytes, some.refusal) == (bare.kv_bytes, None)
    more = plan(model, asked, available_bytes=24 * GIB, first_adapters_bytes=3 << 20)
    assert more.refusal is not None
    assert "they need 3.0 MiB, and 1.0 MiB are left" in more.refusal


def test_asked_kv_memory_is_what_is_taken() -> None:
    found = plan_1b(24, kv_bytes=GIB)
    assert found.kv_bytes == GIB
    assert found.context_tokens == 32768


@given(
    name=st.sampled_from(["qwen2.5-0.5b", "llama-3.2-1b", "tiny"]),
    precision=st.sampled_from(PRECISIONS),
    available=st.integers(1 << 20, 64 * GIB),
    max_sequences=st.integers(1, 256),
    max_context=st.none() | st.integers(1, 4096),
)
def test_a_plan_that_fits_keeps_its_promises(
    name: str, precision: str, available: int, max_sequences: int, max_context: int | None
) -> None:
    asked = {"precision": precision, "max_sequences": max_sequences, "max_context": max_context}
    found = plan(described(name), msgspec.convert(asked, ModelSettings), available_bytes=available)
    if found.refusal is None:
        assert found.total_bytes < available
        assert found.weight_bytes + found.loading_bytes < available
        assert found.kv_blocks * BLOCK_TOKENS >= found.context_tokens >= 1
        assert max_context is None or found.context_tokens == max_context
    else:
        assert "does not fit in memory" in found.refusal


def test_available_memory_is_a_plausible_number() -> None:
    assert 64 << 20 < available_memory() < 1 << 50


def place_in_cgroups(folder: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str]) -> None:
    """Have this process be in the groups that ``membership`` names, of a tree that has these files."""
    for name, content in files.items():
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (folder / "membership").write_text(membership)
    monkeypatch.setattr(cgroups, "ROOT", folder / "tree")
    monkeypatch.setattr(cgroups, "MEMBERSHIP", folder / "membership")


def test_available_memory_respects_the_limits_of_all_groups_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "memory.current": "1",
        "pod/memory.max": "30000000",
        "pod/memory.current": "25000000",
        "pod/memory.stat": "anon 20000000\ninactive_file 4000000\n",
        "pod/service/memory.max": "max",
        "pod/service/memory.current": "1000",
    }
    place_in_cgroups(tmp_path, monkeypatch, "0::/pod/service\n", files)
    assert available_memory() == 9_000_000
    place_in_cgroups(tmp_path, monkeypatch, "0::/pod/service\n", {"pod/service/memory.max": "5000"})
    assert available_memory() == 4000
    place_in_cgroups(tmp_path, monkeypatch, "0::/\n", {})
    assert available_memory() > 64 << 20


def test_available_memory_knows_groups_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "1",
        "memory/unit/memory.limit_in_bytes": "600000000",
        "memory/unit/memory.usage_in_bytes": "100000000",
        "memory/unit/memory.stat": "total_inactive_file 1000\n",
    }
    place_in_cgroups(tmp_path, monkeypatch, "4:memory:/unit\n1:cpu:/\n0::/\n", files)
    assert available_memory() == 500_001_000


def test_files_that_were_read_more_than_once_are_dropped_before_a_process_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart: the packed weights are in the cache, and the system takes them for in use."""
    statistics = "anon 100\nfile 800\nactive_file 700\ninactive_file 60\nshmem 40\nslab_reclaimable 30\n"
    files = {"memory.max": "1000", "memory.current": "930", "memory.stat": statistics}
    place_in_cgroups(tmp_path / "second", monkeypatch, "0::/\n", files)
    assert available_memory() == 1000 - 930 + 790
    statistics = "total_active_file 700\ntotal_inactive_file 60\nactive_file 1\n"
    files = {"limit_in_bytes": "1000", "usage_in_bytes": "930", "stat": statistics}
    files = {f"memory/memory.{name}": content for name, content in files.items()}
    place_in_cgroups(tmp_path / "first", monkeypatch, "4:memory:/\n", files)
    assert available_memory() == 1000 - 930 + 760


def test_a_group_that_is_slowed_down_beyond_a_limit_is_within_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"memory.high": "3000", "memory.max": "max", "memory.current": "500"}
    place_in_cgroups(tmp_path, monkeypatch, "0::/\n", files)
    assert available_memory() == 2500
    place_in_cgroups(tmp_path, monkeypatch, "0::/\n", {"memory.max": "2000"})
    assert available_memory() == 1500


def test_a_limit_above_that_a_container_does_not_see_is_known_to_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "500",
        "memory/memory.stat": "hierarchical_memory_limit 2000\n",
    }
    place_in_cgroups(tmp_path, monkeypatch, "4:memory:/docker/one\n", files)
    assert available_memory() == 1500


def test_a_limit_counts_where_the_system_does_not_say_what_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place_in_cgroups(tmp_path, monkeypatch, "0::/\n", {"memory.max": "2000"})
    assert available_memory() == 2000


def test_a_container_that_sees_only_its_own_group_is_limited_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"memory.max": "2000", "memory.current": "500"}
    place_in_cgroups(tmp_path, monkeypatch, "0::/kubepods/pod1/container\n", files)
    assert available_memory() == 1500


def with_windows(windows: tuple[int, ...], context: int = 131072) -> ModelDescription:
    description = described("llama-3.2-1b")
    return replace(description, spec=replace(description.spec, windows=windows, context=context))


def test_a_context_beyond_memory_fits_where_every_layer_has_a_window() -> None:
    """4,096 positions and a step of 512, in blocks of 32, and one block for where they begin."""
    found = plan(with_windows((4096,) * 16), ModelSettings(kv_tokens=8192), available_bytes=6 * GIB)
    assert (found.refusal, found.context_tokens, found.concurrency) == (None, 131072, 8192 / (4096 + 512 + 32))
    found = plan(with_windows((4096,) * 16), ModelSettings(kv_tokens=4640 - 32), available_bytes=6 * GIB)
    assert (found.refusal, found.context_tokens, found.concurrency) == (None, 4608, 1)


@pytest.mark.parametrize("windows", [(0,) * 16, (131072,) * 16])
def test_layers_that_see_all_need_the_whole_context(windows: tuple[int, ...]) -> None:
    found = plan(with_windows(windows), ModelSettings(kv_tokens=8192), available_bytes=6 * GIB)
    assert (found.context_tokens, found.concurrency) == (8192, 1)


def test_one_layer_that_sees_all_needs_the_whole_context_and_the_others_a_window() -> None:
    """8,192 tokens in 16 layers are 256 MiB: 4,640 positions in 15 of them, and all others in one."""
    found = plan(with_windows((4096,) * 15 + (0,)), ModelSettings(kv_tokens=8192), available_bytes=6 * GIB)
    assert (found.context_tokens, found.concurrency) == (61472, 1)
    assert [(group.window, len(group.layers), group.blocks) for group in found.groups] == [
        (0, 1, 1921),
        (4096, 15, 145),
    ]
    assert found.kv_bytes == found.sequence_kv_bytes == 8192 * found.kv_bytes_per_token


def test_a_small_budget_is_for_some_short_sequences() -> None:
    """Beside a whole context of 4,096 tokens, 128 blocks of 4 layers and 33 of 12, memory is left for 71 of both:
    too little for one of each of 100 sequences, but enough for 8 sequences of 8 blocks."""
    settings = ModelSettings(kv_tokens=4096, max_context=4096, max_sequences=100)
    found = plan(with_windows((512,) * 12 + (0,) * 4), settings, available_bytes=6 * GIB)
    assert [group.blocks for group in found.groups] == [128 + 71 + 1, 33 + 71]
    assert found.kv_bytes == 4096 * found.kv_bytes_per_token


def gemma_3_1b() -> ModelDescription:
    config = {"architectures": ["Gemma3ForCausalLM"], "hidden_size": 1152, "num_hidden_layers": 26, "head_dim": 256}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 6912, "vocab_size": 262144}
    config |= {"sliding_window": 512, "sliding_window_pattern": 6, "max_position_embeddings": 32768}
    return replace(described("tiny"), spec=read_spec(config))


def test_gemma_3_needs_a_window_for_most_of_its_layers() -> None:
    """22 of 26 layers see 512 positions: 33 blocks hold these and a step of 512."""
    found = plan(gemma_3_1b(), ModelSettings(kv_bytes=151 << 20), available_bytes=24 * GIB)
    assert (found.refusal, found.context_tokens, found.kv_bytes_per_token) == (None, 32768, 26 * 1024)
    assert [(group.window, len(group.layers), group.blocks) for group in found.groups] == [(0, 4, 1026), (512, 22, 33)]
    assert found.sequence_kv_bytes == (4 * 1024 + 22 * 33) << 15
    assert found.concurrency == 1
    whole = plan(gemma_3_1b(), ModelSettings(), available_bytes=64 * GIB)
    assert whole.kv_bytes <= 8 * GIB
    assert int(whole.concurrency) == 52


@given(kv_mib=st.integers(151, 20_000), max_sequences=st.integers(1, 128))
def test_pools_serve_long_texts_and_short_ones(kv_mib: int, max_sequences: int) -> None:
    """Half as many of either as a division made for them would, and all of the memory."""
    settings = ModelSettings(kv_bytes=kv_mib << 20, max_sequences=max_sequences)
    found = plan(gemma_3_1b(), settings, available_bytes=64 * GIB)
    full, sliding = found.groups
    assert 0 <= (kv_mib << 20) - found.kv_bytes < full.bytes_per_block
    assert found.concurrency >= max(1, (kv_mib << 20) // 2 // found.sequence_kv_bytes)
    length = (kv_mib << 20) // (2 * found.kv_bytes_per_token * BLOCK_TOKENS) // max_sequences  # blocks of each text
    if found.concurrency >= 2:  # what the only context takes is not half of the memory
        assert full.blocks >= max_sequences * min(length, 1024)
        assert sliding.blocks >= max_sequences * min(length, 33)


def test_keys_and_values_in_int4_have_own_blocks() -> None:
    """In bfloat16, of all layers: two for each sequence, and twice what one has while its prompt is computed: 512
    tokens that begin within a block, and one more."""
    found = plan_1b(24, kv_precision="int4")
    kept, own = found.groups
    assert (own.own, own.window, own.layers, own.sequence_blocks) == (True, 1, kept.layers, 18)
    assert own.bytes_per_token == plan_1b(24, kv_precision="bfloat16").kv_bytes_per_token
    assert own.blocks == 2 * (ModelSettings().max_sequences + 18)
    assert found.kv_bytes == kept.nbytes + own.nbytes
    assert found.sequence_kv_bytes == 131072 * found.kv_bytes_per_token + 18 * own.bytes_per_block
    windows = plan(gemma_3_1b(), ModelSettings(kv_precision="int4"), available_bytes=24 * GIB)
    assert [(group.window, group.own, len(group.layers)) for group in windows.groups] == [
        (0, False, 4),
        (512, False, 22),
        (1, True, 26),
    ]


def test_a_context_asked_for_in_tokens_has_its_own_blocks_too() -> None:
    found = plan_1b(24, kv_precision="int4", kv_tokens=8192, max_context=8192)
    assert (found.refusal, found.context_tokens, found.concurrency) == (None, 8192, 1)
    assert found.kv_bytes == found.sequence_kv_bytes
    assert plan_1b(24, kv_precision="int4", kv_tokens=8192).context_tokens == 8192
    with pytest.raises(ModelError, match="cannot hold one context of 8192 tokens"):
        plan_1b(24, kv_precision="int4", kv_bytes=found.kv_bytes - 1, max_context=8192)


@given(kv_mib=st.integers(37, 5_000), max_sequences=st.integers(1, 128))
def test_own_blocks_take_a_small_part_of_little_memory(kv_mib: int, max_sequences: int) -> None:
    settings = {"kv_precision": "int4", "kv_bytes": kv_mib << 20, "max_sequences": max_sequences, "max_context": 2048}
    found = plan_1b(24, **settings)
    kept, own = found.groups
    assert found.concurrency >= 1
    assert 0 <= (kv_mib << 20) - found.kv_bytes < kept.bytes_per_block
    assert 18 <= own.blocks <= 2 * (max_sequences + 18)
    assert own.nbytes <= max(found.kv_bytes / 4 + own.bytes_per_block, 18 * own.bytes_per_block)


def hybrid(width: int = 2048, **changes: object) -> ModelDescription:
    """LFM2 1.2B."""
    config = {"architectures": ["Lfm2ForCausalLM"], "hidden_size": width, "num_hidden_layers": 16, "vocab_size": 65536}
    config |= {"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288}
    config |= {"full_attn_idxs": [2, 5, 8, 10, 12, 14], "tie_word_embeddings": True}
    return replace(described("tiny"), spec=read_spec(config | changes))


def test_states_of_recurrent_layers_are_counted() -> None:
    found = plan(hybrid(), ModelSettings(max_context=4096), available_bytes=24 * GIB)
    one = 10 * 2 * 2048 * 4
    assert found.bytes_per_state == one
    assert found.state_slots == 64 + 12 + 64
    assert found.kv_bytes_per_token == 2 * 6 * 8 * 64 * 2  # of the layers with attention alone
    rest = found.weight_bytes + found.table_bytes + found.activation_bytes + found.kv_bytes
    assert found.total_bytes == rest + 140 * one
    few = plan(hybrid(), ModelSettings(max_context=4096, state_bytes=10 * one + 1), available_bytes=24 * GIB)
    assert few.state_slots == 10
    with pytest.raises(ModelError, match="for states cannot hold one, which takes"):
        plan(hybrid(), ModelSettings(state_bytes=100), available_bytes=24 * GIB)


def zamba(layers: tuple[int, ...], blocks: int = 2) -> MemoryPlan:
    """Zamba 2 1.2B with blocks in these layers."""
    config = {
        "architectures": ["Zamba2ForCausalLM"],
        "hidden_size": 2048,
        "num_hidden_layers": 38,
        "mamba_d_state": 128,
    }
    config |= {"n_mamba_heads": 64, "num_mem_blocks": blocks, "max_position_embeddings": 4096}
    config |= {"layers_block_type": ["hybrid" if layer in layers else "mamba" for layer in range(38)]}
    return plan(replace(described("tiny"), spec=read_spec(config)), ModelSettings(precision="bfloat16"))


def test_shared_blocks_are_in_memory_once_and_read_once_for_each_layer() -> None:
    few, more = zamba((5, 11)), zamba((5, 11, 17, 23))
    assert (few.kv_bytes_per_token, more.kv_bytes_per_token) == (2 * 2 * 2 * 4096, 4 * 2 * 2 * 4096)
    low_rank, result = 2 * 128 * (2048 + 2 * 8192), 2 * 2048 * 2048
    assert more.weight_bytes - few.weight_bytes == 2 * (low_rank + result), "what each layer has of its own"
    block = 2 * (3 * 4096 * 4096 + 2048 * 4096 + 3 * 8192 * 2048) + 4 * (4096 + 2048)
    assert more.bytes_per_decoded_token - few.bytes_per_decoded_token == 2 * (low_rank + result + block)
    one = zamba((5, 11), blocks=1)
    assert few.weight_bytes - one.weight_bytes == block
    assert few.bytes_per_decoded_token == one.bytes_per_decoded_token


def recurrent(**changes: object) -> ModelDescription:
    """Mamba 2.8B."""
    config = {"architectures": ["MambaForCausalLM"], "hidden_size": 2560, "num_hidden_layers": 64, "vocab_size": 50280}
    return replace(described("tiny"), spec=read_spec(config | changes))


def test_a_model_without_attention_has_states_and_blocks_that_take_no_memory() -> None:
    found = plan(recurrent(), ModelSettings(), available_bytes=24 * GIB)
    assert (found.refusal, found.context_tokens) == (None, 1 << 20)
    assert (found.kv_bytes_per_token, found.kv_bytes, found.kv_blocks) == (0, 0, 1 << 17)
    assert found.bytes_per_state == 64 * 4 * (3 * 5120 + 16 * 5120)
    assert found.state_slots == 64 + 12 + 64
    rest = found.weight_bytes + found.activation_bytes
    assert found.total_bytes == rest + found.state_bytes
    asked = ModelSettings(max_context=4096, kv_tokens=10_000)
    assert plan(recurrent(), asked, available_bytes=24 * GIB).kv_blocks == 313
    less = plan(recurrent(), ModelSettings(kv_tokens=10_000), available_bytes=24 * GIB)
    assert (less.context_tokens, less.kv_blocks) == (313 * 32, 313), "as of other models: the context that they hold"
    with pytest.raises(ModelError, match="blocks for 1000 tokens cannot hold one context of 4096 tokens"):
        plan(recurrent(), ModelSettings(max_context=4096, kv_tokens=1000), available_bytes=24 * GIB)
    assert "does not fit in memory" in str(plan(recurrent(), ModelSettings(), available_bytes=GIB).refusal)


def test_a_state_beyond_all_memory_is_refused() -> None:
    huge = plan(hybrid(width=1 << 28, num_attention_heads=8192), ModelSettings(), available_bytes=24 * GIB)
    assert huge.state_slots == 1
    with pytest.raises(ModelError, match=r"does not fit in memory.* states [0-9.]+ GiB for 1"):
        huge.require_fit()
