"""Encoders in GGUF, as llama.cpp's converter writes them: their vectors, and the pooling that the file names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import nomic_moe
import numpy as np
import pytest
import torch
from encoders import CONFIGS
from gguf import GGMLQuantizationType as Type
from gguf_files import Weights, add_tokens, write_gguf
from pooled_texts import pooled
from small_models import VARIANTS, make_folder
from test_encoders import save, texts
from tokenizers import BertWordPieceTokenizer, Tokenizer

from dragoman import models
from dragoman.core.errors import ModelError
from dragoman.core.pooling import PoolingParams
from dragoman.engine.engine import Engine
from dragoman.models.gguf.file import read_gguf
from dragoman.models.gguf.vocabulary import tokenizer_files

SETTINGS = models.ModelSettings(precision="float32", max_tokens=64, kv_tokens=2048, cache_bytes=0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN_CACHE", str(tmp_path / "cache"))


def describe(arch: str, pooling: int | None) -> Callable[[gguf.GGUFWriter, dict[str, Any]], None]:
    """What llama.cpp's converter writes of a small encoder's config."""

    def add(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        if pooling is not None:
            writer.add_uint32(f"{arch}.pooling_type", pooling)
        if arch == "gemma-embedding":
            writer.add_head_count_kv(config["num_key_value_heads"])
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["head_dim"])
            writer.add_layer_norm_rms_eps(1e-6)
            writer.add_sliding_window(config["sliding_window"])
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
            return
        writer.add_causal_attention(False)
        writer.add_layer_norm_eps(1e-5 if arch == "modern-bert" else 1e-12)
        if arch == "nomic-bert":
            writer.add_rope_freq_base(1000.0)
        if arch == "modern-bert":
            writer.add_rope_freq_base(160_000.0)
            writer.add_rope_freq_base_swa(10_000.0)
            writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
            writer.add_sliding_window(config["local_attention"])

    return add


def write(path: Path, folder: Path, arch: str = "gemma-embedding", pooling: int | None = None, more: Any = ()) -> Path:
    def change(name: str, value: np.ndarray, config: dict[str, Any]) -> np.ndarray:
        return value + 1 if arch == "gemma-embedding" and name.endswith("norm.weight") else value

    def without_heads(weights: Weights) -> Weights:
        prefixes = ("pooler.", "head.", "decoder.")
        found = {name.removeprefix("model."): v for name, v in weights.items() if not name.startswith(prefixes)}
        return found | dict(more)

    kind = Type.F32
    return write_gguf(path, folder, arch, lambda name: kind, describe(arch, pooling), change, gather=without_heads)


ARCHITECTURES = [
    ("embedding-gemma", "gemma-embedding"),
    ("bert", "bert"),
    ("nomic", "nomic-bert"),
    ("modernbert", "modern-bert"),
]


@pytest.mark.parametrize(("name", "arch"), ARCHITECTURES)
def test_vectors_are_those_of_transformers_with_the_files_pooling(name: str, arch: str, tmp_path: Path) -> None:
    theirs = save(tmp_path, CONFIGS[name])
    file = write(tmp_path / "model.gguf", tmp_path, arch, int(gguf.PoolingType.MEAN))
    model = models.load(file, SETTINGS)
    assert model.card.pooling is not None
    assert (model.card.pooling.kind, model.card.generates) == ("mean", False)
    base = getattr(theirs, theirs.base_model_prefix, theirs)
    for ids, vector in zip(texts(), pooled(Engine(model), texts(), PoolingParams(kind="mean")), strict=True):
        rows = base(torch.tensor([ids])).last_hidden_state[0].detach().numpy()
        np.testing.assert_allclose(vector, rows.mean(0), atol=1e-4)


def test_vectors_pass_the_dense_layers_of_the_file(tmp_path: Path) -> None:
    theirs = save(tmp_path, CONFIGS["embedding-gemma"])
    rng = np.random.default_rng(1)
    wide, narrow = (rng.normal(size=shape).astype(np.float32) for shape in ((64, 48), (40, 64)))
    dense = {"dense_2.weight": wide, "dense_3.weight": narrow}
    file = write(tmp_path / "model.gguf", tmp_path, pooling=1, more=dense)
    model = models.load(file, SETTINGS)
    assert model.card.pooling is not None
    assert model.card.pooling.width == 40
    (ids,) = texts((20,))
    (vector,) = pooled(Engine(model), [ids], PoolingParams(kind="mean"))
    mean = theirs(torch.tensor([ids])).last_hidden_state[0].detach().numpy().mean(0)
    np.testing.assert_allclose(vector, narrow @ (wide @ mean), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("number", "kind"), [(None, "mean"), (0, "mean"), (2, "cls"), (3, "last"), (4, "rank")])
def test_the_pooling_is_the_files(number: int | None, kind: str, tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["embedding-gemma"])
    file = write(tmp_path / "model.gguf", tmp_path, pooling=number)
    if kind == "rank":
        with pytest.raises(ModelError, match="pooling 'rank' is not supported"):
            models.describe(file)
        return
    pooling = models.describe(file).pooling
    assert pooling is not None
    assert pooling.info.kind == kind


@pytest.mark.parametrize(("name", "arch"), [("roberta", "bert"), ("bert", "bert"), ("modernbert", "modern-bert")])
def test_a_classifier_scores_pairs_as_transformers_does(name: str, arch: str, tmp_path: Path) -> None:
    prefix = CONFIGS[name]["architectures"][0].removesuffix("Model").removesuffix("ForMaskedLM")
    config = CONFIGS[name] | {"architectures": [f"{prefix}ForSequenceClassification"], "num_labels": 1}
    config |= {"classifier_pooling": "mean"} if name == "modernbert" else {}
    theirs = save(tmp_path, config)
    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path, arch, lambda _: Type.F32, describe(arch, 4), gather=classifier_weights)
    model = models.load(file, SETTINGS)
    info = model.card.pooling
    assert info is not None
    kind = config.get("classifier_pooling", "cls")
    assert (info.scores, info.width, info.kind, info.pairs) == (True, 1, kind, "segments")
    ids = texts((20,))[0]
    (score,) = pooled(Engine(model), [ids], PoolingParams(kind=info.kind))
    expected = theirs(input_ids=torch.tensor([ids])).logits[0].detach().numpy()
    np.testing.assert_allclose(score, expected, atol=1e-4)


def classifier_weights(weights: Weights) -> Weights:
    """A classifier's last layers under the names that the converter gives them; RoBERTa's positions from the first that
    is used."""
    last = {
        "bert.pooler.dense": "cls",
        "classifier.dense": "cls",
        "classifier.out_proj": "cls.output",
        "head.dense": "cls",
        "head.norm": "cls.norm",
        "classifier": "cls.output",
    }
    found = {}
    for name, value in weights.items():
        module, _, kind = name.rpartition(".")
        if module in last:
            found[f"{last[module]}.{kind}"] = value
            continue
        if name == "roberta.embeddings.position_embeddings.weight":
            value = value[2:]
        found[name.removeprefix("bert.").removeprefix("roberta.").removeprefix("model.")] = value
    return found


@pytest.mark.parametrize("missing", ["cls.weight", "cls.bias", "cls.output.weight"])
def test_a_classifier_without_one_of_its_layers_is_refused(missing: str, tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["bert"] | {"architectures": ["BertForSequenceClassification"], "num_labels": 1})

    def gather(weights: Weights) -> Weights:
        found = classifier_weights(weights)
        del found[missing]
        return found

    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path, "bert", lambda _: Type.F32, describe("bert", 4), gather=gather)
    with pytest.raises(ModelError, match=f"tensor {missing} of a classifier is missing"):
        models.describe(file)


def test_labels_that_are_not_the_results_are_refused(tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["bert"] | {"architectures": ["BertForSequenceClassification"], "num_labels": 3})

    def add(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
        describe("bert", 4)(writer, config)
        writer.add_classifier_output_labels(["good", "bad"])

    file = tmp_path / "model.gguf"
    write_gguf(file, tmp_path, "bert", lambda _: Type.F32, add, gather=classifier_weights)
    with pytest.raises(ModelError, match=r"classifier\.output_labels names 2 of 3 results"):
        models.describe(file)


def test_a_reranker_that_answers_yes_or_no_is_known_by_its_last_layer(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["qwen3"] | {"tie_word_embeddings": True})

    def add(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
        for key, name in (("embedding_length", "hidden_size"), ("block_count", "num_hidden_layers")):
            writer.add_uint32(f"qwen3.{key}", config[name])
        writer.add_context_length(256)
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(["yes", "no"])

    def gather(weights: Weights) -> Weights:
        return weights | {"cls.output.weight": weights["model.embed_tokens.weight"][:2]}

    file = write_gguf(tmp_path / "model.gguf", folder, "qwen3", lambda _: Type.F32, add, gather=gather)
    pooling = models.load(file, models.ModelSettings(max_context=64)).card.pooling
    assert pooling is not None
    assert (pooling.kind, pooling.pairs) == ("last", "template")


def test_an_unknown_pooling_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, CONFIGS["embedding-gemma"])
    with pytest.raises(ModelError, match=r"gemma-embedding\.pooling_type"):
        models.describe(write(tmp_path / "model.gguf", tmp_path, pooling=9))


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "house", "un", "##believ", "##able", "cafe", "##s", ",", "中", "!"]


@pytest.mark.parametrize("words", [WORDS, [*WORDS, "House"]], ids=["small letters", "capitals"])
@pytest.mark.parametrize("named", [True, False])
def test_words_fall_into_the_pieces_of_bert(words: list[str], named: bool, tmp_path: Path) -> None:
    words = [*words, *(f"[unused{i}]" for i in range(110 - len(words)))]
    if not named:  # the ids that llama.cpp takes for those of the marks
        words[100:103] = ["[UNK]", "[CLS]", "[SEP]"]
        words[1:4] = ["one", "two", "three"]
    marks = [word for word in words if word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")]
    writer = gguf.GGUFWriter(tmp_path / "words.gguf", "bert")
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    spelled = [w if w in marks else w[2:] if w.startswith("##") else "▁" + w for w in words]
    writer.add_token_list(spelled)
    writer.add_token_types([3 if word in marks else 1 for word in words])
    if named:
        writer.add_unk_token_id(1)
        writer.add_uint32("tokenizer.ggml.cls_token_id", 2)
        writer.add_sep_token_id(3)
        writer.add_pad_token_id(0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files = tokenizer_files(read_gguf(tmp_path / "words.gguf"))
    ours = Tokenizer.from_str(json.dumps(files["tokenizer.json"]))
    theirs = BertWordPieceTokenizer(
        {word: i for i, word in enumerate(words)}, lowercase="House" not in words, clean_text=True
    )
    for text in ("The unbelievable house, cafés!", "Café 中中 houses [SEP] the", "", "x" * 200, "House"):
        assert ours.encode(text).ids == theirs.encode(text).ids, text
    assert ours.decode(ours.encode("the unbelievable house").ids) == "the unbelievable house"


def test_experts_of_nomics_encoder_are_read_as_the_converter_writes_them(tmp_path: Path) -> None:
    weights, sizes = nomic_moe.make(tmp_path), nomic_moe.CONFIG
    arch = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.NOMIC_BERT_MOE]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.NOMIC_BERT_MOE, sizes["n_layer"])
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", arch)
    writer.add_context_length(sizes["n_positions"])
    writer.add_embedding_length(sizes["n_embd"])
    writer.add_feed_forward_length(sizes["n_inner"])
    writer.add_block_count(sizes["n_layer"])
    writer.add_head_count(sizes["n_head"])
    writer.add_layer_norm_eps(sizes["layer_norm_epsilon"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_rope_freq_base(sizes["rotary_emb_base"])
    writer.add_moe_every_n_layers(sizes["moe_every_n_layers"])
    writer.add_expert_count(sizes["num_experts"])
    writer.add_expert_used_count(sizes["moe_top_k"])
    add_tokens(writer)
    for name, value in weights.items():
        if name.endswith("experts.bias"):
            continue  # as the converter does
        stem, dot, kind = name.rpartition(".")
        if kind in ("w1", "w2"):
            stem, dot, kind = name, ".", "weight"
            value = value.reshape(sizes["num_experts"], sizes["n_inner"], -1)
            value = value if name.endswith("w1") else np.ascontiguousarray(value.transpose(0, 2, 1))
        writer.add_tensor(f"{names.get_name(stem)}{dot}{kind}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    model = models.load(tmp_path / "model.gguf", SETTINGS)
    for ids, vector in zip(texts(), pooled(Engine(model), texts(), PoolingParams(kind="mean")), strict=True):
        expected = nomic_moe.hidden_states(weights, ids, bias=False).mean(0)
        np.testing.assert_allclose(vector, expected, atol=1e-4)
