"""EAGLE-3 heads: what they compute, and which ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import eagle_reference as reference
import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tiny_eagle import EAGLE, GUESSED, LLAMA, QWEN3, VOCAB, make_tiny_eagle, write_eagle
from tiny_model import GEMMA3, LFM2, T5_CONFIG, make_tiny_family, make_tiny_llama, make_tiny_t5

from dragoman import models
from dragoman.cli.plan import drafting_bytes
from dragoman.cli.settings import DraftChoice
from dragoman.core.errors import ModelError
from dragoman.engine.messages import LoadHead, WorkerSettings
from dragoman.engine.settings import SchedulerSettings
from dragoman.engine.worker import load as load_worker
from dragoman.engine.worker_settings import worker_settings
from dragoman.models import draft_head
from dragoman.models.batch import Batch, rows_of_slot, tables_of_one
from dragoman.models.eagle import read_eagle
from dragoman.models.families import read_spec
from dragoman.models.model import Model
from dragoman.models.settings import Precision

TOKENS = 40
IDS = np.random.default_rng(3).integers(0, VOCAB, TOKENS).astype(np.int32)
ROWS = np.arange(TOKENS, dtype=np.int32)
IDS_KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads of PyTorch cost more than such small products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(folder: Path, eagle: Path | None, precision: Precision = "float32") -> Model:
    settings = models.ModelSettings(precision=precision, max_context=256, max_tokens=64, cache_bytes=0)
    choice = None if eagle is None else models.EagleChoice(source=str(eagle))
    return models.load(folder, settings, head_context=None if eagle is None else 64, eagle=choice)


def whole(model: Model, logit_rows: list[int] | np.ndarray) -> Batch:
    """The text as one sequence."""
    starts, states = np.array([0, TOKENS], np.int32), (None, None)
    if model.num_states:
        states = (np.zeros(1, np.int32), rows_of_slot(TOKENS, 0))  # type: ignore[assignment]
    tables = tables_of_one(model.pools, 2)
    wanted = np.array(logit_rows, np.int32)
    return Batch(IDS, ROWS, starts, tables, wanted, state_slots=states[0], state_rows=states[1])


READ = [(LLAMA, None), (QWEN3, [2, 3, 6]), (GEMMA3 | {"num_hidden_layers": 6}, [1, 2, 4]), (LFM2, [2, 3, 3])]


@pytest.mark.parametrize("precision", ["float32", "int4"])
@pytest.mark.parametrize(("config", "ids"), READ, ids=["llama", "qwen3", "gemma3", "lfm2"])
def test_what_it_reads_changes_no_bit(
    config: dict[str, Any], ids: list[int] | None, precision: Precision, tmp_path: Path
) -> None:
    """Also where it reads what the last layer leaves."""
    folder = make_tiny_family(tmp_path / "model", config)
    eagle = make_tiny_eagle(tmp_path / "eagle", EAGLE | ({IDS_KEY: ids} if ids else {}))
    plain, kept = load(folder, None, precision), load(folder, eagle, precision)
    for rows in ([TOKENS - 1], [3, 17, 18, TOKENS - 1], list(range(TOKENS)), []):
        np.testing.assert_array_equal(kept.run(whole(kept, rows)), plain.run(whole(plain, rows)))
        assert np.isfinite(kept.hidden_rows(TOKENS)).all()
    assert kept.card.fingerprint == plain.card.fingerprint


VARIANTS: dict[str, tuple[dict[str, Any], bool, tuple[int, ...]]] = {
    "plain": ({}, False, (2, 3, 3)),
    "read by outputs": ({"eagle_config": {IDS_KEY: [1, 3, 4]}}, False, (2, 4, 5)),
    "read by inputs": ({IDS_KEY: [2, 4, 6]}, False, (2, 4, 6)),
    "normed": ({"norm_before_fc": True, "norm_before_residual": True}, False, (2, 3, 3)),
    "3.1": ({"fc_norm": True, "eagle_config": {"norm_output": True}}, False, (2, 3, 3)),
    "biased": ({"attention_bias": True}, True, (2, 3, 3)),
    "narrow": ({"hidden_size": 32, "target_hidden_size": 64}, True, (2, 3, 3)),
    "whole vocabulary": ({"draft_vocab_size": VOCAB}, False, (2, 3, 3)),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("config", [LLAMA, QWEN3], ids=lambda c: c["model_type"])
def test_it_computes_the_published_formula(
    config: dict[str, Any], variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden states of the model, logits, and the guess after the next one."""
    monkeypatch.setattr(draft_head, "HEAD_KV_PRECISION", "float32")
    changed, own, boundaries = VARIANTS[variant]
    folder = make_tiny_family(tmp_path / "model", config)
    eagle = make_tiny_eagle(tmp_path / "eagle", EAGLE | changed, own_embedding=own)
    model = load(folder, eagle)
    head, theirs, w = model.head, reference.read(folder), reference.read(eagle)
    assert head is not None
    model.run(whole(model, []))
    ours = model.hidden_rows(TOKENS).copy()
    found = reference.streams(config, theirs, IDS)
    flat = EAGLE | changed | changed.get("eagle_config", {})
    hidden = reference.fused(flat, w, [found[boundary] for boundary in boundaries])
    close(ours, hidden)

    following, tables = np.roll(IDS, -1), tables_of_one(head.pools, 2)
    logits = head.run(
        Batch(following, ROWS, np.array([0, TOKENS]), tables_of_one(head.pools, 2), ROWS, ROWS, ours)
    ).copy()
    table = w["embed_tokens.weight"] if own else theirs["model.embed_tokens.weight"]
    embedding = table[torch.from_numpy(following).long()]
    expected, stream = reference.guess(flat, w, embedding, hidden)
    close(logits, expected)
    close(head.hidden(TOKENS), stream)
    ids = head.target_ids
    assert ids is not None
    np.testing.assert_array_equal(ids, np.flatnonzero(load_file(eagle / "model.safetensors")["t2d"]))

    # The next guess takes the head's own stream in place of what is read of the model.
    last, fed, at = np.array([7], np.int32), head.hidden(TOKENS)[-1:].copy(), np.array([TOKENS], np.int32)
    next_one = np.array([0], np.int32)
    again = head.run(Batch(last, at, np.array([0, 1], np.int32), tables, next_one, next_one, fed))
    embedding, hidden = torch.cat([embedding, table[7:8]]), torch.cat([hidden, stream[-1:]])
    close(again, reference.guess(flat, w, embedding, hidden)[0][-1:])


