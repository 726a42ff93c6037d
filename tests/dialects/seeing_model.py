"""A real server with a real engine on a small random model that sees: a SmolVLM with the embedded model's tokenizer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stub_runtime import FOLDER, RunningServer, running_server

from dragoman.dialects import made_dialects
from dragoman.engine.messages import LoadModel
from dragoman.models.settings import ModelSettings
from dragoman.server.settings import ServerSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

NAME, CONTEXT = "seeing", 1024
IMAGE, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
TAGS = (IMAGE, AROUND, WHOLE, *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)))
SETTINGS = ServerSettings(port=0, name=NAME, drain_s=0.5)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_seeing_model(folder: Path) -> Path:
    """Write it, as transformers does."""
    import tokenizers
    import torch
    import transformers
    from vision_models import CONFIGS, PREPROCESSORS

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.add_special_tokens([tokenizers.AddedToken(tag, special=True) for tag in TAGS])
    tokenizer.save(str(folder / "tokenizer.json"))
    described = json.loads((FOLDER / "tokenizer_config.json").read_text())
    described.pop("added_tokens_decoder", None)
    described |= {"chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    config = CONFIGS["smolvlm"] | {"image_token_id": tokenizer.token_to_id(IMAGE)}
    own = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": CONTEXT}
    config["text_config"] = config["text_config"] | own | {"bos_token_id": 0, "eos_token_id": 2}
    torch.manual_seed(7)
    torch.set_num_threads(1)
    model = transformers.SmolVLMForConditionalGeneration(transformers.AutoConfig.for_model(**config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSORS["smolvlm"]))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return folder


@contextmanager
def seeing_server(
    folder: Path, *, settings: ServerSettings = SETTINGS, dialect_settings: Mapping[str, Any] | None = None
) -> Iterator[RunningServer]:
    """The model in ``folder``, served."""
    model = LoadModel(
        source=str(folder),
        settings=ModelSettings(
            precision="float32", max_sequences=8, max_context=CONTEXT, cache_bytes=0, generation_config="none"
        ),
    )
    with running_server(settings, model, folder, dialects=made_dialects(dialect_settings)) as server:
        yield server
