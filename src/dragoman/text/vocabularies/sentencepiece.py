"""Pipeline of a SentencePiece model: what its own library computes, in the parts of the tokenizers library.

Two kinds of models: merges of neighbours by score (Llama, Gemma, InternLM), and the division with the best sum of
scores (T5, XLM-RoBERTa). A text is rewritten by the model's map of characters, runs of spaces become one where it says
so, a space is put before it, and spaces become ``▁``.
"""

from __future__ import annotations

import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from dragoman.core.errors import ModelError
from dragoman.core.merges import TooManyMerges, merges_of
from dragoman.core.sentencepiece import charsmap_problem, pattern_between
from dragoman.text.vocabularies.folder import FolderSettings, Vocabulary, build, check_added
from dragoman.text.vocabularies.sentencepiece_file import PieceType, SentencePieceModel, parse_sentencepiece

_SPACE = "▁"
_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_ENCODERS = ("T5Tokenizer", "MT5Tokenizer")
_USUAL = {"t5": "T5Tokenizer", "mt5": "T5Tokenizer", "umt5": "T5Tokenizer", "xlm-roberta": "XLMRobertaTokenizer"}
_EXTRA_IDS = 100
_MOST_EXTRA_IDS = 1000
_MOST_SYMBOLS = 5000  # that many take 0.1 ms for each text
# Ids of these are not those of the pieces: special tokens come first, and one after the last piece.
_SHIFTED = ("XLMRobertaTokenizer",)
_SHIFTED_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
# Classes whose ids are shifted in ways of their own, or that rewrite texts before the model does.
OWN_RULES = frozenset(
    f"{name}Tokenizer"
    for name in (
        *("Albert", "Barthez", "BigBird", "Camembert", "ChatGLM", "Cpm", "DebertaV2", "FNet", "M2M100", "MBart"),
        *("MBart50", "Marian", "Nllb", "PLBart", "Pegasus", "RemBert", "SeamlessM4T", "Speech2Text", "XGLM"),
        *("XLMProphetNet", "XLNet"),
    )
)


def read_sentencepiece(path: Path, data: bytes, settings: FolderSettings) -> Vocabulary:
    """Return the pipeline of a file. Raises ModelError that names it."""
    model = parse_sentencepiece(path, data)
    check_added(path, len(model.of(PieceType.CONTROL, PieceType.USER_DEFINED)))
    if not settings.kind and settings.family in _USUAL:
        settings = settings.of_class(_USUAL[settings.family])
    if settings.kind in _SHIFTED:
        model = _shifted(path, model)
    model = _renamed(path, model, settings)
    ids = {"bos_token": model.bos, "eos_token": model.eos, "unk_token": model.unknown}
    names = {name: model.pieces[i] for name, i in ids.items() if i is not None}
    has_bytes = model.byte_fallback and set(model.pieces) >= _BYTES
    if model.unknown is None and not has_bytes:
        raise ModelError(f"{path}: it has neither a token for each byte nor an unknown one")
    pipeline = Tokenizer(_unigram(path, model) if model.is_unigram else _merging(path, model, has_bytes))
    _set_spaces(path, pipeline, model, settings)
    if settings.kind in _ENCODERS:
        _add_extra_ids(pipeline, settings)
    found = Vocabulary(pipeline, names, finds_added_as_written=True)
    if settings.kind in _SHIFTED:
        return found._replace(before=("<s>",), after=("</s>",), joint=("</s>", "</s>"))
    encodes = settings.kind in _ENCODERS
    return found.surrounded(settings, adds_bos=not encodes, adds_eos=encodes)


def _shifted(path: Path, model: SentencePieceModel) -> SentencePieceModel:
    """Return the model with XLM-RoBERTa's ids: the pieces from the third on are one later than in the file."""
    specials = len(_SHIFTED_SPECIALS)
    if model.pieces[:3] != ["<unk>", "<s>", "</s>"] or {"<pad>", "<mask>"} & set(model.pieces):
        raise ModelError(f"{path}: its special tokens are not those of XLMRobertaTokenizer")
    control, last = int(PieceType.CONTROL), ["<mask>"]
    return model._replace(
        pieces=[*_SHIFTED_SPECIALS, *model.pieces[3:], *last],
        scores=[0.0] * specials + model.scores[3:] + [0.0],
        types=[control, control, control, int(PieceType.UNKNOWN), *model.types[3:], control],
        unknown=3,
        bos=0,
        eos=2,
    )


def _renamed(path: Path, model: SentencePieceModel, settings: FolderSettings) -> SentencePieceModel:
    """Return the model with the names of added tokens that take the place of pieces: reserved ones, in use since."""
    taken = {i: text for i, text in settings.declared.items() if i < len(model.pieces) and model.pieces[i] != text}
    if not taken:
        return model
    pieces = list(model.pieces)
    types = list(model.types)
    for i, text in taken.items():
        pieces[i] = text
        types[i] = types[i] if types[i] == PieceType.UNKNOWN else int(PieceType.CONTROL)
    if len(set(pieces)) != len(pieces):
        twice = next(text for i, text in taken.items() if pieces.count(text) > 1)
        where = settings.folder / "tokenizer_config.json"
        raise ModelError(f"{where}: the added token {twice!r:.100} is another piece of {path.name}")
    return model._replace(pieces=pieces, types=types)


