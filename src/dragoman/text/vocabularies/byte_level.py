"""Byte-level tokenizers of two files, as GPT-2 was published: ``vocab.json`` and ``merges.txt``.

They do not hold how texts are split into words: that is in the class that reads them, and so here by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.core.errors import ModelError
from dragoman.core.merges import MOST_MERGES
from dragoman.core.split_patterns import QWEN2
from dragoman.text.vocabularies.byte_ranks import split_words
from dragoman.text.vocabularies.folder import MOST_TOKENS, FolderSettings, Vocabulary, call_library, read_bounded

_END = "<|endoftext|>"


class _Class(NamedTuple):
    """One class. ``pattern``: None is GPT-2's. ``is_encoder``: texts have marks around them."""

    names: Mapping[str, str]
    pattern: str | None = None
    nfc: bool = False
    is_encoder: bool = False


# GPT-2 was published without a list of its special tokens.
_GPT2 = _Class(dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END))
_ROBERTA_NAMES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_ROBERTA = _Class(_ROBERTA_NAMES, is_encoder=True)
_CLASSES = {
    **dict.fromkeys(("GPT2Tokenizer", "CodeGenTokenizer"), _GPT2),
    "GPTNeoXTokenizer": _GPT2._replace(nfc=True),
    "Qwen2Tokenizer": _Class({"eos_token": _END, "pad_token": _END}, QWEN2, nfc=True),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer"), _ROBERTA),
}
# Classes of folders that name none, by the model's type, as transformers has it.
_USUAL = {
    **dict.fromkeys(
        ("", "gpt2", "gpt_neo", "gptj", "opt", "phi", "codegen", "starcoder2", "dbrx", "jais2"), "GPT2Tokenizer"
    ),
    **dict.fromkeys(("gpt_neox", "mpt", "olmo", "olmoe", "mamba", "mamba2", "falcon_mamba"), "GPTNeoXTokenizer"),
    **dict.fromkeys(
        (
            "qwen2",
            "qwen2_moe",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl",
            "qwen3_vl_moe",
        ),
        "Qwen2Tokenizer",
    ),
    **dict.fromkeys(("roberta", "bart"), "RobertaTokenizer"),
}


def class_of(settings: FolderSettings) -> str:
    """Return the class that reads the files, or words for it where none is known."""
    return settings.kind or _USUAL.get(settings.family, f"a tokenizer of {settings.family[:80]}")


def knows_class(settings: FolderSettings) -> bool:
    """Return whether the class that reads the files is known here."""
    return class_of(settings) in _CLASSES


def read_byte_level(vocabulary: Path, merges: Path, settings: FolderSettings) -> Vocabulary:
    """Return the pipeline of two files. Raises ModelError that names them."""
    kind = _CLASSES[class_of(settings)]
    for path, mark, most, what in ((vocabulary, b":", MOST_TOKENS, "tokens"), (merges, b"\n", MOST_MERGES, "merges")):
        if read_bounded(path).count(mark) > most:
            raise ModelError(f"{path}: it has more than {most:,} {what}")
    try:
        model = call_library(models.BPE.from_file, str(vocabulary), str(merges))
    except Exception as error:  # the library raises plain Exception
        raise ModelError(f"{vocabulary.parent}: vocab.json and merges.txt cannot be read: {error}") from error
    pipeline = Tokenizer(model)
    prefix = settings.flag("add_prefix_space", False)
    if kind.pattern is not None:
        split_words(vocabulary, pipeline, kind.pattern, nfc=kind.nfc, prefix=prefix)
    else:
        if kind.nfc:
            pipeline.normalizer = normalizers.NFC()
        pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
        pipeline.decoder = decoders.ByteLevel()
    found = Vocabulary(pipeline, kind.names)
    if not kind.is_encoder:
        return found.surrounded(settings, adds_bos=False, adds_eos=False)
    first, last = (settings.named(name, kind.names[name]) for name in ("cls_token", "sep_token"))
    if not first or not last:
        return found
    return found._replace(before=(first,), after=(last,), joint=(last, last))
