"""Which models may draft, and what they get."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_model import (
    QWEN35,
    make_tiny_gemma3,
    make_tiny_head,
    make_tiny_lfm2,
    make_tiny_llama,
    make_tiny_qwen35,
)
from tokenizers import Tokenizer as Pipeline
from tokenizers.models import WordLevel

from dragoman.core.errors import ModelError
from dragoman.engine.messages import LoadHead, LoadModel, WorkerSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.worker_settings import draft_settings, within_budget, without_draft_memory, worker_settings
from dragoman.models import ModelSettings, embedded_path, loading, plan_draft, plan_head
from dragoman.serving.draft_vocabulary import draft_vocabulary
from dragoman.text import Tokenizer


def test_it_has_the_steps_of_the_model_and_memory_of_its_own(tmp_path: Path) -> None:
    folder = make_tiny_llama(tmp_path)
    scheduling = SchedulerSettings(draft_model=str(folder), draft_precision="int8", draft_context=64)
    worker, described = worker_settings(None, ModelSettings(max_sequences=8, max_context=512), scheduling)
    draft = worker.draft
    assert draft is not None
    assert (draft.source, draft.settings.precision, draft.settings.kv_precision) == (str(folder), "int8", "int8")
    assert (draft.settings.max_context, draft.settings.kv_tokens, draft.settings.max_sequences) == (64, 128, 8)
    assert draft.nbytes == plan_draft(str(folder), ModelSettings(max_sequences=8), "int8", 64)[2].total_bytes
    loaded = loading.load(draft.source, draft.settings)
    assert (loaded.max_context, loaded.max_sequences) == (64, 8)
    with_draft = within_budget(worker, described, 1 << 30)
    without = within_budget(msgspec.structs.replace(worker, draft=None), described, 1 << 30)
    assert isinstance(with_draft.model, LoadModel)
    assert isinstance(without.model, LoadModel)
    assert with_draft.model.settings.kv_bytes <= without.model.settings.kv_bytes  # type: ignore[operator]
    assert without_draft_memory(100, draft) == 0


@pytest.mark.parametrize("scheduling", [{}, {"speculation": 0}, {"draft_sources": ("lookup",)}])
def test_it_is_not_loaded_where_it_would_not_be_asked(scheduling: dict[str, object], tmp_path: Path) -> None:
    source = {"draft_model": str(tmp_path)} if scheduling else {}
    assert draft_settings(ModelSettings(), SchedulerSettings(**scheduling, **source)) is None  # type: ignore[arg-type]


def test_steps_too_small_for_its_guesses_are_refused(tmp_path: Path) -> None:
    folder = str(make_tiny_llama(tmp_path))
    with pytest.raises(ModelError, match="never be asked with --speculation 3; it needs 4 or more"):
        draft_settings(ModelSettings(), SchedulerSettings(draft_model=folder, speculation=3))
    assert draft_settings(ModelSettings(), SchedulerSettings(draft_model=folder, speculation=4)) is not None


def test_a_model_with_states_is_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_lfm2(tmp_path)
    with pytest.raises(ModelError, match=r"--draft-model .*: a model with recurrent layers cannot take back"):
        draft_settings(ModelSettings(), SchedulerSettings(draft_model=str(folder)))
    with pytest.raises(ModelError, match=r"--draft-model .*: there is no folder or file"):
        draft_settings(ModelSettings(), SchedulerSettings(draft_model=str(tmp_path / "missing")))


def test_a_model_with_windows_may_draft(tmp_path: Path) -> None:
    folder = make_tiny_gemma3(tmp_path)
    draft = draft_settings(ModelSettings(max_tokens=32), SchedulerSettings(draft_model=str(folder)))
    assert draft is not None
    assert len(loading.load(draft.source, draft.settings).pools) > 1


def test_the_same_tokenizer_needs_no_translation(tmp_path: Path) -> None:
    shutil.copytree(embedded_path(), tmp_path / "copy")
    draft = draft_settings(ModelSettings(), SchedulerSettings(draft_model=str(tmp_path / "copy")))
    found = draft_vocabulary(draft, Tokenizer.load(embedded_path()), 4096)
    assert found is not None
    assert found.to_draft is found.to_target is None
    assert found.draft_size == 4096
    assert draft_vocabulary(None, Tokenizer.load(embedded_path()), 4096) is None


def test_tokens_without_common_text_are_refused_by_name(tmp_path: Path) -> None:
    """A tokenizer of Greek letters alone cannot tell of English text."""
    shutil.copytree(embedded_path(), tmp_path / "greek")
    words = {letter: index for index, letter in enumerate("αβγδεζηθικλμνξοπρστυφχψω")}
    pipeline = Pipeline(WordLevel(words, unk_token="α"))
    pipeline.save(str(tmp_path / "greek" / "tokenizer.json"))
    (tmp_path / "greek" / "tokenizer_config.json").unlink()
    draft = draft_settings(ModelSettings(), SchedulerSettings(draft_model=str(tmp_path / "greek")))
    with pytest.raises(ModelError, match=r"--draft-model greek: its tokens cannot be translated"):
        draft_vocabulary(draft, Tokenizer.load(embedded_path()), 4096)


# A head of the model itself -------------------------------------------------------------------------------------------


def test_a_head_has_the_steps_of_the_model_and_memory_of_its_own(tmp_path: Path) -> None:
    folder, settings = str(make_tiny_head(tmp_path, QWEN35)), ModelSettings(max_sequences=8, max_context=512)
    scheduling = SchedulerSettings(draft_heads=True, draft_context=64)
    worker, described = worker_settings(folder, settings, scheduling)
    planned = plan_head(described, settings, 64)
    assert worker.draft == LoadHead(context=64, nbytes=planned.nbytes)
    less = without_draft_memory(1 << 30, worker.draft)
    assert less == (1 << 30) - planned.nbytes
    model = loading.load(folder, settings, head_context=worker.draft.context)
    assert model.head is not None
    kept = model.head.kv.nbytes + sum(
        value.nbytes for name, value in model.head.weights.items() if name not in ("embedding.weight", "head.weight")
    )
    assert kept < planned.nbytes
    assert msgspec.json.decode(msgspec.json.encode(worker), type=WorkerSettings) == worker


@pytest.mark.parametrize("scheduling", [{}, {"speculation": 0}, {"draft_sources": ("lookup",)}])
def test_a_head_is_not_loaded_where_it_would_not_be_asked(scheduling: dict[str, object], tmp_path: Path) -> None:
    folder, asked = str(make_tiny_head(tmp_path, QWEN35)), {"draft_heads": True} if scheduling else {}
    worker, _ = worker_settings(folder, ModelSettings(), SchedulerSettings(**scheduling, **asked))  # type: ignore[arg-type]
    assert worker.draft is None
    assert loading.load(folder, ModelSettings(max_context=64)).head is None


def test_what_cannot_draft_is_refused_by_name(tmp_path: Path) -> None:
    """A family without heads, a checkpoint without one, one that does not fit, and two things that guess the rest."""
    heads = SchedulerSettings(draft_heads=True)
    llama = str(make_tiny_llama(tmp_path / "llama"))
    with pytest.raises(
        ModelError, match=r"--draft-heads: llama is LlamaForCausalLM, whose heads are not known; known: "
    ):
        worker_settings(llama, ModelSettings(), heads)
    qwen = str(make_tiny_head(tmp_path / "head", QWEN35))
    with pytest.raises(ModelError, match="--draft-heads: a step of --speculation 1 has no room"):
        worker_settings(qwen, ModelSettings(), msgspec.structs.replace(heads, speculation=1))
    assert worker_settings(qwen, ModelSettings(), msgspec.structs.replace(heads, speculation=2))[0].draft is not None
    with pytest.raises(ModelError, match="--draft-heads and --draft-model exclude each other"):
        worker_settings(
            str(make_tiny_qwen35(tmp_path / "qwen")),
            ModelSettings(),
            msgspec.structs.replace(heads, draft_model=llama),
        )
    with pytest.raises(ModelError, match="--draft-heads: qwen has no layer that guesses further tokens"):
        loading.load(tmp_path / "qwen", ModelSettings(max_context=64), head_context=64)
    other = make_tiny_head(tmp_path / "other", QWEN35)
    weights = load_file(other / "model.safetensors")
    weights["mtp.fc.weight"] = np.ones((64, 96), np.float32)
    save_file(weights, other / "model.safetensors")
    with pytest.raises(
        ModelError, match=r"mtp.fc.weight.*its shape is \[64, 96\], where the config asks for \[64, 128\]"
    ):
        loading.load(other, ModelSettings(max_context=64), head_context=64)
