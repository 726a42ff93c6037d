"""The same checkpoints in transformers, the reference that is not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from transformers_checkpoint import auto_class

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)  # the models are tiny: a second thread only waits for the first


def load_reference(folder: Path, dtype: str = "float32") -> Any:
    """The checkpoint as transformers reads it."""
    # Its other way through Falcon's attention adds ALiBi twice, to the mask and to the scores.
    config = json.loads((folder / "config.json").read_text())
    alibi = config.get("alibi", False)
    model = auto_class(config).from_pretrained(
        folder,
        dtype=getattr(torch, dtype),
        attn_implementation="sdpa" if alibi else "eager",
        experts_implementation="eager",  # its other ones want widths that are multiples of 4
    )
    model.generation_config.eos_token_id = None  # both sides go on for as long as they are asked
    return model.eval()


def reference_logits(model: Any, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of all positions, from one pass."""
    with torch.no_grad():
        return np.asarray(model(torch.tensor(token_ids[None], dtype=torch.long)).logits[0].float())


def reference_decode(model: Any, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Logits of all positions, one token at a time."""
    past, rows = None, []
    with torch.no_grad():
        for token in token_ids:
            step = model(torch.tensor([[int(token)]]), past_key_values=past, use_cache=True)
            past = step.past_key_values
            rows.append(np.asarray(step.logits[0, -1].float()))
    return np.stack(rows)


def reference_greedy(model: Any, token_ids: NDArray[np.int32], count: int) -> list[int]:
    """``count`` tokens of ``generate`` without sampling."""
    ids = torch.tensor(token_ids[None], dtype=torch.long)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)
    return [int(i) for i in made[0, len(token_ids) :]]


def reference_confirms(model: Any, token_ids: NDArray[np.int32], continuation: list[int]) -> NDArray[np.float32]:
    """Assert that each token of a continuation is the likeliest after all before it, and return the prompt's logits.

    One pass tells what ``generate`` tells in one for each token, where logits do not depend on what comes later.
    """
    logits = reference_logits(model, np.array([*token_ids, *continuation], np.int32))
    assert continuation == logits[len(token_ids) - 1 : -1].argmax(-1).tolist()
    return logits[: len(token_ids)]


def assert_close(ours: NDArray[np.float32], theirs: NDArray[np.float32], relative: float) -> None:
    """No logit differs by more than ``relative`` of the largest one."""
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= relative * np.abs(theirs).max()
