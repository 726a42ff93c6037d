"""Adapters that are damaged, hostile, another model's or more than can be done are refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import fake_hub
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file
from small_models import VARIANTS, make_folder, prompt, run_rows

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.models.adapters import patterns
from dragoman.models.adapters.modules import adapter_bytes
from dragoman.models.adapters.patterns import full_matches
from dragoman.models.adapters.source import find_adapter_config
from dragoman.models.model import Model

SETTINGS = models.ModelSettings(precision="float32", max_tokens=64, max_logit_rows=64, max_sequences=4, max_adapters=2)
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
Tensors = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return models.load(make_folder(tmp_path_factory.mktemp("model"), VARIANTS["llama"]), SETTINGS)


def tensors(rank: int = 4, module: str = "q_proj", inputs: int = 64, outputs: int = 64) -> Tensors:
    rng = np.random.default_rng(0)
    return {
        f"base_model.model.model.layers.{layer}.self_attn.{module}.{kind}.weight": rng.normal(size=shape).astype("f4")
        for layer in range(3)
        for kind, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank)))
    }


def write(folder: Path, config: dict[str, Any] | None = None, weights: Tensors | None = None) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG if config is None else config), encoding="utf-8")
    save_file(tensors() if weights is None else weights, folder / "adapter_model.safetensors")
    return str(folder)


def refusal(model: Model, source: str) -> str:
    with pytest.raises(ModelError) as caught:
        model.load_adapter(0, "x", source)
    return str(caught.value)


def test_the_adapter_that_the_others_are_made_from_is_fine(model: Model, tmp_path: Path) -> None:
    info = model.load_adapter(0, "x", write(tmp_path / "a"))
    assert (info.name, info.rank, info.scaling, info.target_modules) == ("x", 4, 2.0, ("q_proj",))
    assert info.source == str(tmp_path / "a")
    assert info.fingerprint != model.card.fingerprint


def test_its_memory_is_known_from_its_config_alone(model: Model, tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "a"))
    (folder / "adapter_model.safetensors").rename(folder / "elsewhere")
    assert adapter_bytes(find_adapter_config(folder), model.config, "float32") == 3 * 4 * 4 * (64 + 64)
    assert adapter_bytes(folder, model.config, "int8") == 3 * 2 * 4 * (64 + 64)
    (folder / "elsewhere").rename(folder / "adapter_model.safetensors")
    assert model.load_adapter(1, "y", str(folder)).nbytes == 3 * 4 * 4 * (64 + 64)


def test_a_config_that_means_nothing_in_the_model_has_no_size(model: Model, tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "a", CONFIG | {"target_modules": ["c_attn"]}))
    with pytest.raises(ModelError, match="match no matrix of LlamaForCausalLM"):
        adapter_bytes(folder, model.config, "float32")


REFUSED_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "peft_type 'IA3'"),
    "no method": ({"peft_type": None}, "peft_type"),
    "another task": ({"task_type": "SEQ_CLS"}, "task_type"),
    "whole modules": ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported .*merge"),
    "biases": ({"bias": "all"}, "bias = 'all'"),
    "biases of adapters": ({"lora_bias": True}, "lora_bias"),
    "changed base weights": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights = 'pissa_niter_4'"),
    "parameters": ({"target_parameters": ["x"]}, "target_parameters"),
    "repeated layers": ({"layer_replication": [[0, 2]]}, "layer_replication"),
    "some tokens' rows": ({"trainable_token_indices": [1]}, "trainable_token_indices"),
    "activation by tokens": ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
    "a field of the future": ({"use_quantum": True}, "use_quantum is not supported"),
    "rank of 0": ({"r": 0}, "r must be a rank from 1"),
    "rank of a billion": ({"r": 10**9}, "r must be a rank from 1"),
    "rank of true": ({"r": True}, "r must be a rank"),
    "rank in words": ({"rank_pattern": {"q_proj": "many"}}, "rank_pattern must be a rank"),
    "alpha in words": ({"lora_alpha": "16"}, "lora_alpha must be a number"),
    "alpha beyond all numbers": ({"lora_alpha": 1e300}, "lora_alpha must be a number"),
    "targets of numbers": ({"target_modules": [1, 2]}, "target_modules must be a list of names or a pattern"),
    "a broken pattern": ({"target_modules": "(q_proj"}, r"target_modules: '\(q_proj' is not a valid pattern"),
    "a pattern without end": ({"target_modules": "q" * 5000}, "too long"),
    "layers in words": ({"layers_to_transform": "all"}, "layers_to_transform"),
    "a pattern of layers": ({"layers_to_transform": [0], "layers_pattern": "(a|b)+"}, "layers_pattern"),
    "DoRA in words": ({"use_dora": "yes"}, "use_dora must be true or false"),
}


@pytest.mark.parametrize(("fields", "said"), REFUSED_FIELDS.values(), ids=REFUSED_FIELDS)
def test_fields_are_refused_by_name(model: Model, fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    message = refusal(model, write(tmp_path / "a", CONFIG | fields))
    assert "adapter_config.json" in message
    with pytest.raises(ModelError, match=said):
        raise ModelError(message)


A = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
# fmt: off
OTHERS: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "another width": (
        lambda t: tensors(inputs=80),
        r"tensor .*lora_A.weight: its shape is \[4, 80\].*\[4, 64\].*another model",
    ),
    "another rank": (lambda t: tensors(rank=8), r"its shape is \[8, 64\].*\[4, 64\]"),
    "other outputs": (lambda t: tensors(outputs=128), r"its shape is \[128, 4\].*\[64, 4\]"),
    "another architecture": (
        lambda t: {name.replace("self_attn.q_proj", "attention.query"): each for name, each in t.items()},
        "LlamaForCausalLM has no matrix model.layers.0.attention.query",
    ),
    "more layers": (lambda t: t | {A.replace("layers.1", "layers.7"): t[A]}, "has no matrix model.layers.7"),
    "one missing": (
        lambda t: {name: each for name, each in t.items() if name != A},
        "layers.1.self_attn.q_proj.lora_A is missing",
    ),
    "a module not meant": (lambda t: t | {A.replace("q_proj", "v_proj"): t[A]}, "does not include .*v_proj"),
    "one twice": (lambda t: t | {A.replace("lora_A", "lora_A.default"): t[A]}, "lora_A of .* is there twice"),
    "integers": (lambda t: t | {A: t[A].astype("i4")}, "its type I32 is not supported"),
    "doubles": (lambda t: t | {A: t[A].astype("f8")}, "its type F64 is not supported"),
    "not a number": (lambda t: t | {A: t[A] * np.float32("nan")}, "not finite"),
    "infinite": (lambda t: t | {A: t[A] * np.float32("inf")}, "not finite"),
    "an embedding": (
        lambda t: t | {"base_model.model.model.embed_tokens.lora_embedding_A": t[A]},
        "changes of the embedding are not supported",
    ),
    "biases": (lambda t: t | {A.replace("lora_A.weight", "lora_B.bias"): t[A][0]}, "is not a LoRA matrix"),
    "lengths without DoRA": (
        lambda t: t | {A.replace("lora_A.weight", "lora_magnitude_vector"): t[A][0]},
        "does not set use_dora",
    ),
    "another output table": (
        lambda t: t | {"base_model.model.lm_head.base_layer.weight": np.zeros((131, 64), "f4")},
        "differs from the model's own table",
    ),
    "nothing": (lambda t: {}, "holds no tensors"),
}
# fmt: on


@pytest.mark.parametrize(("change", "said"), OTHERS.values(), ids=OTHERS)
def test_tensors_are_refused_by_name(
    model: Model, change: Callable[[Tensors], Tensors], said: str, tmp_path: Path
) -> None:
    message = refusal(model, write(tmp_path / "a", weights=change(tensors())))
    assert "adapter_model.safetensors" in message
    with pytest.raises(ModelError, match=said):
        raise ModelError(message)


def test_what_is_no_adapter_is_told_as_what_it_is(tmp_path: Path) -> None:
    def told(source: Path) -> str:
        with pytest.raises(ModelError) as refused:
            models.find_adapter(source)
        return refused.value.message

    write(tmp_path / "runs" / "checkpoint-9")
    assert told(tmp_path / "runs").endswith(f"; is {tmp_path / 'runs' / 'checkpoint-9'} meant?")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "config.json").write_text("{}")
    assert told(tmp_path / "whole").endswith("; it is a whole model, which is served by itself")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert "adapters are not read from GGUF files" in told(tmp_path / "a.gguf")
    weights = tmp_path / "runs" / "checkpoint-9" / "adapter_model.safetensors"
    weights.rename(weights.with_name("adapters.safetensors"))
    assert "mlx_lm.fuse" in told(weights.parent)
    weights.symlink_to("../../blobs/gone")
    assert told(weights.parent).startswith(f"{weights}: is a link to ../../blobs/gone, which is not there")


def test_missing_and_pickled_files_are_refused(model: Model, tmp_path: Path) -> None:
    assert "has no adapter_config.json" in refusal(model, str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{", encoding="utf-8")
    assert "has no adapter_model.safetensors" in refusal(model, str(tmp_path))
    (tmp_path / "adapter_model.bin").write_bytes(b"\x80\x02")
    assert "pickle" in refusal(model, str(tmp_path))
    with pytest.raises(ModelError, match="pickle"):
        models.find_adapter(tmp_path)
    save_file(tensors(), tmp_path / "adapter_model.safetensors")
    assert "not valid JSON" in refusal(model, str(tmp_path))
    assert models.find_adapter(tmp_path) == tmp_path.resolve()
    with pytest.raises(ModelError, match="has no revision main"):
        models.find_adapter(tmp_path, revision="main")
    with pytest.raises(ModelError, match="is a file"):
        models.find_adapter(tmp_path / "adapter_config.json")
    with pytest.raises(ModelError, match="not a hub id"):
        models.find_adapter("no/such/folder")


_FIND = """
import sys
from dragoman import models
from dragoman.core.errors import ModelError
try:
    print(models.find_adapter("owner/model", revision=sys.argv[1]))