def close(ours: np.ndarray, theirs: torch.Tensor) -> None:
    expected = theirs.numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


# Which ones are refused -----------------------------------------------------------------------------------------------

JUNK: list[object] = [-1, 0, 1.5, "x", True, [], {"a": 1}, 10**12, [2, "3", 4], float("inf")]
MEANINGS: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), (True,)),
    **dict.fromkeys(("norm_before_fc", "norm_before_residual", "fc_norm", "norm_output"), (True,)),
    **dict.fromkeys(("bias", "parallel_drafting", "use_moe"), (0,)),
    **dict.fromkeys(("rms_norm_eps", "rope_theta"), (1.5, 10**12)),
    **dict.fromkeys(("logit_scale", "partial_rotary_factor", "use_sliding_window"), (True,)),
    "layer_types": ([],),
    "num_hidden_layers": (1,),
    "eagle_config": ({"a": 1},),
}
"""Of these values of some fields, those that are read, as what they mean or as if they were not there."""


@pytest.mark.parametrize(
    "key",
    [
        *(key for key in EAGLE if key != "model_type"),
        *("target_hidden_size", "rope_theta", "rope_scaling", "hidden_act", "attention_bias", "mlp_bias"),
        *(
            "norm_before_fc",
            "norm_before_residual",
            "fc_norm",
            "norm_output",
            "layer_types",
            "eagle_config",
            IDS_KEY,
            "logit_scale",
            "bias",
        ),
        *("parallel_drafting", "num_aux_hidden_states", "use_moe", "sliding_window", "use_sliding_window"),
        "partial_rotary_factor",
    ],
)
def test_junk_in_its_config_is_refused(key: str) -> None:
    target = read_spec(LLAMA)
    for junk in JUNK:
        if not any(junk == each and type(junk) is type(each) for each in MEANINGS.get(key, ())):
            with pytest.raises(ModelError):
                read_eagle(EAGLE | {key: junk}, target, "model")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "architecture Qwen3ForCausalLM is not an EAGLE-3 head; known: Llama"),
        ({"target_hidden_size": 96}, "it reads hidden states of 96 numbers, model has 64"),
        ({"vocab_size": 200}, "it is for a vocabulary of 200 tokens, model has 199"),
        ({IDS_KEY: [2, 3, 7]}, r"within the 6 layers of model, got \[2, 3, 7\]"),
        ({IDS_KEY: [4, 3, 2]}, "must be in ascending order"),
        ({"num_hidden_layers": 2}, "num_hidden_layers 2 is not supported"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm exclude each other"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state false"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}, "quantized weights of heads"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(changed: dict[str, object], message: str, tmp_path: Path) -> None:
    model = str(make_tiny_family(tmp_path / "model", LLAMA))
    eagle = str(make_tiny_eagle(tmp_path / "head", EAGLE))
    write_eagle(Path(eagle), EAGLE | changed, load_file(Path(eagle, "model.safetensors")))
    with pytest.raises(ModelError, match=f"--draft-eagle head: .*{message}"):
        worker_settings(model, models.ModelSettings(), SchedulerSettings(draft_eagle=eagle))


