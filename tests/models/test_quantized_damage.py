"""Whatever is wrong with a quantized checkpoint, it is read or refused by name; nothing else happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantized_models import Packer, Pieces, safetensors_torch, torch, write_model
from small_models import checkpoint_of
from test_quantized_awq import options as awq_options
from test_quantized_awq import packer as awq_packer
from test_quantized_bitsandbytes import four_bit_packer
from test_quantized_bitsandbytes import options as bitsandbytes_options
from test_quantized_compressed_tensors import args
from test_quantized_compressed_tensors import config as compressed_options
from test_quantized_compressed_tensors import packer as compressed_packer
from test_quantized_float8 import options as float8_options
from test_quantized_float8 import packer as float8_packer
from test_quantized_gptq import options as gptq_options
from test_quantized_gptq import packer as gptq_packer

from dragoman.core.errors import ModelError
from dragoman.models.parameters import parameters
from dragoman.models.tensors import Format

_GROUPS = args(num_bits=4, strategy="group", group_size=32, symmetric=False)
SCHEMES: dict[str, tuple[Packer, dict[str, Any]]] = {
    "gptq": (gptq_packer(symmetric=False), gptq_options(sym=False)),
    "awq": (awq_packer(), awq_options()),
    "packed": (compressed_packer(_GROUPS, "pack-quantized"), compressed_options(_GROUPS, "pack-quantized")),
    "int8": (compressed_packer(args(), "int-quantized"), compressed_options(args(), "int-quantized")),
    "nf4": (four_bit_packer(nested=True), bitsandbytes_options()),
    "fp8": (float8_packer(32, 64), float8_options(weight_block_size=[32, 64])),
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], Pieces]]:
    """Config and tensors of a model of each scheme."""
    found = {}
    for name, (packer, options) in SCHEMES.items():
        folder = write_model(tmp_path_factory.mktemp(name), packer, options, CONFIG).folder
        tensors = safetensors_torch.load_file(folder / "model.safetensors")
        found[name] = (json.loads((folder / "config.json").read_text()), tensors)
    return found


def read_everything(folder: Path) -> None:
    """All that loading reads. Raises ModelError."""
    checkpoint = checkpoint_of(folder)
    formats = checkpoint.formats
    for parameter in parameters(checkpoint.spec):
        checkpoint.read(parameter)
        if parameter.matrix:
            for form in {formats.get(parameter.name, Format("int8")), Format("int8"), Format("int4", minimum=True)}:
                checkpoint.codes(parameter, form)


def damage_tensor(data: st.DataObject, tensors: Pieces) -> None:
    """One piece is gone, another's, shorter, of another shape or type, or full of other bytes."""
    name = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors[name]
    match data.draw(st.sampled_from(["drop", "swap", "cut", "shape", "type", "bytes"])):
        case "drop":
            del tensors[name]
        case "swap":
            tensors[name] = tensors[data.draw(st.sampled_from(sorted(tensors)))].clone()
        case "cut" if tensor.ndim:
            tensors[name] = tensor[: data.draw(st.integers(0, tensor.shape[0]))]
        case "shape":
            tensors[name] = tensor.reshape(data.draw(st.sampled_from([(-1,), (1, -1), (-1, 1), (1, 1, -1)])))
        case "type":
            dtype = data.draw(st.sampled_from(["int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32"]))
            tensors[name] = tensor.float().to(getattr(torch, dtype))
        case _:
            seed = data.draw(st.integers(0, 2**16))
            raw = torch.randint(0, 256, (tensor.numel() * tensor.element_size(),), generator=torch.manual_seed(seed))
            tensors[name] = raw.to(torch.uint8).view(tensor.dtype).reshape(tensor.shape)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 2**31, 2**70, 1.5, float("nan")]),
    st.sampled_from(["", "4", "gptq", "group", "re:.*", "re:(", "symmetric", "Linear"]),
    st.lists(st.sampled_from(["lm_head", "Linear", 1, None, "re:.*q_proj"]), max_size=3),
    st.dictionaries(st.sampled_from(["targets", "weights", "bits", "format", ".*"]), st.sampled_from([1, "x", {}, []])),
)


def damage_config(data: st.DataObject, block: dict[str, Any]) -> None:
    """One of its values, at any depth, is another."""
    while True:
        key = data.draw(st.sampled_from(sorted(block)))
        if not isinstance(block[key], dict) or not block[key] or data.draw(st.booleans()):
            block[key] = data.draw(ODD)
            return
        block = block[key]


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damage_is_read_or_named(
    scheme: str,
    data: st.DataObject,
    wholes: dict[str, tuple[dict[str, Any], Pieces]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    config, tensors = json.loads(json.dumps(wholes[scheme][0])), dict(wholes[scheme][1])
    if data.draw(st.booleans()):
        damage_config(data, config["quantization_config"])
    else:
        damage_tensor(data, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors_torch.save_file({n: t.clone().contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    said = ""
    try:
        read_everything(folder)
    except ModelError as error:
        said = error.message
    assert not said or str(folder) in said or "config" in said
