"""The pipeline of a model's folder, by the file that holds its vocabulary."""

from __future__ import annotations

from pathlib import Path

from dragoman.core.errors import ModelError
from dragoman.core.stand_ins import HEAD_BYTES, broken_link_problem, stand_in_problem
from dragoman.core.vocabulary_files import VOCABULARY_FILES, VOCABULARY_PAIR, find_vocabulary
from dragoman.text.vocabularies import byte_level, tekken, tiktoken, wordpiece
from dragoman.text.vocabularies.folder import FolderSettings, Vocabulary, read_bounded
from dragoman.text.vocabularies.sentencepiece import OWN_RULES, read_sentencepiece
from dragoman.text.vocabularies.sentencepiece_file import is_unigram

# These hold a vocabulary in an unknown form.
_FOREIGN = ("*.model", "*.tiktoken", "vocab.json", "*.vocab")


def read_vocabulary(settings: FolderSettings) -> Vocabulary:
    """Return the pipeline of a folder without ``tokenizer.json``. Raises ModelError that names the file, or says what
    to do where there is none that can be read."""
    folder = settings.folder
    path = find_vocabulary(folder)
    if path is None:
        raise ModelError(_missing(folder))
    if path.name == VOCABULARY_PAIR[0]:
        if not byte_level.knows_class(settings):
            kind = byte_level.class_of(settings)
            raise ModelError(
                f"{folder}: vocab.json and merges.txt do not define how {kind} splits text; {_conversion(folder)}"
            )
        return byte_level.read_byte_level(path, folder / VOCABULARY_PAIR[1], settings)
    data = read_bounded(path)
    if problem := stand_in_problem(path, data[:HEAD_BYTES]):
        raise ModelError(problem)
    if path.name == "tekken.json":
        return tekken.read_tekken(path, data, settings)
    if path.name == "vocab.txt":
        if not wordpiece.knows_class(settings):
            raise ModelError(_unknown(path, settings))
        return wordpiece.read_wordpiece(path, data, settings)
    if path.suffix == ".tiktoken" or path.name == "tiktoken.model" or tiktoken.is_tiktoken(data):
        if not tiktoken.knows_class(path, settings):
            raise ModelError(_unknown(path, settings))
        return tiktoken.read_tiktoken(path, data, settings)
    if settings.kind in OWN_RULES:
        raise ModelError(_unknown(path, settings))
    return read_sentencepiece(path, data, settings)


def kind_of(folder: Path) -> str:
    """Return the kind of a folder's vocabulary by GGUF's names; empty where it has none, or a ``tokenizer.json``."""
    path = find_vocabulary(folder)
    if path is None or path.name == "tokenizer.json":
        return ""
    if path.name == "vocab.txt":
        return "bert"
    if path.suffix != ".model" or path.name == "tiktoken.model":
        return "gpt2"
    data = read_bounded(path)
    return "gpt2" if tiktoken.is_tiktoken(data) else "t5" if is_unigram(data) else "llama"


def _unknown(path: Path, settings: FolderSettings) -> str:
    kind = settings.kind or (f"the tokenizer of {settings.family[:80]}" if settings.family else "its class")
    return f"{path}: how {kind} splits text is not in the file; {_conversion(settings.folder)}"


def _missing(folder: Path) -> str:
    for name in (*VOCABULARY_PAIR, *VOCABULARY_FILES):
        if problem := broken_link_problem(folder / name):
            return problem
    foreign = next((found for pattern in _FOREIGN for found in sorted(folder.glob(pattern))), None)
    if foreign is not None:
        return f"{foreign}: this kind of tokenizer is not read; {_conversion(folder)}"
    return (
        f"{folder}: there is no tokenizer.json, and no vocabulary in another form ({', '.join(VOCABULARY_FILES)}; or "
        "vocab.json and merges.txt); copy it, and tokenizer_config.json, from where the model came from"
    )


def _conversion(folder: Path) -> str:
    load_and_save = f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
    return (
        "convert it to a tokenizer.json with\n"
        "  pip install transformers sentencepiece protobuf tiktoken\n"
        f'  python -c "from transformers import AutoTokenizer; {load_and_save}"'
    )