def test_models_without_three_depths_are_refused_by_name(tmp_path: Path) -> None:
    eagle = SchedulerSettings(draft_eagle=str(make_tiny_eagle(tmp_path / "head")))
    for folder, message in (
        (
            make_tiny_llama(tmp_path / "short"),
            "short has 2 layers, too few for a head that does not say which it reads",
        ),
        (make_tiny_t5(tmp_path / "t5"), "it reads hidden states of 64 numbers, t5 has 48"),
    ):
        with pytest.raises(ModelError, match=f"--draft-eagle head: {message}"):
            worker_settings(str(folder), models.ModelSettings(), eagle)
    with pytest.raises(ModelError, match="t5 is T5ForConditionalGeneration, whose hidden states such heads"):
        read_eagle(EAGLE | {"target_hidden_size": 48}, read_spec(T5_CONFIG), "t5")


def test_it_is_asked_alone_and_where_there_is_room(tmp_path: Path) -> None:
    folder, eagle = str(make_tiny_family(tmp_path / "model", LLAMA)), str(make_tiny_eagle(tmp_path / "head"))
    for others in ({"draft_heads": True}, {"draft_model": folder}):
        with pytest.raises(ModelError, match="--draft-eagle, --draft-heads and --draft-model exclude each other"):
            worker_settings(folder, models.ModelSettings(), SchedulerSettings(draft_eagle=eagle, **others))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"--draft-eagle .*head: a step of --speculation 1 has no room"):
        worker_settings(folder, models.ModelSettings(), SchedulerSettings(draft_eagle=eagle, speculation=1))
    for off in ({"speculation": 0}, {"draft_sources": ("lookup",)}):
        scheduling = SchedulerSettings(draft_eagle=eagle, **off)  # type: ignore[arg-type]
        assert worker_settings(folder, models.ModelSettings(), scheduling)[0].draft is None
    with pytest.raises(ModelError, match=r"--draft-eagle .*missing: there is no folder or file"):
        worker_settings(folder, models.ModelSettings(), SchedulerSettings(draft_eagle=str(tmp_path / "missing")))