def _merging(path: Path, model: SentencePieceModel, has_bytes: bool) -> models.BPE:
    joined = model.of(PieceType.NORMAL, PieceType.USER_DEFINED)
    try:
        merges = merges_of({model.pieces[i]: -model.scores[i] for i in joined})
    except TooManyMerges as error:
        raise ModelError(f"{path}: its tokens {error}") from None
    return build(
        path,
        models.BPE,
        {piece: i for i, piece in enumerate(model.pieces)},
        merges,
        unk_token=None if model.unknown is None else model.pieces[model.unknown],
        fuse_unk=True,
        byte_fallback=has_bytes,
    )


def _unigram(path: Path, model: SentencePieceModel) -> models.Unigram:
    if model.unknown is None:
        raise ModelError(f"{path}: a unigram model without an unknown piece is not supported")
    worst = min((model.scores[i] for i in model.of(PieceType.NORMAL)), default=0.0)
    scores = [
        score if kind in (PieceType.NORMAL, PieceType.USER_DEFINED) else worst  # an unknown character costs 10 more
        for score, kind in zip(model.scores, model.types, strict=True)
    ]
    for i in model.of(PieceType.UNUSED):  # more than any other way through the text
        scores[i] = (worst - 10.0) * (len(model.pieces[i]) + 1)
    return build(
        path,
        models.Unigram,
        list(zip(model.pieces, scores, strict=True)),
        unk_id=model.unknown,
        byte_fallback=model.byte_fallback,
    )


def _set_spaces(path: Path, pipeline: Tokenizer, model: SentencePieceModel, settings: FolderSettings) -> None:
    """Set how spaces are read and written."""
    before: list[normalizers.Normalizer] = []
    if model.charsmap:
        if problem := charsmap_problem(model.charsmap):
            raise ModelError(f"{path}: its map of characters {problem}")
        before.append(build(path, normalizers.Precompiled, model.charsmap))
    if model.removes_spaces:
        before += [normalizers.Replace(Regex(rf"\A +|[ {_SPACE}]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    prefix = settings.flag("add_prefix_space", model.adds_prefix)
    # Llama's class reads a text after a special token without a space before it where legacy is false. (The library
    # takes no text for the first one whose beginning was removed; T5's class has the setting without an effect.)
    merges_alone = not model.is_unigram and not model.removes_spaces
    only_first = prefix and merges_alone and not settings.flag("legacy", True)
    splits: list[pre_tokenizers.PreTokenizer] = []
    if only_first:
        splits.append(pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False))
    else:
        before += [_prefix(path, model)] * prefix
        before.append(normalizers.Replace(" ", _SPACE))
    no_text = model.of(PieceType.CONTROL, PieceType.UNKNOWN, PieceType.BYTE) if model.is_unigram else []
    if pattern := pattern_between(model.pieces[i] for i in no_text):
        splits.append(pre_tokenizers.Split(build(path, Regex, pattern), "isolated"))
    if before:
        pipeline.normalizer = normalizers.Sequence(before)
    if splits:
        pipeline.pre_tokenizer = pre_tokenizers.Sequence(splits)
    after = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    pipeline.decoder = decoders.Sequence([*after, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    # Symbols of users are found in the text as the model sees it, where spaces are marks.
    symbols = [model.pieces[i] for i in model.of(PieceType.USER_DEFINED)]
    pipeline.add_special_tokens([AddedToken(model.pieces[i], normalized=False) for i in model.of(PieceType.CONTROL)])
    pipeline.add_tokens([AddedToken(symbol, normalized=not only_first, special=False) for symbol in symbols])


def _prefix(path: Path, model: SentencePieceModel) -> normalizers.Normalizer:
    """Return what puts a space before a text, and not before a symbol of users: the library normalizes these as it does
    the text that it looks for them in."""
    found = model.of(PieceType.USER_DEFINED)
    if not 0 < len(found) <= _MOST_SYMBOLS:
        return normalizers.Prepend(_SPACE)
    symbols = "|".join(re.escape(model.pieces[i]) for i in found)
    return normalizers.Replace(build(path, Regex, rf"\A(?!(?:{symbols})\z)(?=[\s\S])"), _SPACE)


def _add_extra_ids(pipeline: Tokenizer, settings: FolderSettings) -> None:
    """Add T5's marks of gaps, which come after the last piece, the last mark first."""
    count = settings.values.get("extra_ids", 0 if settings.kind == "MT5Tokenizer" else _EXTRA_IDS)
    if not isinstance(count, int) or not 0 <= count <= _MOST_EXTRA_IDS:
        raise ModelError(f"{settings.folder / 'tokenizer_config.json'}: extra_ids must be 0 to {_MOST_EXTRA_IDS}")
    marks = [f"<extra_id_{i}>" for i in range(count - 1, -1, -1)]
    pipeline.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in marks])
