"""GPTQ checkpoints: every width, group, zero point and order, exact where the packed groups allow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy_decoder import NumpyDecoder, round_to_bfloat16
from quantized_models import (
    CONFIG,
    WEIGHTS,
    Array,
    Packer,
    Pieces,
    QuantizedModel,
    change_config,
    change_tensors,
    pack_words,
    quantize_groups,
    torch,
    write_model,
)
from small_models import VARIANTS, checkpoint_of, make_folder, prompt, run_rows
from test_truth_rounded import round_to_int8

from dragoman import kernels, models
from dragoman.core.errors import ModelError
from dragoman.models import loading
from dragoman.models.tensors import Format

MODULE = "model.layers.1.mlp.down_proj"


def packer(
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    act_order: bool = False,
    offset: int = 1,
    lowest: bool = False,
    one_order: bool = True,
) -> Packer:
    """``offset``: what the format takes off a zero point before it stores it. ``lowest``: some zero points are 0.

    ``one_order``: modules of the same inputs have these in the same order, for it follows from them.
    """

    def pack(module: str, weight: Array) -> tuple[Pieces, Array]:
        inputs = weight.shape[1]
        of_input = np.arange(inputs) // (inputs if group < 0 else group)
        if act_order:
            inputs_of = module
            for several, name in (("[qkv]_proj", "attention"), ("(gate|up)_proj", "mlp")):
                inputs_of = re.sub(several, name, inputs_of) if one_order else inputs_of
            of_input = np.random.default_rng(list(inputs_of.encode())).permutation(of_input)
        if lowest:
            weight = np.abs(weight)
        codes, scales, zeros = quantize_groups(weight, of_input, bits, symmetric)
        pieces = {
            "qweight": torch.from_numpy(pack_words(codes, bits).T.copy()),
            "qzeros": torch.from_numpy(pack_words((zeros.T - offset) % 2**bits, bits)),
            "scales": torch.from_numpy(scales.T.copy()).half(),
            "g_idx": torch.from_numpy(of_input.astype(np.int32)),
        }
        return pieces, scales[:, of_input] * (codes - zeros[:, of_input])

    return pack


def options(**given: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False} | given


@pytest.mark.parametrize(
    ("bits", "symmetric", "group"),
    [
        pytest.param(bits, symmetric, group, marks=() if (place + symmetric) % 2 else pytest.mark.thorough)
        for bits in (2, 3, 4, 8)
        for symmetric in (True, False)
        for place, group in enumerate((32, 48, 128, -1), start=bits == 8)
    ],
)
def test_numbers_are_those_of_the_definition(bits: int, symmetric: bool, group: int, tmp_path: Path) -> None:
    config = options(bits=bits, group_size=group, sym=symmetric)
    model = write_model(tmp_path, packer(bits, group, symmetric), config)
    model.assert_float32_logits_equal_transformers()
    errors, forms = model.errors(), model.forms()
    if group == 48:  # groups of 32 do not fit into them
        assert forms == {Format("int8")}
        assert max(errors.values()) < 0.007
    elif bits == 8:
        assert forms == {Format("int8", wide=symmetric and group != 32)}
        assert max(errors.values()) <= (0.0 if symmetric else 0.007)
    else:
        assert forms == {Format("int4", minimum=not symmetric)}
        assert max(errors.values()) <= (0.0 if symmetric else 5e-4)
        assert set(model.errors("int8").values()) == {0.0}


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_second_version_stores_zero_points_as_they_are(bits: int, tmp_path: Path) -> None:
    config = options(bits=bits, sym=False, checkpoint_format="gptq_v2")
    write_model(tmp_path, packer(bits, symmetric=False, offset=0), config).assert_float32_logits_equal_transformers()


def test_zero_point_below_the_lowest_stands_as_the_highest(tmp_path: Path) -> None:
    """The first version stores one less, and 0 has no such place."""
    model = write_model(tmp_path, packer(symmetric=False, lowest=True), options(sym=False))
    model.assert_float32_logits_equal_transformers()


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (8, 32)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_inputs_in_an_order_of_their_own(bits: int, symmetric: bool, group: int, tmp_path: Path) -> None:
    config = options(bits=bits, group_size=group, desc_act=True, sym=symmetric, lm_head=True)
    # No more inputs than share a scale when they are quantized, so that this does not depend on the order.
    shape = CONFIG | {"intermediate_size": 128}
    model = write_model(tmp_path, packer(bits, group, symmetric, act_order=True), config, shape)
    model.assert_float32_logits_equal_transformers()
    forms, errors = model.forms(), model.errors()
    assert {form.precision for form in forms} == {"int4" if bits == 4 else "int8"}
    if bits == 8 and not symmetric:
        assert forms == {Format("int8")}
        assert max(errors.values()) < 0.007
    else:
        assert len(forms) == 8  # an order for each matrix
        assert max(errors.values()) <= (0.0 if symmetric else 5e-4)
    assert_logits_equal_numpy(model)


def test_each_expert_has_an_order_of_its_own(tmp_path: Path) -> None:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
    mixture = CONFIG | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 32} | experts
    model = write_model(tmp_path, packer(act_order=True), options(desc_act=True, lm_head=True), mixture)
    formats = checkpoint_of(model.folder).formats
    orders = [form.order for name, form in formats.items() if ".expert_" in name]
    assert len(orders) == 16
    assert all(orders)
    assert_logits_equal_numpy(model)


def test_orders_that_differ_in_one_product_are_packed_anew(tmp_path: Path) -> None:
    model = write_model(tmp_path, packer(act_order=True, one_order=False), options(desc_act=True))
    formats = checkpoint_of(model.folder).formats
    assert formats["layers.0.qkv.weight"] == Format("int8")
    assert formats["layers.0.attention_out.weight"].order != 0
    assert max(model.errors().values()) < 0.007


def test_groups_of_unequal_sizes_are_packed_anew(tmp_path: Path) -> None:
    model = write_model(tmp_path, packer(), options(desc_act=True))
    change_tensors(model.folder, lambda tensors: tensors[f"{MODULE}.g_idx"].__setitem__(0, 5))
    assert checkpoint_of(model.folder).formats["layers.1.feed_forward_out.weight"] == Format("int8")
    model.load()


@pytest.mark.parametrize("symmetric", [True, False])
def test_packed_logits_equal_numpy_on_the_same_numbers(symmetric: bool, tmp_path: Path) -> None:
    config = options(sym=symmetric, lm_head=True)
    assert_logits_equal_numpy(write_model(tmp_path, packer(symmetric=symmetric), config))


def assert_logits_equal_numpy(model: QuantizedModel) -> None:
    """Of a model whose head is quantized too. ``test_truth_rounded.py`` says how near they can be."""
    loaded = model.load()
    weights = {
        name: value.dequantize() if isinstance(value, kernels.PackedMatrix) else np.asarray(value)
        for name, value in loaded.weights.items()
    }
    round_query = round_to_bfloat16 if kernels.instruction_set() in ("amx", "avx512") else np.asarray
    judge = NumpyDecoder(loaded.config, weights, round_to_int8, round_to_bfloat16, round_query, rounded=True)
    errors = []
    for seed in range(12):
        ids = prompt(CONFIG["vocab_size"], length=5, seed=seed)
        expected = judge.logits(ids)
        errors.append(np.abs(run_rows(loaded, ids) - expected).max() / np.abs(expected).max())
    assert np.median(errors) <= 1e-5
    assert max(errors) <= 5e-2


def test_act_order_of_one_group_is_no_order(tmp_path: Path) -> None:
    model = write_model(tmp_path, packer(group=-1, act_order=True), options(desc_act=True, group_size=-1))
    assert set(model.errors().values()) == {0.0}


@pytest.mark.parametrize("config", [{"quantize_config": ...}, {}], ids=["old file", "config"])
def test_expected_formats_are_those_of_the_tensors(config: dict[str, Any], tmp_path: Path) -> None:
    quantization = options() if not config else {k: v for k, v in options().items() if k != "quant_method"}
    model = write_model(tmp_path, packer(), quantization, **config)
    described = models.describe(model.folder)
    assert described.formats == checkpoint_of(model.folder).formats
    assert described.precision("auto") == model.load().card.precision == "int4"
    assert described.formats["embedding.weight"] == Format("bfloat16")
    assert described.quantization is not None
    assert described.quantization.summary == "gptq, 4 bits, groups of 32, symmetric"
    assert set(model.errors().values()) == {0.0}


def test_modules_that_are_not_quantized_stay_as_they_are(tmp_path: Path) -> None:
    inner = packer()
    eight = packer(bits=8, group=64)

    def mixed(module: str, weight: Array) -> tuple[Pieces, Array]:
        if module.endswith("o_proj"):
            half = torch.from_numpy(weight).half()
            return {"weight": half}, half.float().numpy()
        return (eight if module.endswith("down_proj") else inner)(module, weight)

    dynamic = {r"-:.*\.o_proj": {}, r"+:.*\.mlp\.down_proj": {"bits": 8, "group_size": 64}}
    model = write_model(tmp_path, mixed, options(dynamic=dynamic))
    model.assert_float32_logits_equal_transformers()
    formats = checkpoint_of(model.folder).formats
    assert formats == models.describe(model.folder).formats
    assert formats["layers.0.attention_out.weight"] == Format("bfloat16")
    assert formats["layers.0.feed_forward_out.weight"] == Format("int8")
    assert formats["layers.0.qkv.weight"] == Format("int4")


def test_modules_named_in_a_block_are_the_quantized_ones(tmp_path: Path) -> None:
    quantized = packer()

    def only_attention(module: str, weight: Array) -> tuple[Pieces, Array]:
        if ".self_attn." in module:
            return quantized(module, weight)
        half = torch.from_numpy(weight).half()
        return {"weight": half}, half.float().numpy()

    names = [["self_attn.q_proj", "self_attn.k_proj"], ["self_attn.v_proj"], ["self_attn.o_proj"]]
    model = write_model(tmp_path, only_attention, options(modules_in_block_to_quantize=names))
    assert models.describe(model.folder).formats["layers.0.feed_forward_in.weight"] == Format("bfloat16")
    model.assert_float32_logits_equal_transformers()
    change_config(model.folder, modules_in_block_to_quantize=[["mlp.up_proj"]])
    with pytest.raises(ModelError, match=r"k_proj\.qweight: is quantized, where the config says"):
        model.load()


def test_biases_of_zeros_change_nothing_and_others_are_refused(tmp_path: Path) -> None:
    """AutoGPTQ stored them for layers that have none."""
    model = write_model(tmp_path, packer(), options())
    change_tensors(model.folder, lambda tensors: tensors.update({f"{MODULE}.bias": torch.zeros(128).half()}))
    model.assert_float32_logits_equal_transformers()
    change_tensors(model.folder, lambda tensors: tensors.update({f"{MODULE}.bias": torch.ones(128).half()}))
    with pytest.raises(ModelError, match=r"down_proj\.bias: is not part of"):
        model.load()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> QuantizedModel:
    return write_model(tmp_path_factory.mktemp("gptq"), packer(), options())


@pytest.fixture
def copy(whole: QuantizedModel, tmp_path: Path) -> Path:
    for file in whole.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


WRONG_TENSORS: dict[str, tuple[Callable[[Pieces], object], str]] = {
    "no scales": (lambda t: t.pop(f"{MODULE}.scales"), r"down_proj\.qweight: has no .*scales beside it"),
    "no zero points": (lambda t: t.pop(f"{MODULE}.qzeros"), r"has no .*down_proj\.qzeros beside it"),
    "wide integers": (
        lambda t: t.update({f"{MODULE}.qweight": t[f"{MODULE}.qweight"].long()}),
        r"qweight: its type I64 does not fit",
    ),
    "whole scales": (
        lambda t: t.update({f"{MODULE}.scales": t[f"{MODULE}.scales"].int()}),
        r"scales: its type I32 does not fit",
    ),
    "few scales": (
        lambda t: t.update({f"{MODULE}.scales": t[f"{MODULE}.scales"][1:]}),
        r"scales: its shape is \[7, 128\], where \[8, 128\] would fit",
    ),
    "few zero points": (
        lambda t: t.update({f"{MODULE}.qzeros": t[f"{MODULE}.qzeros"][:, 1:]}),
        r"qzeros: its shape is \[8, 15\], where \[8, 16\] would fit",
    ),
    "other inputs": (
        lambda t: t.update({f"{MODULE}.qweight": t[f"{MODULE}.qweight"][:-4]}),
        r"qzeros: its shape is \[8, 16\], where \[7, 16\]",
    ),
    "group beyond the last": (
        lambda t: t[f"{MODULE}.g_idx"].__setitem__(7, 8),
        r"g_idx: names groups from 0 to 8, where there are 8",
    ),
    "negative group": (lambda t: t[f"{MODULE}.g_idx"].__setitem__(7, -1), r"g_idx: names groups from -1"),
    "short order": (
        lambda t: t.update({f"{MODULE}.g_idx": t[f"{MODULE}.g_idx"][1:]}),
        r"g_idx: its shape is \[255\], where \[256\] would fit",
    ),
    "infinite scale": (
        lambda t: t[f"{MODULE}.scales"].__setitem__((0, 0), float("inf")),
        r"scales: holds numbers that are not finite",
    ),
    "stored twice": (
        lambda t: t.update({f"{MODULE}.weight": torch.ones(128, 256)}),
        r"down_proj\.weight: is stored both quantized and not",
    ),
    "a cube": (
        lambda t: t.update({f"{MODULE}.qweight": t[f"{MODULE}.qweight"][None]}),
        r"qweight: its shape \[1, 32, 128\] is not one of integers of 4 bits",
    ),
    "zero points in a symmetric model": (
        lambda t: t[f"{MODULE}.qzeros"].__setitem__((0, 0), 0),
        r"qzeros: holds zero points other than the middle, where the config says sym",
    ),
}


@pytest.mark.parametrize(("change", "said"), WRONG_TENSORS.values(), ids=WRONG_TENSORS)
def test_wrong_pieces_are_named(change: Callable[[Pieces], object], said: str, copy: Path) -> None:
    change_tensors(copy, change)
    with pytest.raises(ModelError, match=said):
        models.load(copy)


WRONG_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "bits": ({"bits": 5}, r"quantization_config: bits 5 is not supported; known: 2, 3, 4, 8"),
    "no bits": ({"bits": None}, "bits None is not supported"),
    "bits that are a word": ({"bits": "4"}, "bits '4' is not supported"),
    "other bits than stored": ({"bits": 8}, r"qzeros: its shape is"),
    "other groups than stored": ({"group_size": 64}, r"qzeros: its shape is \[8, 16\], where \[4, 16\]"),
    "no group": ({"group_size": 0}, "group_size must be -1 or a positive integer, got 0"),
    "a layout for one kernel": ({"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
    "an old layout for one kernel": ({"is_marlin_format": True}, "is_marlin_format = True is not known"),
    "small words": ({"pack_dtype": "int16"}, "pack_dtype 'int16' is not supported"),
    "rotated weights": ({"rotation": "hadamard"}, "rotation = hadamard is not known"),
    "no pattern": ({"dynamic": {"+:(": {}}}, r"dynamic: '\(' is not a regular expression"),
    "slow pattern": ({"dynamic": {"(x+x+)+y": {}}}, "could take forever"),
    "many patterns": ({"dynamic": {f"+:{n}": {} for n in range(65)}}, "65 patterns; at most 64"),
    "unknown override": ({"dynamic": {".*": {"rank": 8}}}, "rank = 8 is not known"),
    "blocks without lists": ({"modules_in_block_to_quantize": ["q_proj"]}, "must be a list of lists of names"),
    "unknown method": ({"quant_method": "hqq"}, r"the method 'hqq' is not supported; known: gptq, awq, compressed"),
}


@pytest.mark.parametrize(("change", "said"), WRONG_CONFIGS.values(), ids=WRONG_CONFIGS)
def test_wrong_configs_are_named(change: dict[str, Any], said: str, copy: Path) -> None:
    change_config(copy, **change)
    with pytest.raises(ModelError, match=said):
        models.load(copy)


def test_act_order_without_its_order_is_refused(copy: Path) -> None:
    change_config(copy, desc_act=True)
    change_tensors(copy, lambda tensors: tensors.pop(f"{MODULE}.g_idx"))
    with pytest.raises(ModelError, match=r"has no .*down_proj\.g_idx beside it, where the config says desc_act"):
        models.load(copy)


def test_file_cut_short_is_named(copy: Path) -> None:
    content = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(content[:-1000])
    with pytest.raises(ModelError, match=r"model\.safetensors: tensor .*: the file is truncated"):
        models.load(copy)


def test_size_of_a_piece_must_be_that_of_its_type(copy: Path) -> None:
    content = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).write_bytes(content.replace(b'"dtype":"I32"', b'"dtype":"I16"', 1))
    with pytest.raises(ModelError, match=r"its shape \[\d+(, \d+)?\] does not fit its \d+ bytes"):
        models.load(copy)


def test_turned_matrices_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, VARIANTS["gpt2"])
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": options()}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="quantized weights of GPT2LMHeadModel"):
        models.load(folder)


def test_packed_order_comes_back_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_model(tmp_path, packer(act_order=True), options(desc_act=True))
    monkeypatch.setattr(loading, "_SMALLEST_CACHED_BYTES", 0)
    settings = models.ModelSettings(max_logit_rows=64, cache_folder=str(tmp_path / "cache"))
    ids = prompt(CONFIG["vocab_size"], 40)
    first = run_rows(models.load(model.folder, settings), ids)
    assert list((tmp_path / "cache").glob("*.packed"))
    monkeypatch.setattr(loading, "pack_checkpoint", None)
    for memory in ("map", "copy"):
        again = models.load(model.folder, msgspec.structs.replace(settings, weights_memory=memory))
        assert again.weights.matrix("qkv", 0).ordered
        assert (run_rows(again, ids) == first).all()
