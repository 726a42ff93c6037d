"""Baichuan, whose own code no library has: its tensors under Llama's names are what transformers computes with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_cases import Case, interleave, write_case
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from small_models import VARIANTS, Config, make_folder, prompt, run_greedy, run_rows
from transformers_reference import assert_close, load_reference, reference_logits

from dragoman import models
from dragoman.models.alibi import alibi_slopes

torch = pytest.importorskip("torch")
SETTINGS = models.ModelSettings(precision="float32", max_tokens=256, max_logit_rows=256, max_sequences=1)
ATTENTION = "model.layers.{}.self_attn."
_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16}
LLAMA: Config = VARIANTS["llama"] | _HEADS | {"hidden_size": 96}


def make_baichuan(root: Path, llama: Config, **changes: Any) -> tuple[Path, Any]:
    """A checkpoint as Baichuan's are, and transformers' Llama of the same numbers."""
    folder = make_folder(root, llama)
    theirs = load_reference(folder)
    [file] = folder.glob("*.safetensors")
    tensors = load_file(file)
    for layer in range(llama["num_hidden_layers"]):
        parts = [tensors.pop(f"{ATTENTION.format(layer)}{name}_proj.weight") for name in "qkv"]
        tensors[f"{ATTENTION.format(layer)}W_pack.weight"] = np.concatenate(parts)
    save_file(tensors, file)
    names = {"architectures": ["BaichuanForCausalLM"], "model_type": "baichuan"}
    config = {key: value for key, value in (llama | names | changes).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder, theirs


def with_distances(model: Any, ids: NDArray[np.int32], heads: int) -> NDArray[np.float32]:
    """Logits of transformers' Llama with ALiBi: every token at position 0, distances in the mask that is added."""
    places = torch.arange(len(ids))
    distance = (places[:, None] - places).float()
    mask = -torch.tensor(alibi_slopes(heads))[:, None, None] * distance
    mask = mask.masked_fill(distance < 0, torch.finfo(torch.float32).min)[None]
    with torch.no_grad():
        found = model(
            torch.tensor(ids[None], dtype=torch.long), attention_mask=mask, position_ids=torch.zeros(1, len(ids)).long()
        )
    return np.asarray(found.logits[0])


def test_the_smaller_one_rotates_as_llama_does(tmp_path: Path) -> None:
    folder, theirs = make_baichuan(tmp_path, LLAMA)
    ours = models.load(folder, SETTINGS)
    ids = prompt(LLAMA["vocab_size"])
    continued = np.array([*ids, *run_greedy(ours, ids, 64)], np.int32)
    expected = reference_logits(theirs, continued)
    assert_close(run_rows(ours, ids), expected[: len(ids)], 1e-4)
    assert continued[len(ids) :].tolist() == expected[len(ids) - 1 : -1].argmax(-1).tolist()


def test_the_larger_one_has_alibi(tmp_path: Path) -> None:
    folder, theirs = make_baichuan(tmp_path, LLAMA, max_position_embeddings=None, model_max_length=200)
    ours = models.load(folder, SETTINGS)
    assert ours.max_context == 200
    ids = prompt(LLAMA["vocab_size"])
    continued = np.array([*ids, *run_greedy(ours, ids, 64)], np.int32)
    expected = with_distances(theirs, continued, LLAMA["num_attention_heads"])
    assert_close(run_rows(ours, ids), expected[: len(ids)], 1e-4)
    assert continued[len(ids) :].tolist() == expected[len(ids) - 1 : -1].argmax(-1).tolist()


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_second_one_divides_the_rows_of_its_output_by_their_lengths(dtype: str, tmp_path: Path) -> None:
    small = LLAMA | {"hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8}
    llama = small | {"vocab_size": 125_696, "num_hidden_layers": 1, "tie_word_embeddings": False}
    folder, theirs = make_baichuan(tmp_path, llama)
    if dtype == "BF16":
        [file] = folder.glob("*.safetensors")
        stored = pytest.importorskip("safetensors.torch")
        stored.save_file({name: tensor.bfloat16() for name, tensor in stored.load_file(file).items()}, file)
        theirs.bfloat16().float()
    head = theirs.lm_head.weight.data
    head /= head.norm(dim=1, keepdim=True)
    ids = prompt(1000, length=12)
    bound = 1e-4 if dtype == "F32" else 2**-8  # the divided rows are rounded to bfloat16, as they are stored
    assert_close(run_rows(models.load(folder, SETTINGS), ids), reference_logits(theirs, ids), bound)


def test_the_larger_one_has_alibi_in_gguf_files_too(tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    folder, file = write_case(
        Case("baichuan", LLAMA | small | {"num_hidden_layers": 40, "intermediate_size": 32}, change=interleave),
        tmp_path,
    )
    ids = prompt(LLAMA["vocab_size"])
    ours = run_rows(models.load(file, SETTINGS), ids)
    assert_close(ours, with_distances(load_reference(folder), ids, 2), 1e-4)