except ModelError as error:
    print(f"ModelError: {error}")
"""


def find_on_hub(url: str, cache: Path, revision: str) -> str:
    """What a process of its own finds: hub address and cache are settings of the environment."""
    environment = os.environ | {"HF_ENDPOINT": url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    environment |= {"HF_HUB_ETAG_TIMEOUT": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("HF_TOKEN", None)
    done = subprocess.run(
        [sys.executable, "-c", _FIND, revision], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_adapters_come_from_the_hub_at_a_revision(tmp_path: Path) -> None:
    repository = Path(write(tmp_path / "repository"))
    (repository / "training_args.bin").write_bytes(b"\x80\x02")
    with fake_hub(repository) as hub:
        found = Path(find_on_hub(hub.url, tmp_path / "cache", "v1"))
        assert sorted(path.name for path in found.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        assert "has no revision v9" in find_on_hub(hub.url, tmp_path / "cache", "v9")
        (repository / "adapter_model.safetensors").rename(repository / "adapter_model.bin")
        assert "pickle" in find_on_hub(hub.url, tmp_path / "other cache", "v1")


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_weights_never_load(
    model: Model, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Cut short, or with bytes of the header changed: an error that names the file, or an adapter that can be run."""
    folder = tmp_path_factory.mktemp("damaged")
    write(folder)
    file = folder / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            content[data.draw(st.integers(0, min(len(content), header) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    try:
        model.load_adapter(1, "x", str(folder))
    except ModelError as error:
        said = str(error)
    else:
        said = "adapter_"
        assert np.isfinite(run_rows(model, prompt(131, 4), adapter=1)).all()
    assert "adapter_" in said


def test_too_large_adapters_are_refused(tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = models.load(make_folder(tmp_path, VARIANTS["llama"]), models.ModelSettings(adapter_bytes=10_000))
    source = write(tmp_path / "a")
    limited.load_adapter(0, "x", source)
    with pytest.raises(ModelError, match="left for adapters"):
        limited.load_adapter(1, "y", source)
    limited.unload_adapter(0)
    limited.load_adapter(1, "y", source)
    monkeypatch.setattr("dragoman.models.adapters.loading.available_memory", lambda: 1 << 20)
    assert "are available" in refusal(model, source)


def test_digests_tell_adapters_apart(model: Model, tmp_path: Path) -> None:
    plain = model.load_adapter(0, "x", write(tmp_path / "a"))
    assert model.load_adapter(0, "y", write(tmp_path / "b")).digest == plain.digest
    assert model.load_adapter(0, "x", write(tmp_path / "c", CONFIG | {"lora_alpha": 9})).digest != plain.digest
    changed = tensors()
    changed[A][0, 0] += 1
    assert model.load_adapter(0, "x", write(tmp_path / "d", weights=changed)).digest != plain.digest


def test_another_models_name_is_a_warning(model: Model, tmp_path: Path) -> None:
    own = {"base_model_name_or_path": f"someone/{model.card.name}"}
    assert model.load_adapter(0, "x", write(tmp_path / "a", CONFIG | own)).warnings == ()
    other = {"base_model_name_or_path": "someone/else"}
    (warning,) = model.load_adapter(0, "x", write(tmp_path / "b", CONFIG | other)).warnings
    assert "someone/else" in warning


def test_a_pattern_that_takes_for_ever_is_given_up(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns, "LIMIT_S", 1.0)
    started = time.monotonic()
    assert "takes longer than 1 s" in refusal(model, write(tmp_path / "a", CONFIG | {"target_modules": r"(.*.*)*x"}))
    assert time.monotonic() - started < 30


@given(st.lists(st.sampled_from(["q_proj", ".*", "a.c", r"layers\.\d+", "(a|b)", "x{2}"]), min_size=1, max_size=3))
@settings(max_examples=10, deadline=None)
def test_patterns_match_as_python_does(asked: list[str]) -> None:
    import re

    names = ["q_proj", "abc", "layers.12", "b", "xx", ""]
    expected = [[re.fullmatch(pattern, name) is not None for name in names] for pattern in asked]
    assert full_matches(asked, names, "here") == expected


def test_sequences_without_an_adapter_in_their_slot_are_refused(model: Model) -> None:
    model.unload_adapter(1)
    with pytest.raises(ValueError, match="no adapter in slot 1"):
        run_rows(model, prompt(131, 4), adapter=1)
