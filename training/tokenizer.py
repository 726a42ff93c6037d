"""The tokenizer: byte-level BPE with every digit on its own."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

VOCABULARY_SIZE = 4096

END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
FIM_PREFIX = "<|fim_prefix|>"
FIM_SUFFIX = "<|fim_suffix|>"
FIM_MIDDLE = "<|fim_middle|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE]
VISIBLE_TOKENS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]

# Words with their leading space, single digits, runs of signs, white space: as Llama 3 splits, but for the digits.
WORD_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of `VOCABULARY_SIZE` entries, whose first ids are the special tokens."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[*SPECIAL_TOKENS, *VISIBLE_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_visible_calls(tokenizer)


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that every tokenizer of ours has."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(found)


def _with_visible_calls(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer marks every added token special; those around calls and reasoning are text that clients must see."""
    described = json.loads(tokenizer.to_str())
    for added in described["added_tokens"]:
        added["special"] = added["content"] in SPECIAL_TOKENS
    return Tokenizer.from_str(json.dumps(described, ensure_ascii=False))
