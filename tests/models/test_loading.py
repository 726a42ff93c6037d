"""Loading: what is refused before anything is read, what a loaded model says of itself, and that it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from small_models import VARIANTS, make_folder, prompt, run_greedy, run_rows

from dragoman import kernels, models
from dragoman.core.errors import ModelError
from dragoman.models import ModelSettings, loading
from dragoman.models.kv_groups import BLOCK_TOKENS
from dragoman.models.layout import packed_bytes
from dragoman.models.parameters import parameter_count
from dragoman.models.settings import PRECISIONS, Precision
from dragoman.models.tensors import BLOCK_PRECISIONS, Format


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"), VARIANTS["llama-tied"], "BF16")


def test_model_too_large_is_refused_before_its_weights_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("weights were opened")

    monkeypatch.setattr(loading, "Checkpoint", read)
    monkeypatch.setattr("dragoman.models.loading.available_memory", lambda: 100_000)
    with pytest.raises(
        ModelError, match=r"llama-BF16 at bfloat16 does not fit in memory: it needs .* 0\.1 MiB is available"
    ):
        models.load(folder)


def test_pickled_model_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "config.json", tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin is a pickle file"):
        models.load(tmp_path)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
def test_keys_and_values_in_the_precision_asked_for(folder: Path, precision: Any) -> None:
    model = models.load(folder, ModelSettings(precision="float32", kv_precision=precision))
    assert model.card.kv_precision == model.kv.precision == precision
    assert model.kv.bytes_per_block == BLOCK_TOKENS * model.plan.kv_bytes_per_token
    assert model.card.fingerprint != models.load(folder, ModelSettings(precision="int8")).card.fingerprint


def test_card_tells_what_other_rooms_need(folder: Path) -> None:
    model = models.load(folder, ModelSettings(precision="int4", name="given", max_context=100))
    card = model.card
    assert (card.name, card.architecture) == ("given", "LlamaForCausalLM")
    assert (card.precision, card.kv_precision) == ("int4", "bfloat16")
    assert (card.context_tokens, model.max_context) == (100, 100)
    assert (card.vocab_size, model.vocab_size) == (160, 160)
    assert (card.eos_token_ids, card.bos_token_id) == ((2,), 1)
    assert card.parameter_count == parameter_count(model.config)
    assert card.weight_bytes == sum(getattr(w, "nbytes", 0) for w in model.weights.values())
    assert card.tokenizer_folder == str(folder)
    assert models.load(folder).card.name == folder.name


def test_loading_tells_how_far_it_is(folder: Path) -> None:
    told: list[tuple[str, float]] = []
    models.load(folder, progress=lambda stage, share: told.append((stage, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    assert sum(stage == "packing" for stage, _ in told) > 5


def test_a_model_with_images_says_what_is_not_loaded(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "text only: multi_modal_projector, vision_model of the files are not loaded"
    with caplog.at_level("INFO", logger="dragoman.models"):
        models.load(folder)
        models.load(make_folder(tmp_path, VARIANTS["mistral3-images"]))  # with its tower
        assert "text only" not in caplog.text
        models.load(make_folder(tmp_path, VARIANTS["llama4-images"]))
    assert said in caplog.messages


def test_a_model_whose_vision_part_is_called_visual_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_folder(tmp_path, VARIANTS["qwen3.5"])  # a config of the text alone
    stored = load_file(folder / "model.safetensors")
    added = {"model.visual.patch_embed.proj.weight": np.ones((4, 4), np.float32)}
    save_file(stored | added, folder / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level("INFO", logger="dragoman.models"):
        models.load(folder)
    assert "text only: visual of the files are not loaded" in caplog.messages


def test_tied_tables_are_one_packed_matrix(folder: Path) -> None:
    assert "head.weight" not in models.load(folder).weights


def fingerprint(folder: Path, **settings: Any) -> str:
    return models.load(folder, ModelSettings(**settings)).card.fingerprint


def test_fingerprint_is_the_same_for_the_same_outputs(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere")
    (copy / "model.safetensors").touch()
    sharded = make_folder(tmp_path, VARIANTS["llama-tied"], "BF16", shard_bytes=30_000)
    expected = fingerprint(folder)
    assert fingerprint(copy, name="other", max_context=64, max_sequences=3, precision="bfloat16") == expected
    assert fingerprint(sharded) == expected


def test_fingerprint_changes_with_everything_that_decides_outputs(folder: Path, tmp_path: Path) -> None:
    seen = [fingerprint(folder, precision=precision) for precision in PRECISIONS]
    seen.append(fingerprint(make_folder(tmp_path / "seed", VARIANTS["llama-tied"], "BF16", seed=9)))
    turned = make_folder(tmp_path / "theta", VARIANTS["llama-tied"] | {"rope_theta": 9999.0}, "BF16")
    seen.append(fingerprint(turned))
    before = kernels.instruction_set()
    try:
        for name in kernels.instruction_sets():
            if name != before:
                kernels.force(name)
                seen.append(fingerprint(folder))
    finally:
        kernels.force(before)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_copied_blocks_continue_as_the_originals_do(precision: Precision, folder: Path) -> None:
    model = models.load(folder, ModelSettings(precision=precision, max_logit_rows=64))
    ids = prompt(160, 50)
    expected = run_rows(model, ids)[40:]
    run_rows(model, ids[:40])  # in the last two blocks
    last = model.num_blocks - 1
    model.copy_blocks(np.array([last, last - 1], np.int32), np.array([0, 1], np.int32))
    run_rows(model, prompt(160, 40, seed=5))  # others are written where the originals were
    assert (run_rows(model, ids[40:], 40, blocks=np.arange(model.num_blocks)) == expected).all()


@pytest.mark.parametrize("name", ["llama", "llama-one-kv-head", "llama-biases"])  # head_dim 16, 10, 24
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_planned_kv_memory_is_the_pools(name: str, precision: Precision, tmp_path: Path) -> None:
    model = models.load(make_folder(tmp_path, VARIANTS[name]), ModelSettings(precision=precision, kv_bytes=1 << 20))
    assert model.kv.bytes_per_block == 32 * model.plan.kv_bytes_per_token
    assert model.kv.nbytes == model.plan.kv_bytes <= 1 << 20


def test_float16_weights_are_served_as_bfloat16(tmp_path: Path) -> None:
    model = models.load(make_folder(tmp_path, VARIANTS["gpt2"], "F16"))
    assert model.card.precision == "bfloat16"
    assert len(run_greedy(model, prompt(131), 8)) == 8


def test_whole_window_is_the_whole_context(tmp_path: Path) -> None:
    """A window as long as the context hides nothing; it is run as no window at all."""
    windowed = make_folder(tmp_path / "a", VARIANTS["mistral"] | {"sliding_window": 256})
    plain = make_folder(tmp_path / "b", VARIANTS["mistral"])
    ids = prompt(131, 60)
    settings = ModelSettings(max_logit_rows=64)
    assert (run_rows(models.load(windowed, settings), ids) == run_rows(models.load(plain, settings), ids)).all()


def test_sizes_beyond_the_kernels_are_refused(tmp_path: Path) -> None:
    huge = VARIANTS["llama"] | {"head_dim": 1026, "num_hidden_layers": 1}
    with pytest.raises(ModelError, match=r"llama-F32: heads of 1026 numbers are not supported"):
        models.load(make_folder(tmp_path, huge))


def test_config_that_asks_for_other_shapes_is_refused_with_the_tensor(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"intermediate_size": 80}))
    with pytest.raises(
        ModelError, match=r"mlp\.gate_proj\.weight: its shape is \[96, 64\], where the config asks for \[80, 64\]"
    ):
        models.load(copy)


@given(outputs=st.integers(1, 200), inputs=st.integers(1, 300), precision=st.sampled_from(PRECISIONS))
def test_planned_size_is_the_packed_size(outputs: int, inputs: int, precision: Precision) -> None:
    assert packed_bytes(outputs, inputs, Format(precision)) == kernels.packed_bytes(outputs, inputs, precision)
    for blocks in BLOCK_PRECISIONS:
        whole = -(-inputs // 256) * 256 if blocks in ("mxfp4", "iq4_nl") else inputs * 256
        whole += 32 * (blocks in ("mxfp4", "iq4_nl"))  # a last chunk of one group
        assert packed_bytes(outputs, whole, Format(blocks)) == kernels.packed_bytes(outputs, whole, blocks)
    wide = packed_bytes(outputs, inputs, Format("int8", wide=True))
    assert wide == kernels.packed_bytes(outputs, inputs, "int8", wide=True)
