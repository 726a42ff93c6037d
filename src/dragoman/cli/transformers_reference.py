"""Results of transformers for a model: run as a separate script, with a question on standard input.

In: ``{"folder", "gguf_file", "texts", "messages", "encoder_ids", "logit_ids"}``. Out, on the last line: ``token_ids``
of the texts, the ``chat`` that the messages are rendered to, ``logits`` of every position of ``logit_ids`` (after
``encoder_ids``, where the model has an encoder), and in ``failures`` why one of them is missing. No module of the
program imports this one: the program does without transformers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return transformers' results, each with its own failure."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    found: dict[str, Any] = {"failures": {}}

    def add(name: str, make: Callable[[], Any]) -> None:
        try:
            found[name] = make()
        except Exception as error:
            found["failures"][name] = f"{type(error).__name__}: {error}"[:500]

    place = {"gguf_file": asked["gguf_file"]} if asked["gguf_file"] else {}

    def tokenizer() -> Any:
        return transformers.AutoTokenizer.from_pretrained(asked["folder"], **place)

    def chat() -> str | None:
        loaded = tokenizer()
        if not loaded.chat_template:
            return None
        text: str = loaded.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        return text

    def logits() -> list[list[float]]:
        encoder_ids, ids = asked["encoder_ids"], torch.tensor([asked["logit_ids"]])
        kind = transformers.AutoModelForSeq2SeqLM if encoder_ids else class_of_decoder(asked["folder"], place)
        plain = {"attn_implementation": "eager"}
        if (
            int(transformers.__version__.partition(".")[0]) >= 5
        ):  # its other experts want widths that are multiples of 4
            plain["experts_implementation"] = "eager"
        model = kind.from_pretrained(asked["folder"], dtype=torch.float32, **plain, **place)
        with torch.no_grad():
            if encoder_ids:
                out = model(torch.tensor([encoder_ids]), decoder_input_ids=ids)
            else:
                out = model(ids, **_unseen_image(model, ids))
            rows: list[list[float]] = out.logits[0].float().tolist()
        return rows

    add("token_ids", lambda: [tokenizer()(text)["input_ids"] for text in asked["texts"]])
    add("chat", chat)
    if asked["logit_ids"]:
        add("logits", logits)
        found |= {name: asked[name] for name in ("encoder_ids", "logit_ids")}
    return found


def class_of_decoder(folder: str, place: dict[str, str]) -> Any:
    """Return the class that loads all of a decoder: one that sees has another automatic class than those that do not,
    and one that hears may have none."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    config = transformers.AutoConfig.from_pretrained(folder, **place)
    architectures = config.architectures or []
    if set(architectures) & set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()):
        return transformers.AutoModelForImageTextToText
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    own = (getattr(transformers, str(name), None) for name in architectures)
    return next((found for found in own if found is not None), transformers.AutoModelForCausalLM)


def _unseen_image(model: Any, ids: Any) -> dict[str, Any]:
    """Idefics wants an image also where no token sees one."""
    import torch

    if model.config.model_type != "idefics":
        return {}
    side = model.config.vision_config.image_size
    return {
        "pixel_values": torch.zeros(1, 1, 3, side, side),
        "image_attention_mask": torch.zeros(1, ids.shape[1], 1, dtype=torch.bool),
    }


if __name__ == "__main__":
    print("\n" + json.dumps(answer(json.load(sys.stdin))))
