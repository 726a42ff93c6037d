"""``dragoman doctor`` finds what is wrong with a model's files, and says what would be loaded of good ones."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_command import run_forked

from dragoman.cli import checkpoint_lint, comparison
from dragoman.cli.app import cli
from dragoman.cli.checkpoint_lint import Examination, examine
from dragoman.cli.comparison import compare, has_witness
from dragoman.cli.transformers_reference import class_of_decoder
from dragoman.models import ModelSettings, embedded_path, generation_config


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model, to be damaged."""
    return Path(shutil.copytree(embedded_path(), tmp_path / "model"))


def change(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def warnings_of(found: Examination) -> list[str]:
    return [problem.text for problem in found.problems if problem.severity == "warning"]


def test_a_good_model_has_nothing_wrong() -> None:
    found = examine(None, ModelSettings())
    assert found.can_be_served
    assert not found.problems
    assert found.chapters["model"]["architecture"] == "LlamaForCausalLM"
    assert found.chapters["files"]["weights"].startswith("1 file, ")
    assert "<|im_end|>" in found.chapters["tokens"]["ends a text"]
    assert "hermes" in found.chapters["chats"]["tool calls"]


def test_what_would_be_loaded_follows_the_settings() -> None:
    assert "int4" in examine(None, ModelSettings(precision="int4")).chapters["as served"]["precision"]


def test_lists_of_ends_that_contradict_each_other(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=[0])
    change(folder / "config.json", eos_token_id=[2, 0])
    [warning] = warnings_of(examine(str(folder), ModelSettings()))
    assert "name different tokens that end a text" in warning


def test_no_end_at_all(folder: Path) -> None:
    for name in ("generation_config.json", "config.json"):
        change(folder / name, eos_token_id=None)
    change(folder / "tokenizer_config.json", eos_token=None)
    assert any("goes on until its length" in text for text in warnings_of(examine(str(folder), ModelSettings())))


def test_a_template_whose_turns_end_no_text(folder: Path) -> None:
    for name in ("generation_config.json", "config.json"):
        change(folder / name, eos_token_id=0)
    change(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    [warning] = warnings_of(examine(str(folder), ModelSettings()))
    assert "'<|im_end|>' (2), which ends no text" in warning


def test_a_template_that_is_missing_or_fails(folder: Path) -> None:
    file = folder / "tokenizer_config.json"
    change(file, chat_template="{{ raise_exception('only tools here') }}")
    assert any("only tools here" in text for text in warnings_of(examine(str(folder), ModelSettings())))
    change(file, chat_template=None)
    assert any("no chat template" in text for text in warnings_of(examine(str(folder), ModelSettings())))


def test_a_vocabulary_that_is_too_small(folder: Path) -> None:
    tokens = json.loads((folder / "tokenizer.json").read_text())
    tokens["added_tokens"].append({**tokens["added_tokens"][-1], "id": 5000, "content": "<|more|>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    assert any("ids up to" in text for text in warnings_of(examine(str(folder), ModelSettings())))


def test_a_dtype_that_is_not_that_of_the_weights(folder: Path) -> None:
    change(folder / "config.json", dtype="float32", torch_dtype=None)
    [warning] = warnings_of(examine(str(folder), ModelSettings()))
    assert "the config says float32, most weights are bfloat16" in warning


def test_what_stands_in_the_way_is_an_error_in_the_loader_s_words(folder: Path) -> None:
    change(folder / "config.json", num_hidden_layers=7)
    found = examine(str(folder), ModelSettings())
    assert not found.can_be_served
    [error] = [problem.text for problem in found.problems if problem.severity == "error"]
    assert "is missing" in error
    assert "chats" in found.chapters, "what can be looked at is looked at all the same"


def test_what_the_generation_config_recommends_is_shown(folder: Path) -> None:
    change(folder / "generation_config.json", temperature=0.6, top_p=None, min_p=None, max_new_tokens=2048)
    found = examine(str(folder), ModelSettings())
    assert found.chapters["sampling"] == {"recommended": "temperature=0.6", "not applied": "max_new_tokens"}
    assert any("recommends max_new_tokens 2048, which is not applied" in text for text in warnings_of(found))
    found = examine(str(folder), ModelSettings(generation_config="none"))
    assert found.chapters["sampling"] == {"recommended": "not read (--generation-config none)"}


def test_a_recommendation_that_cannot_be_is_an_error(folder: Path) -> None:
    change(folder / "generation_config.json", top_p=2)
    found = examine(str(folder), ModelSettings())
    [error] = [problem.text for problem in found.problems if problem.severity == "error"]
    assert "generation_config.json: top_p 2 is not from 0 to 1; --generation-config none ignores the file" in error
    found = examine(str(folder), ModelSettings(generation_config="none"))
    assert not any("top_p" in problem.text for problem in found.problems)


@pytest.mark.parametrize("name", ["--chat-template", "--generation-config"])
def test_options_that_it_names_exist(name: str) -> None:
    """Of ``dragoman serve``, whose words the findings are about."""
    assert name in {option.flag for option in cli.commands["serve"]}
    sources = (Path(checkpoint_lint.__file__).read_text(), Path(generation_config.__file__).read_text())
    named = {flag for text in sources for flag in re.findall(r"--[a-z-]+[a-z]", text)}
    assert named <= {option.flag for option in cli.commands["serve"]}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DRAGOMAN_CONFIG": os.devnull, "COLUMNS": "200"}
    return run_forked("doctor", *arguments, environment=environment)


def test_the_command(folder: Path) -> None:
    done = run(str(folder), "--no-compare")
    assert done.returncode == 0, done.stderr
    assert "nothing is missing or contradictory" in done.stdout
    (folder / "tokenizer.json").write_text("{")
    done = run(str(folder), "--no-compare", "--format", "json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert answer["can_be_served"] is False
    assert "tokenizer.json" in answer["problems"][0]["text"]


def test_no_such_model() -> None:
    done = run("/nowhere/at/all", "--no-compare")
    assert done.returncode == 1
    assert "/nowhere/at/all" in done.stdout


@pytest.fixture(scope="module")
def witness() -> Callable[..., Any]:
    """What transformers answers about the embedded model. It takes seconds to start: it is asked once."""
    ask, answers = comparison._ask_witness, list[Any]()

    def asked(*about: Any, **options: Any) -> Any:
        if not answers:
            answers.append(ask(*about, **options))
        return copy.deepcopy(answers[0])

    return asked


@pytest.mark.skipif(not has_witness(), reason="transformers is not installed")
def test_beside_transformers(folder: Path, witness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "_ask_witness", witness)
    found = compare(examine(str(folder), ModelSettings()))
    assert not found.differs
    assert set(found.rows) == {"token ids", "chats", "logits"}
    assert "same at 48 of 48" in found.rows["logits"]


@pytest.mark.skipif(not has_witness(), reason="transformers is not installed")
@pytest.mark.thorough
def test_an_encoder_decoder_beside_transformers(folder: Path) -> None:
    import transformers

    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).unlink()
    sizes: dict[str, Any] = {"vocab_size": 4096, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    special = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}
    transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **special)).save_pretrained(folder)
    examined = examine(str(folder), ModelSettings())
    assert "encoder" in examined.chapters["model"]
    found = compare(examined)
    assert not found.differs
    assert "same at 16 of 16" in found.rows["logits"]


@pytest.mark.skipif(not has_witness(), reason="transformers is not installed")
@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("LlamaForCausalLM", "AutoModelForCausalLM"),
        ("LlavaForConditionalGeneration", "AutoModelForImageTextToText"),
        ("IdeficsForVisionText2Text", "AutoModelForImageTextToText"),
        ("VoxtralForConditionalGeneration", "VoxtralForConditionalGeneration"),
    ],
)
def test_transformers_loads_all_of_a_decoder(architecture: str, kind: str, tmp_path: Path) -> None:
    model_type = architecture.partition("For")[0].lower()
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture], "model_type": model_type}))
    assert class_of_decoder(str(tmp_path), {}).__name__ == kind


