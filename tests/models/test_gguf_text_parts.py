"""Text parts of models with images, as llama.cpp's converter writes them, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_cases import Case, Config, check_logits, interleave, write_case
from gguf_files import Weights
from small_models import VARIANTS

from dragoman.core.errors import ModelError
from dragoman.models import ModelSettings, load
from dragoman.models.gguf.text_parts import TEXT_PARTS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def flat(name: str, **changes: Any) -> Config:
    """A config whose text part is repeated outside it: what writes files looks for it there."""
    text = VARIANTS[name]["text_config"] | changes
    outside = {key: value for key, value in text.items() if key not in ("model_type", "tie_word_embeddings")}
    return outside | VARIANTS[name] | {"text_config": text}


def describe_paddle_ocr(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_rope_dimension_sections([4, 4, 4, 0])


def describe_hunyuan_vl(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_layer_norm_rms_eps(config.text_config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_scaling_alpha(50.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1.0)
    writer.add_rope_scaling_orig_ctx_len(256)
    writer.add_rope_dimension_sections([3, 3, 3, 3])


def describe_muse_glimmer(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_layer_norm_rms_eps(config.text_config.rms_norm_eps)
    writer.add_final_logit_softcapping(config.text_config.final_logit_softcapping)
    writer.add_logit_scale(config.text_config.output_multiplier)
    writer.add_sliding_window(config.text_config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.text_config.layer_types])


def text_alone(weights: Weights) -> Weights:
    short = {name.replace("model.language_model.", "model.", 1): value for name, value in weights.items()}
    return {
        name: value for name, value in short.items() if name.startswith(("model.layers", "model.embed", "lm_head"))
    } | {"model.norm.weight": short["model.norm.weight"]}


def with_scales(factor: float) -> Any:
    def gather(weights: Weights) -> Weights:
        found = text_alone(weights)
        for layer in range(3):
            found[f"model.layers.{layer}.self_attn.q_norm.weight"] = np.full(24, factor, np.float32)
            found[f"model.layers.{layer}.self_attn.k_norm.weight"] = np.ones(24, np.float32)
        return found

    return gather


def shift_and_interleave(name: str, value: np.ndarray, config: Config) -> np.ndarray:
    return value + 1 if name.endswith("layernorm.weight") else interleave(name, value, config)


MUSE = Case(
    "muse-glimmer",
    flat("muse-glimmer"),
    describe_muse_glimmer,
    shift_and_interleave,
    with_scales(1.5),
    names_of="afmoe",
)
CASES = {
    "paddleocr": Case("paddleocr", flat("paddleocr-vl", use_bias=False), describe_paddle_ocr, gather=text_alone),
    "hunyuan_vl": Case("hunyuan_vl", flat("hunyuan-vl"), describe_hunyuan_vl, gather=text_alone),
    "muse-glimmer": MUSE,
}


def test_every_architecture_has_a_case() -> None:
    assert {case.arch for case in CASES.values()} == set(TEXT_PARTS)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    check_logits(case, tmp_path)


def test_norms_of_heads_that_are_no_factor_are_refused(tmp_path: Path) -> None:
    def gather(weights: Weights) -> Weights:
        found = with_scales(1.5)(weights)
        found["model.layers.1.self_attn.q_norm.weight"][3] = 1.25
        return found

    case = Case("muse-glimmer", MUSE.config, describe_muse_glimmer, shift_and_interleave, gather, names_of="afmoe")
    with pytest.raises(ModelError, match=r"blk\.1\.attn_q_norm.* is not 1\.5 throughout"):
        load(write_case(case, tmp_path)[1], ModelSettings(max_context=64))


def test_a_cap_must_be_there(tmp_path: Path) -> None:
    def describe(writer: gguf.GGUFWriter, config: Any) -> None:
        writer.add_layer_norm_rms_eps(1e-5)

    case = Case("muse-glimmer", MUSE.config, describe, shift_and_interleave, with_scales(1.5), names_of="afmoe")
    with pytest.raises(ModelError, match=r"final_logit_softcapping.*is missing"):
        load(write_case(case, tmp_path)[1], ModelSettings(max_context=64))
