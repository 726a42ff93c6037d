"""In float32 every encoder makes the vectors that transformers makes; alone and batched the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nomic_moe
import numpy as np
import pytest
from encoders import CONFIGS
from pooled_texts import pooled

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.core.pooling import PoolingParams
from dragoman.engine.engine import Engine

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

CLASSIFIERS = ("bert", "roberta", "xlm-roberta", "mpnet", "modernbert")
SETTINGS = models.ModelSettings(precision="float32", max_tokens=64, kv_tokens=2048, cache_bytes=0)
LENGTHS = (1, 5, 33, 64, 20, 68)


def save(folder: Path, config: dict[str, Any]) -> Any:
    """A random model of transformers, saved as it saves any."""
    torch.manual_seed(7)
    model = getattr(transformers, config["architectures"][0])(transformers.AutoConfig.for_model(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model.eval()


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(3, 97, length).tolist() for length in lengths]


@pytest.mark.parametrize("name", CONFIGS)
def test_vectors_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = save(tmp_path, CONFIGS[name])
    ours = Engine(models.load(tmp_path, SETTINGS))
    base = getattr(theirs, theirs.base_model_prefix, theirs)
    expected = [base(torch.tensor([ids])).last_hidden_state[0].detach().numpy() for ids in texts()]
    for kind, theirs_of in (("mean", lambda rows: rows.mean(0)), ("cls", lambda rows: rows[0])):
        together = pooled(ours, texts(), PoolingParams(kind=kind))
        for ids, vector, rows in zip(texts(), together, expected, strict=True):
            np.testing.assert_allclose(vector, theirs_of(rows), atol=1e-4)
            (alone,) = pooled(ours, [ids], PoolingParams(kind=kind))
            assert alone.tobytes() == vector.tobytes()


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_cross_encoder_scores_pairs_as_transformers_does(name: str, tmp_path: Path) -> None:
    prefix = CONFIGS[name]["architectures"][0].removesuffix("Model").removesuffix("ForMaskedLM")
    config = CONFIGS[name] | {"architectures": [f"{prefix}ForSequenceClassification"], "num_labels": 1}
    config |= {"classifier_pooling": "mean"} if name == "modernbert" else {}
    theirs = save(tmp_path, config)
    model = models.load(tmp_path, SETTINGS)
    info = model.card.pooling
    assert info is not None
    assert (info.scores, info.width, info.kind, info.pairs) == (
        True,
        1,
        config.get("classifier_pooling", "cls"),
        "segments",
    )
    ours = Engine(model)
    for ids in texts((12, 40)):
        segment = 7 if config.get("type_vocab_size", 2) > 1 and name == "bert" else 0
        inputs = {"input_ids": torch.tensor([ids])}
        if segment:
            inputs["token_type_ids"] = torch.tensor([[0] * segment + [1] * (len(ids) - segment)])
        expected = theirs(**inputs).logits[0].detach().numpy()
        (vector,) = pooled(ours, [ids], PoolingParams(kind=info.kind, segment_start=segment))
        np.testing.assert_allclose(vector, expected, atol=1e-4)


def test_a_text_longer_than_a_step_is_computed_whole(tmp_path: Path) -> None:
    theirs = save(tmp_path, CONFIGS["nomic"])
    ours = Engine(models.load(tmp_path, SETTINGS))
    long = texts((250, 10, 200, 64))
    found = pooled(ours, long, PoolingParams(kind="mean"))
    for ids, vector in zip(long, found, strict=True):
        rows = theirs(torch.tensor([ids])).last_hidden_state[0].detach().numpy()
        np.testing.assert_allclose(vector, rows.mean(0), atol=1e-4)


def test_experts_of_nomics_encoder_make_the_vectors_of_its_formulas(tmp_path: Path) -> None:
    weights = nomic_moe.make(tmp_path)
    ours = Engine(models.load(tmp_path, SETTINGS))
    together = pooled(ours, texts(), PoolingParams(kind="mean"))
    for ids, vector in zip(texts(), together, strict=True):
        np.testing.assert_allclose(vector, nomic_moe.hidden_states(weights, ids).mean(0), atol=1e-4)
        (alone,) = pooled(ours, [ids], PoolingParams(kind="mean"))
        assert alone.tobytes() == vector.tobytes()
    without = nomic_moe.hidden_states(weights, texts()[1], bias=False).mean(0)
    assert np.abs(together[1] - without).max() > 1e-2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_shared_experts", 1),
        ("expert_choice_router", True),
        ("ffn_div", 2),
        ("mlp_fc2_bias", False),
        ("parallel_block", True),
        ("use_rms_norm", True),
        ("causal", True),
        ("scale_attn_weights", False),
        ("activation_function", "gelu_new"),
        ("moe_every_n_layers", 1),
        ("moe_top_k", 6),
        ("num_experts", None),
    ],
)
def test_what_nomics_configs_say_and_is_not_computed(key: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(nomic_moe.CONFIG | {key: value}))
    with pytest.raises(ModelError, match="num_experts_per_tok" if key == "moe_top_k" else key):
        models.describe(tmp_path)
