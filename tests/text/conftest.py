"""Tokenizers of every kind that models come with, each trained in a moment on a few lines of text."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from dragoman import text

sys.path.insert(0, str(Path(__file__).parent))

GPT2_FOLDER = Path(__file__).resolve().parents[3] / "shared/data/gpt2-tokenizer"

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]

LINES = [
    "The merchant asked the dragoman, and the dragoman answered: \"It's not far; don't worry.\"",
    "In  the   market there were 12 camels, 345 goats and a dog; they weren't for sale.",
    "def speak(tongue):\n\tif tongue == 'ελληνικά':\n\t\treturn 'Καλημέρα κόσμε'\n",
    "Le café était fermé, naïve façade. Übergrößen für Straßenfüße! ¿Qué pasó, señor?",
    "Переводчик стоял между купцами. 通訳は商人の間に立っていた。 번역가가 말했다。 译者站在商人之间。",
    "مترجم بين التجار يتكلم. दुभाषिया व्यापारियों के बीच खड़ा था। 😀 🐫 👨‍👩‍👧 🇫🇷 é ñ",
    "He said hello hello hello, then she said goodbye; they laughed and the camels laughed.",
] * 4


def byte_level_bpe() -> Tokenizer:
    """GPT-2, Llama 3, Qwen: every byte is a letter of an alphabet of 256."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    # Added tokens outside the alphabet, inside it but not ASCII, and not special.
    tokenizer.add_tokens([AddedToken("tool call", special=False), AddedToken("é", special=False)])
    fill = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in fill])
    return tokenizer


def llama_bpe() -> Tokenizer:
    """Llama 2: SentencePiece's BPE with byte fallback, written as normalizer and decoders."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def gemma_bpe() -> Tokenizer:
    """Gemma: the same without the leading space."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _sentencepiece_bpe() -> Tokenizer:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")
    trained.train_from_iterator(LINES[:2], trainers.BpeTrainer(vocab_size=120, show_progress=False))
    state = json.loads(trained.to_str())["model"]
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *state["vocab"], "▁▁"]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    merges = [tuple(merge) for merge in state["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def metaspace_bpe() -> Tokenizer:
    """Llama as newer converters write it: Metaspace on both sides, with byte fallback."""
    tokenizer = _sentencepiece_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return tokenizer


def unigram() -> Tokenizer:
    """T5, XLNet: SentencePiece's Unigram with Metaspace."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def word_piece() -> Tokenizer:
    """BERT."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIALS, show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def end_of_word_bpe() -> Tokenizer:
    """The first GPT: words end in a mark that becomes a space."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIALS, end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def no_decoder() -> Tokenizer:
    """Whole words, joined by spaces for want of a decoder."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(LINES, trainers.WordLevelTrainer(special_tokens=SPECIALS, show_progress=False))
    return tokenizer


def rewriting_decoder() -> Tokenizer:
    """No real model's: stages behind Fuse that look across tokens, and a pattern in the library's own dialect."""
    tokenizer = gemma_bpe()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex("[▁]"), " "),
            decoders.Strip("t", 1, 0),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Replace("  ", " "),
            decoders.Replace("aha", "h"),
            decoders.Strip(" ", 2, 0),
        ]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    maker.__name__: maker
    for maker in (
        *(byte_level_bpe, llama_bpe, gemma_bpe, metaspace_bpe, unigram, word_piece),
        *(end_of_word_bpe, no_decoder, rewriting_decoder),
    )
}


def save(tokenizer: Tokenizer, folder: Path, **settings: object) -> Path:
    """A model folder with this tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model folder of a kind; made once."""
    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = save(KINDS[kind](), tmp_path_factory.mktemp(kind))
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def load(folder_of: Callable[[str], Path]) -> Callable[[str], text.Tokenizer]:
    """The loaded tokenizer of a kind, or ``gpt2`` itself where its files are at hand; loaded once."""
    loaded: dict[str, text.Tokenizer] = {}

    def tokenizer(kind: str) -> text.Tokenizer:
        if kind == "gpt2" and not GPT2_FOLDER.is_dir():
            pytest.skip("GPT-2's vocabulary is not at hand")
        if kind not in loaded:
            loaded[kind] = text.Tokenizer.load(GPT2_FOLDER if kind == "gpt2" else folder_of(kind))
        return loaded[kind]

    return tokenizer


@pytest.fixture(scope="session", params=[*KINDS, "gpt2"])
def tokenizer(request: pytest.FixtureRequest, load: Callable[[str], text.Tokenizer]) -> text.Tokenizer:
    """Each kind in turn."""
    return load(request.param)


@pytest.fixture
def load_file(tmp_path: Path) -> Callable[..., text.Tokenizer]:
    """A folder with one file of a vocabulary, and these settings."""

    def loaded(name: str, content: bytes, **configured: Any) -> text.Tokenizer:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        (tmp_path / name).write_bytes(content)
        family = configured.pop("model_type", None)
        if family:
            (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
        if configured:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(configured))
        return text.Tokenizer.load(tmp_path)

    return loaded
