"""Serving, without a process, of a small model that sees: with a tokenizer of bytes and the names in brackets."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from stub_runtime import LocalEngine

from dragoman import models
from dragoman.core.images import ImageInput
from dragoman.core.observer import Observer, Observers
from dragoman.core.sampling_defaults import SamplingDefaults
from dragoman.engine.engine import Engine
from dragoman.engine.messages import EngineInfo
from dragoman.models.model import Model
from dragoman.serving.model import ServedModel
from dragoman.serving.model_loader import served_model
from dragoman.serving.model_registry import ModelSource
from dragoman.serving.recorder import Recorder
from dragoman.serving.serving import NOT_RECORDED, EngineServing
from dragoman.text import ChatTemplate, Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import idefics_models
import vision_models

NAMES = ["<image>", "<fake_token_around_image>", "<global-img>", "<|end|>", "<bos>"]
NAMES += [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]

PARTS = """{% for message in messages %}{{ message.role }}:{% for part in message.content %}\
{% if part.type == 'text' %}{{ part.text }}{% elif part.type == 'image' %}<image>{% endif %}{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
"""Reads contents that are lists, and nothing of strings."""
STRINGS = """{% for message in messages %}{{ message.role }}:{{ message.content }}<|end|>
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


def make_model(folder: Path) -> Path:
    """Write a small SmolVLM, with its tokenizer."""
    config = vision_models.CONFIGS["smolvlm"]
    text = config["text_config"] | {"vocab_size": 256 + len(NAMES), "eos_token_id": 259}
    vision_models.CONFIGS["smolvlm chat"] = config | {"image_token_id": 256, "text_config": text}
    vision_models.PREPROCESSORS["smolvlm chat"] = vision_models.PREPROCESSORS["smolvlm"]
    try:
        vision_models.save(folder, "smolvlm chat")
    finally:
        del vision_models.CONFIGS["smolvlm chat"], vision_models.PREPROCESSORS["smolvlm chat"]
    return _with_tokenizer(folder)


def make_idefics(folder: Path) -> Path:
    """Write a small Idefics, with the same tokenizer, which alone says what its image token is."""
    more = {"vocab_size": 256, "additional_vocab_size": len(NAMES), "eos_token_id": 259, "image_token_id": None}
    idefics_models.save(folder, **more)
    return _with_tokenizer(folder)


def _with_tokenizer(folder: Path) -> Path:
    from tokenizers import AddedToken, decoders, pre_tokenizers
    from tokenizers import Tokenizer as Written
    from tokenizers.models import BPE

    vocabulary = {each: place for place, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    written = Written(BPE(vocabulary, []))
    written.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    written.decoder = decoders.ByteLevel()
    written.add_special_tokens([AddedToken(name, special=True) for name in NAMES])
    written.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "bos_token": "<bos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load_model(folder: Path) -> Model:
    """The model, computed in float32."""
    settings = models.ModelSettings(precision="float32", max_tokens=256, kv_tokens=2048, cache_bytes=0)
    return models.load(folder, settings)


def served(model: Model, folder: Path, template: str) -> ServedModel:
    info = EngineInfo(
        model=model.card,
        vocab_size=model.vocab_size,
        max_context=1024,
        block_size=model.block_size,
        num_blocks=model.num_blocks,
        max_running=16,
        max_unfinished=64,
        step_tokens=256,
        load_s=0.0,
    )
    source = ModelSource(name="seeing", source=str(folder))
    text = ChatTemplate({"default": template})
    return served_model(source, info, Tokenizer.load(folder), text, SamplingDefaults())


@asynccontextmanager
async def seeing_server(
    model: Model,
    folder: Path,
    template: str = PARTS,
    *,
    image_bytes: int = 1 << 30,
    recorder: Recorder = NOT_RECORDED,
    observer: Observer | None = None,
) -> AsyncIterator[tuple[EngineServing, LocalEngine]]:
    """The serving, and the engine under it."""
    engine = LocalEngine()
    engine.engine = Engine(model)
    card = served(model, folder, template)
    observers = Observers() if observer is None else Observers(observer)
    serving = EngineServing(engine, card, observers, image_bytes=image_bytes, recorder=recorder)
    stepping = asyncio.create_task(engine.run())
    try:
        yield serving, engine
    finally:
        stepping.cancel()
        serving.close()
        card.template.close()


def picture(width: int, height: int, seed: int = 0) -> ImageInput:
    """Noise, as it comes out of a decoder."""
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    return ImageInput(width=width, height=height, pixels=levels.tobytes())
