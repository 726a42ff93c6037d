"""T5 and its descendants in GGUF, as llama.cpp's converter writes them, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from encoder_decoders import Driven, load_reference, make_folder, reference_logits
from gguf import GGMLQuantizationType as Type
from gguf_files import Weights, write_gguf
from small_models import prompt
from transformers_reference import assert_close

from dragoman import models
from dragoman.core.errors import ModelError

Fill = Callable[[gguf.GGUFWriter], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def describe(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(512)
    writer.add_embedding_length(config["d_model"])
    writer.add_feed_forward_length(config["d_ff"])
    writer.add_block_count(config["num_layers"])
    writer.add_decoder_block_count(config["num_decoder_layers"])
    writer.add_head_count(config["num_heads"])
    writer.add_key_length(config["d_kv"])
    writer.add_value_length(config["d_kv"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
    writer.add_decoder_start_token_id(0)


def written(folder: Path, spoil: Fill = lambda writer: None) -> Path:
    def add(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
        describe(writer, config)
        spoil(writer)

    def without_copies(weights: Weights) -> Weights:
        found = {name: value for name, value in weights.items() if "embed_tokens" not in name}
        if folder.name.startswith("mt5"):  # the published ones have a head of their own
            found.setdefault("lm_head.weight", found["shared.weight"])
        return found

    return write_gguf(folder.parent / "model.gguf", folder, "t5", lambda _: Type.F32, add, gather=without_copies)


@pytest.mark.parametrize("name", ["t5", "t5-gated", "mt5", "umt5"])
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, name)
    settings = models.ModelSettings(max_tokens=64, max_logit_rows=64, max_sequences=2, max_context=192)
    ours, theirs = models.load(written(folder), settings), load_reference(folder)
    inputs, outputs = prompt(131, 150, seed=2), prompt(131, 45, seed=7)
    assert_close(Driven(ours, inputs).rows(outputs), reference_logits(theirs, inputs, outputs), 1e-4)
    assert ours.card.encoder is not None
    assert ours.card.encoder.start_token_id == 0


WRONG: dict[str, tuple[Fill, str]] = {
    "values of another size": (lambda writer: writer.add_value_length(12), r"value_length = 12 is not supported"),
    "no size of a head": (
        lambda writer: writer.kv_data[0].pop("t5.attention.key_length"),
        r"attention.key_length is missing",
    ),
    "too many blocks of a decoder": (
        lambda writer: writer.add_decoder_block_count(2**31 - 1),
        r"decoder_block_count 2147483647 is more than 512",
    ),
    "too many blocks": (lambda writer: writer.add_block_count(513), r"block_count 513 is more than 512"),
    "a start that is no token": (
        lambda writer: writer.add_array("t5.decoder_start_token_id", ["a"]),
        r"decoder_start_token_id must be a positive integer",
    ),
    "fewer buckets than the table has": (
        lambda writer: writer.add_relative_attn_buckets_count(16),
        r"its shape is \[32, 5\], where the config asks for \[16, 5\]",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_by_its_key(name: str, tmp_path: Path) -> None:
    spoil, message = WRONG[name]
    file = written(make_folder(tmp_path, "t5"), spoil)
    with pytest.raises(ModelError, match=message):
        models.load(file)