def test_damaged_maps_and_tensors_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_family(tmp_path / "model", LLAMA)
    eagle = make_tiny_eagle(tmp_path / "head")
    tensors = load_file(eagle / "model.safetensors")
    damages: dict[str, tuple[dict[str, np.ndarray | None], str]] = {
        "beyond": ({"d2t": tensors["d2t"] + 100}, r"d2t.*names token \d+, beyond the model's vocabulary of 199"),
        "twice": ({"d2t": -np.arange(GUESSED)}, "d2t.*names a token of the model twice"),
        "short": ({"d2t": tensors["d2t"][1:]}, r"d2t.*its shape is \[149\], where the config asks for \[150\]"),
        "numbers": ({"d2t": tensors["d2t"].astype(np.float32)}, "d2t.*its type float32 is not supported"),
        "mask": ({"t2d": ~tensors["t2d"]}, "t2d.*marks other tokens than d2t names"),
        "none": ({"d2t": None}, "tensor d2t is missing"),
        "head": ({"lm_head.weight": None}, "tensor lm_head.weight is missing"),
        "fc": (
            {"fc.weight": np.ones((64, 128), np.float32)},
            r"fc.weight.*\[64, 128\], where the config asks for \[64, 192\]",
        ),
        "more": ({"mask_hidden": np.ones((1, 192), np.float32)}, "mask_hidden.*is not part of"),
    }
    for changed, message in damages.values():
        found = {name: value for name, value in (tensors | changed).items() if value is not None}
        write_eagle(eagle, EAGLE, found)
        with pytest.raises(ModelError, match=f"--draft-eagle head: .*{message}"):
            load(folder, eagle)
    Path(eagle, "model.safetensors").rename(eagle / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"--draft-eagle head: .*pytorch_model\.bin"):
        worker_settings(str(folder), models.ModelSettings(), SchedulerSettings(draft_eagle=str(eagle)))
    narrow = make_tiny_eagle(tmp_path / "narrow", EAGLE | {"hidden_size": 32, "target_hidden_size": 64})
    with pytest.raises(ModelError, match="it has no embeddings and hidden states of 32 numbers, model has emb"):
        load(folder, narrow)


def test_a_config_within_a_config_is_read(tmp_path: Path) -> None:
    """As speculators write it: the layer in a block, and another name."""
    outside = {key: EAGLE[key] for key in ("draft_vocab_size", "tie_word_embeddings")}
    nested = outside | {"architectures": ["Eagle3Speculator"], "transformer_layer_config": EAGLE}
    target = read_spec(LLAMA)
    assert read_eagle(nested, target, "model") == read_eagle(EAGLE, target, "model")


def test_it_has_memory_of_its_own(tmp_path: Path) -> None:
    """What is planned is what is taken, with a table of embeddings and without."""
    folder, settings = str(make_tiny_family(tmp_path / "model", LLAMA)), models.ModelSettings(cache_bytes=0)
    planned = []
    for own in (False, True):
        eagle = str(make_tiny_eagle(tmp_path / f"{own}", own_embedding=own))
        scheduling = SchedulerSettings(draft_eagle=eagle, draft_context=64, draft_precision="int8")
        worker, described = worker_settings(folder, settings, scheduling)
        assert isinstance(worker.draft, LoadHead)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(worker), type=WorkerSettings) == worker
        drafting = DraftChoice(draft_eagle=eagle, draft_context=64, draft_precision="int8")
        assert drafting_bytes(described, drafting, settings) == {"head": worker.draft.nbytes}
        choice = models.EagleChoice(source=eagle, precision="int8")
        assert worker.draft == LoadHead(context=64, nbytes=worker.draft.nbytes, eagle=choice)
        loaded, _ = load_worker(worker)
        assert isinstance(loaded, Model)
        assert loaded.head is not None
        assert loaded.head.max_context == 64
        kept = loaded.head.kv.nbytes + sum(
            value.nbytes for name, value in loaded.head.weights.items() if own or name != "embedding.weight"
        )
        assert kept < worker.draft.nbytes < kept + (8 << 20)
        planned.append(worker.draft.nbytes)
    assert planned[1] - planned[0] >= VOCAB * 64
