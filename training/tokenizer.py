"""The tokenizer: byte-level BPE that cuts a rare word alike wherever it stands, with every digit on its own.

A usual byte-level BPE joins a space with the first letters of the word behind it before anything else, so that a rare
word is cut otherwise in a sentence than in quotes, and a small model that has read a name cannot say it as the key of
an object. Here words are merged without their space; only a thousand common words, each a token of its own, are joined
with it, by the last merges. Written down it is a list of merges like any other.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from training.model import Llama

VOCABULARY_SIZE = 4096
SPACED_WORDS = 1000  # entries that are a word with the space before it
WHOLE_SHARE = 0.8  # a spaced word begins no other word, but in so few of the places that are left

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
WORD_WITHOUT_SPACE = WORD_PATTERN.replace(r" ?\p{L}+", r"\p{L}+")
SPACE = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(" ")[0][0]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of `VOCABULARY_SIZE` entries, whose first ids are the special tokens."""
    added = [*SPECIAL_TOKENS, *VISIBLE_TOKENS]
    between = re.compile("|".join(map(re.escape, added)))
    parts = [part for text in texts for part in between.split(text) if part]
    pieces = _tokenizer(BPE(), WORD_WITHOUT_SPACE)
    trainer = BpeTrainer(
        vocab_size=VOCABULARY_SIZE - SPACED_WORDS,
        special_tokens=added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces.train_from_iterator(parts, trainer)
    learned = json.loads(pieces.to_str())["model"]
    vocabulary: dict[str, int] = learned["vocab"]
    merges = [tuple(merge) for merge in learned["merges"]]
    for word in _common_words(parts, pieces):
        merges.append((SPACE, word))
        vocabulary[SPACE + word] = len(vocabulary)
    tokenizer = _tokenizer(BPE(vocab=vocabulary, merges=merges), WORD_PATTERN)
    tokenizer.add_special_tokens(added)
    return _with_visible_calls(tokenizer)


def _tokenizer(model: BPE, pattern: str) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _common_words(parts: list[str], pieces: Tokenizer) -> list[str]:
    """The commonest words that follow a space, are one entry of `pieces`, and seldom begin a longer word there."""
    whole, first = Counter[str](), Counter[str]()
    for word, count in Counter(word for part in parts for word in re.findall(r"(?<= )[^\W\d_]+", part)).items():
        cut = pieces.encode(word, add_special_tokens=False).tokens
        first[cut[0]] += count
        if len(cut) == 1:
            whole[word] += count
    common = [word for word, count in whole.most_common() if count >= WHOLE_SHARE * first[word]]
    return common[:SPACED_WORDS]


@torch.no_grad()
def carry_embeddings(model: Llama, old: Tokenizer, new: Tokenizer) -> None:
    """Give a model another tokenizer: its embeddings [tokens, width] are the output's too.

    Each new token gets the row of the old token of the same text. A word without its space also has a part in the row
    of the word with it, where most of its old text stood. A token that the old tokenizer lacks has the mean of the
    tokens it was cut into."""
    rows = model.model.embed_tokens.weight
    before, text_of = rows.clone(), decoders.ByteLevel()
    for token, place in new.get_vocab().items():
        spaced = old.token_to_id(SPACE + token) if token[0].isalpha() else None
        found = [row for row in (old.token_to_id(token), spaced) if row is not None]
        rows[place] = before[found or old.encode(text_of.decode([token]), add_special_tokens=False).ids].mean(0)


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
