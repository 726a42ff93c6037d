"""Writes a trained model as a Hugging Face folder: `python -m training.export --work FOLDER --out builtin`."""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from tokenizers import Tokenizer

from training.chat import CHAT_TEMPLATE
from training.checkpoint import load_checkpoint, saved_config
from training.model import Llama, ModelConfig
from training.tokenizer import END_OF_TEXT, SPECIAL_TOKENS, TURN_END, load_tokenizer, special_id


def export(model: Llama, tokenizer: Tokenizer, folder: Path) -> None:
    """The five files: weights in bfloat16, and what is needed to run and to chat with them."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.to(torch.bfloat16).cpu().contiguous() for name, tensor in model.state_dict().items()}
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", tokenizer_config(tokenizer, model.config))
    _write(folder / "config.json", model_config(tokenizer, model.config))
    _write(folder / "generation_config.json", generation_config(tokenizer))


def load_model(folder: Path) -> Llama:
    """The shipped weights, computed with in float32."""
    model = Llama(ModelConfig.of_folder(folder))
    model.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return model.eval()


def model_config(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    end = special_id(tokenizer, END_OF_TEXT)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **config.as_dict(),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": [special_id(tokenizer, TURN_END), end],
        "pad_token_id": end,
        "torch_dtype": "bfloat16",
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    end = special_id(tokenizer, END_OF_TEXT)
    return {
        "bos_token_id": end,
        "eos_token_id": [special_id(tokenizer, TURN_END), end],
        "pad_token_id": end,
        # At temperature 1 a model of this size strays into unlikely words, and does not find back.
        "do_sample": True,
        "temperature": 0.3,
        "top_p": 0.9,
        "min_p": 0.1,
    }


def tokenizer_config(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": SPECIAL_TOKENS[1:],
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(number): {
                "content": token.content,
                "lstrip": token.lstrip,
                "normalized": token.normalized,
                "rstrip": token.rstrip,
                "single_word": token.single_word,
                "special": token.special,
            }
            for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
        },
        "chat_template": CHAT_TEMPLATE,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="the work folder of a training run")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    options = parser.parse_args()
    model = Llama(saved_config(options.work))
    position = load_checkpoint(options.work, model)
    export(model, load_tokenizer(options.work / "tokenizer.json"), options.out)
    print(f"wrote {options.out} from step {position.step}, {position.tokens:,} tokens")


if __name__ == "__main__":
    main()
