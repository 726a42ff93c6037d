"""Models that see, hear or talk, of which text alone is served: the names of their files, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from small_models import VARIANTS, make_folder, prompt, run_rows
from text_part_variants import WHOLES

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models import describe
from dragoman.models.families import read_spec
from dragoman.models.rope_config import with_scaling

SETTINGS = models.ModelSettings(precision="float32", max_tokens=256, max_logit_rows=256, max_sequences=1)


@pytest.mark.parametrize("name", WHOLES)
def test_whole_omni_models_have_the_numbers_of_the_part_that_thinks(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS[name.removesuffix("-whole")])
    ids = prompt(131)
    expected = run_rows(models.load(folder, SETTINGS), ids)
    [file] = folder.glob("*.safetensors")
    others = dict.fromkeys(("talker.model.norm.weight", "token2wav.a.weight", "code2wav.b.weight"), np.ones(4))
    names = {name: name.removeprefix("thinker.").replace("model.language_model.", "model.") for name in load_file(file)}
    thinker = {f"thinker.{names[name]}": tensor for name, tensor in load_file(file).items()}
    save_file(thinker | others, file)
    (folder / "config.json").write_text(json.dumps(WHOLES[name]))
    assert (run_rows(models.load(folder, SETTINGS), ids) == expected).all()


def test_the_end_of_a_text_may_be_declared_within(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["qwen2-audio"])
    (folder / "generation_config.json").unlink(missing_ok=True)
    text = VARIANTS["qwen2-audio"]["text_config"] | {"eos_token_id": [9, 8], "bos_token_id": 4}
    config = VARIANTS["qwen2-audio"] | {"text_config": text, "torch_dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    assert (describe(folder).eos_token_ids, describe(folder).bos_token_id) == ((9, 8), 4)
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    assert describe(folder).eos_token_ids == (7,)


@pytest.mark.parametrize("part", ["thinker_config", "llm_config", "text_config"])
def test_another_scaling_reaches_the_decoder_within(part: str) -> None:
    config = {
        "thinker_config": WHOLES["qwen2.5-omni-whole"],
        "llm_config": {"architectures": ["InternVLChatModel"], "llm_config": VARIANTS["qwen2"]},
        "text_config": VARIANTS["qwen2-audio"],
    }[part]
    plain = read_spec(config)
    scaled = read_spec(with_scaling(config, {"rope_type": "linear", "factor": 2.0}))
    assert scaled.context == 2 * plain.context
    assert scaled.ropes != plain.ropes


def test_configs_leave_out_what_transformers_has_by_default() -> None:
    voxtral = {"architectures": ["VoxtralForConditionalGeneration"], "text_config": {"model_type": "llama"}}
    spec = read_spec(voxtral)
    assert (spec.width, spec.heads, spec.kv_heads, spec.context) == (3072, 32, 8, 131_072)
    onevision = {"architectures": ["LlavaOnevisionForConditionalGeneration"], "text_config": {"vocab_size": 151_936}}
    assert (read_spec(onevision).kv_heads, read_spec(onevision).context) == (32, 32_768)

    muse = read_spec({"architectures": ["MuseGlimmerForConditionalGeneration"], "text_config": {}})
    assert muse.attention_scales == (3.87 * 128**-0.5,) * 52
    assert (muse.output.scale, muse.output.softcap) == (pytest.approx(0.19611613513818404), 20.0)
    assert [layer for layer, window in enumerate(muse.windows) if not window] == list(range(3, 52, 4))
    assert muse.block.out_norm_eps == 1e-8


def test_other_decoders_are_refused_with_the_known_ones() -> None:
    ovis = VARIANTS["ovis2"] | {"text_config": {"model_type": "gemma2"}}
    with pytest.raises(ModelError, match="text_config of model_type 'gemma2' is not supported; known: llama,"):
        read_spec(ovis)