@pytest.mark.skipif(not has_witness(), reason="transformers is not installed")
@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["llava", "idefics"])
def test_the_decoder_of_a_model_that_sees_beside_transformers(kind: str, folder: Path) -> None:
    import transformers

    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).unlink()
    text = {"vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    tower = {"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28}
    tower |= {"patch_size": 14, "hidden_size": 32, "embed_dim": 32}
    config: dict[str, Any] = {"vision_config": tower, "image_token_id": 3, "tie_word_embeddings": False}
    if kind == "llava":
        config |= {"text_config": text | {"model_type": "llama"}, "image_token_index": 3}
        config["vision_config"] |= {"model_type": "clip_vision_model"}
    else:
        config |= text | {"additional_vocab_size": 0, "cross_layer_interval": 1}
    made = transformers.AutoConfig.for_model(kind, **config)
    transformers.AutoModelForImageTextToText.from_config(made).save_pretrained(folder)
    found = compare(examine(str(folder), ModelSettings()))
    assert not found.differs
    assert "same at 48 of 48" in found.rows["logits"]


@pytest.mark.skipif(not has_witness(), reason="transformers is not installed")
def test_a_difference_is_told(folder: Path, witness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    examined = examine(str(folder), ModelSettings())

    def changed(*asked: Any, **options: Any) -> Any:
        answer = witness(*asked, **options)
        answer["logits"][3][7] += 1e3
        answer["token_ids"][0][0] += 1
        return answer

    monkeypatch.setattr(comparison, "_ask_witness", changed)
    found = compare(examined)
    assert found.differs
    assert "more than rounding explains" in found.rows["logits"]
    assert "differ for" in found.rows["token ids"]


def test_kernels_are_tested_instead_of_a_model() -> None:
    done = run("--kernels", "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["passed"] is True
    assert {"processor", "processors", "system", "threads", "kernels", "dragoman"} == answer["machine"].keys()
