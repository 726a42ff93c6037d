"""BERT's ``vocab.txt``: a piece of a word in each line, whose number is its id."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.core.errors import ModelError
from dragoman.text.vocabularies.folder import MOST_TOKENS, FolderSettings, Vocabulary, build

_NAMES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_FAMILIES = ("bert", "distilbert", "electra", "nomic_bert")


def knows_class(settings: FolderSettings) -> bool:
    """Return whether the class that reads the file is known here."""
    kind = settings.kind
    return kind in _CLASSES if kind else settings.family in _FAMILIES


def read_wordpiece(path: Path, data: bytes, settings: FolderSettings) -> Vocabulary:
    """Return the pipeline of a file. Raises ModelError that names it."""
    if data.count(b"\n") > MOST_TOKENS:
        raise ModelError(f"{path}: it has more than {MOST_TOKENS:,} lines")
    try:
        pieces = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: line {data.count(10, 0, error.start) + 1} is not UTF-8") from None
    if not pieces[-1]:
        pieces.pop()
    ids: dict[str, int] = {}
    for number, piece in enumerate(piece.removesuffix("\r") for piece in pieces):
        if piece in ids:
            raise ModelError(f"{path}: lines {ids[piece] + 1} and {number + 1} are the same")
        ids[piece] = number
    unknown = settings.named("unk_token", _NAMES["unk_token"])
    if unknown is None or unknown not in ids:
        raise ModelError(f"{path}: it has no line {unknown or '[UNK]'!r:.100} for unknown words")
    pipeline = Tokenizer(build(path, models.WordPiece, ids, unk_token=unknown))
    accents = settings.values.get("strip_accents")
    pipeline.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.flag("tokenize_chinese_chars", True),
        strip_accents=None if accents is None else settings.flag("strip_accents", True),
        lowercase=settings.flag("do_lower_case", True),
    )
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.WordPiece(prefix="##")
    first, last = (settings.named(name, _NAMES[name]) for name in ("cls_token", "sep_token"))
    found = Vocabulary(pipeline, _NAMES)
    if not first or not last:
        return found
    return found._replace(before=(first,), after=(last,), joint=(last,), second_type=1)
