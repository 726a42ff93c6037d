"""What is fuzzed: each reader of a stranger's files as a function of bytes, and small valid files to begin with.

Whatever the bytes, a reader takes them or raises an error that is documented. The tokenizers that come out are used:
text is encoded and decoded with them.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.core.errors import BadRequest, ModelError
from dragoman.models import describe
from dragoman.models.gguf.block_types import BLOCK_TYPES
from dragoman.models.gguf.file import GgufFile
from dragoman.models.gguf.opening import describing_folder, open_gguf, tensor_files
from dragoman.models.gguf.vocabulary import tokenizer_files
from dragoman.models.safetensors_file import read_header
from dragoman.text import Tokenizer
from tests.fuzz.json_mutation import mutate_bytes, mutate_json
from tests.text.vocabulary_cases import ODD_TOKENS, lines_of, tekken

ROOT = Path(__file__).parents[2]
_MOST_READ_BYTES = 1 << 20
_TEXTS = ("", "The dragoman, é 通 😀.", "  <s>[INST] a\tb</s> 12345", "the the" * 20)

# In memory, as the files are written a thousand times a second.
FOLDER = Path(tempfile.mkdtemp(prefix="dragoman-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


class Unnamed(Exception):
    """An error that does not say which file is wrong: a finding too."""


@dataclass(frozen=True)
class Reader:
    """A target. ``read``: raises only what is a finding. ``seeds``: valid files. ``is_json``: what they hold."""

    read: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    is_json: bool = False

    def mutate(self, data: bytes, rng: random.Random) -> bytes:
        """A file that is a little different."""
        if self.is_json and rng.random() < 0.9:
            return mutate_json(data, rng)
        return mutate_bytes(data, rng)


def read_gguf_file(data: bytes) -> None:
    """Everything that happens to a GGUF file before its weights are packed."""
    path = FOLDER / "x.gguf"
    path.write_bytes(data)
    try:
        model = open_gguf([path])
        for tensor in model.stored.values():
            assert 0 <= tensor.start <= tensor.stop <= len(data)
            if tensor.nbytes <= _MOST_READ_BYTES:
                tensor.read()
                if tensor.form is not None:
                    tensor.codes(tensor.form)
        describing_folder(model)
        tensor_files(model)
    except ModelError as error:
        _must_name(path, error)


def read_vocabulary(data: bytes) -> None:
    """A GGUF file's tokenizer, of metadata written as JSON; arrays of numbers are NumPy's, as it has them."""
    metadata = _object(data)
    if metadata is None:
        return
    file = GgufFile(FOLDER / "vocabulary.gguf", 3, {key: _stored(value) for key, value in metadata.items()}, {}, b"")
    try:
        contents = tokenizer_files(file)
    except ModelError as error:
        _must_name(file.path, error)
        return
    except UnicodeEncodeError:  # a lone surrogate, which is no text that a file's reader gives
        return
    _use_tokenizer({name: json.dumps(content).encode() for name, content in contents.items()})


def read_tokenizer(data: bytes) -> None:
    """``tokenizer.json`` and text through it."""
    _use_tokenizer({"tokenizer.json": data})


def read_published(name: str) -> Callable[[bytes], None]:
    """A vocabulary in the form in which it was published, in a file of this name."""

    def read(data: bytes) -> None:
        _use_tokenizer({name: data})

    return read


def read_settings_of_pieces(data: bytes) -> None:
    """``tokenizer_config.json`` beside a model of SentencePiece."""
    model = next(_sentencepiece_seeds())
    _use_tokenizer({"tokenizer.model": model, "tokenizer_config.json": data})


def read_settings(data: bytes) -> None:
    """The files beside ``tokenizer.json``, as one document with an object for each."""
    files = _object(data)
    if files is None:
        return
    names = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
    contents = {name: json.dumps(files[name]).encode() for name in names if name in files}
    _use_tokenizer({"tokenizer.json": _tokenizer(), **contents})


def read_safetensors_file(data: bytes) -> None:
    """A header and all of its tensors."""
    path = FOLDER / "x.safetensors"
    path.write_bytes(data)
    try:
        header = read_header(path)
        for tensor in header.tensors.values():
            assert 0 <= tensor.start <= tensor.stop <= len(data)
            if tensor.nbytes <= _MOST_READ_BYTES and tensor.dtype in ("float32", "float16", "bfloat16"):
                tensor.read()
    except ModelError as error:
        _must_name(path, error)


def read_safetensors_header(data: bytes) -> None:
    """The same, of the JSON in the header alone."""
    read_safetensors_file(len(data).to_bytes(8, "little") + data + bytes(24))


def read_config(data: bytes) -> None:
    """``config.json``, and what becomes of it."""
    (weights,) = _safetensors_seeds()
    folder = _written("config", {"config.json": data, "model.safetensors": weights})
    with suppress(ModelError):
        describe(folder)


def _use_tokenizer(files: dict[str, bytes]) -> None:
    folder = _written("tokenizer", files)
    try:
        tokenizer = Tokenizer.load(folder)
    except ModelError as error:
        _must_name(folder, error)
        return
    with suppress(BadRequest):
        for text in _TEXTS:
            ids = tokenizer.encode(text)
            tokenizer.encode(text, parse_special=False)
            tokenizer.encode_with_offsets(text)
            tokenizer.decode(ids)
            decoder = tokenizer.decoder.start()
            for token_id in ids[:64]:
                decoder.push(tokenizer.token(token_id) or "")
                tokenizer.token_bytes(token_id)
            decoder.flush()
        tokenizer.render_fill("a", "b")


def _written(name: str, files: dict[str, bytes]) -> Path:
    folder = FOLDER / name
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.name not in files:
            old.unlink()
    for each, content in files.items():
        (folder / each).write_bytes(content)
    return folder


def _must_name(path: Path, error: ModelError) -> None:
    if str(path) not in str(error):
        raise Unnamed(str(error)) from error


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _stored(value: Any) -> Any:
    if isinstance(value, list) and value and not any(isinstance(item, str | list | dict | None) for item in value):
        with suppress(ValueError, OverflowError):
            array = np.array(value)
            return array if array.dtype.kind in "iufb" else []
    if isinstance(value, list):
        return [_stored(item) for item in value if isinstance(item, str | list)]
    return value if isinstance(value, str | float | bool) or (isinstance(value, int) and abs(value) < 2**63) else 0


def _gguf_seeds() -> Iterator[bytes]:
    for kind in BLOCK_TYPES:
        yield _gguf_seed(kind)


def _gguf_seed(kind: int) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def pair(key: str, kind: int, value: bytes) -> bytes:
        return text(key) + struct.pack("<I", kind) + value

    width = BLOCK_TYPES[kind].values * 32 if BLOCK_TYPES[kind].values == 1 else BLOCK_TYPES[kind].values
    texts = struct.pack("<IQ", 8, 3) + text("a") + text("b") + text("ab")
    pairs = [
        pair("general.architecture", 8, text("llama")),
        *(pair(f"llama.{key}", 4, struct.pack("<I", width))
          for key in ("context_length", "embedding_length", "feed_forward_length")),
        *(pair(f"llama.{key}", 4, struct.pack("<I", 1)) for key in ("block_count", "attention.head_count")),
        pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        pair("tokenizer.ggml.model", 8, text("gpt2")),
        pair("tokenizer.ggml.pre", 8, text("gpt-2")),
        pair("tokenizer.ggml.tokens", 9, texts),
        pair("tokenizer.ggml.merges", 9, struct.pack("<IQ", 8, 1) + text("a b")),
        pair("tokenizer.ggml.token_type", 9, struct.pack("<IQiii", 5, 3, 1, 1, 1)),
    ]  # fmt: skip
    embedding_bytes = BLOCK_TYPES[kind].nbytes(4 * width)
    norm_at = -(-embedding_bytes // 32) * 32
    tensors = text("token_embd.weight") + struct.pack("<IQQIQ", 2, width, 4, kind, 0)
    tensors += text("output_norm.weight") + struct.pack("<IQIQ", 1, width, 0, norm_at)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(pairs)) + b"".join(pairs) + tensors
    return head + bytes(-len(head) % 32) + bytes(norm_at) + bytes(4 * width)


def _vocabulary_seeds() -> Iterator[bytes]:
    tokens = ["<|end|>", "<s>", "</s>", *"abcdeghtĠ", "th"]
    own = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3)}
    ids = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True}
    byte_level = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.merges": ["t h"]}
    yield json.dumps(own | ids | byte_level | {"tokenizer.chat_template": "{{ messages }}"}).encode()
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdeght", "th", "▁th"]
    scores = [0.0] * 259 + [-float(i) for i in range(len(pieces) - 259)]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 259)
    llama = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": pieces, "tokenizer.ggml.scores": scores}
    yield json.dumps(llama | ids | {"tokenizer.ggml.token_type": types}).encode()


def _tokenizer_seeds() -> Iterator[bytes]:
    # Trained in a moment, and only where they are asked for.
    from tests.text import conftest as trained

    for make in (trained.byte_level_bpe, trained.llama_bpe, trained.unigram, trained.word_piece,
                 trained.end_of_word_bpe, trained.no_decoder, trained.rewriting_decoder):  # fmt: skip
        yield make().to_str().encode()


def _tokenizer() -> bytes:
    tokens = ["<unk>", "<s>", "</s>", *"abcdegh Tt.,12345[]", "th"]
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i in range(3)]  # fmt: skip
    vocabulary = {token: i for i, token in enumerate(tokens)}
    model = {"type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": [["t", "h"]]}
    return json.dumps({"version": "1.0", "added_tokens": added, "model": model, "decoder": {"type": "Fuse"}}).encode()


def _sentencepiece_seeds() -> Iterator[bytes]:
    for path in sorted((ROOT / "tests" / "text" / "sentencepiece_models").glob("*.model")):
        yield path.read_bytes()


def _tiktoken_seeds() -> Iterator[bytes]:
    yield lines_of(ODD_TOKENS)


def _tekken_seeds() -> Iterator[bytes]:
    yield json.dumps(tekken()).encode()


def _settings_of_pieces_seeds() -> Iterator[bytes]:
    added = {"3": {"content": "<im>", "special": True}, "520": {"content": "<|im_end|>", "rstrip": True}}
    settings = {"legacy": False, "add_bos_token": True, "add_eos_token": True, "add_prefix_space": True}
    yield json.dumps({"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": added, **settings}).encode()
    yield json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 3, "eos_token": "</s>"}).encode()


def _settings_seeds() -> Iterator[bytes]:
    added = {"22": {"content": "<pad>", "lstrip": False, "normalized": False, "rstrip": False, "special": True}}
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": None, "add_bos_token": True,
              "chat_template": "{{ messages }}", "added_tokens_decoder": added,
              "additional_special_tokens": ["<s>"]}  # fmt: skip
    yield json.dumps({"tokenizer_config.json": config, "generation_config.json": {"eos_token_id": [2, 1]}}).encode()
    legacy = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "additional_special_tokens": ["<extra>"]}
    yield json.dumps({"special_tokens_map.json": legacy, "generation_config.json": {"eos_token_id": 2}}).encode()


def _safetensors_headers() -> Iterator[bytes]:
    entries = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}
    yield json.dumps(entries).encode()


def _safetensors_seeds() -> Iterator[bytes]:
    for head in _safetensors_headers():
        yield len(head).to_bytes(8, "little") + head + bytes(24)


def _config_seeds() -> Iterator[bytes]:
    yield (ROOT / "builtin" / "config.json").read_bytes()
    llama = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 131,
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "eos_token_id": [2],
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64},
    }  # fmt: skip
    yield json.dumps(llama).encode()
    for quantized in (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
    ):
        yield json.dumps(llama | {"quantization_config": quantized}).encode()
    window = {"sliding_window": 20, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    moe = {"num_local_experts": 4, "num_experts_per_tok": 2}
    for name, more in (("Mistral", {}), ("Qwen2", window | {"use_sliding_window": True}), ("Mixtral", moe)):
        changed = {"architectures": [f"{name}ForCausalLM"], "model_type": name.lower(), "rope_scaling": None}
        yield json.dumps(llama | changed | more).encode()


READERS = {
    "gguf": Reader(read_gguf_file, _gguf_seeds),
    "vocabulary": Reader(read_vocabulary, _vocabulary_seeds, is_json=True),
    "tokenizer": Reader(read_tokenizer, _tokenizer_seeds, is_json=True),
    "settings": Reader(read_settings, _settings_seeds, is_json=True),
    "sentencepiece": Reader(read_published("tokenizer.model"), _sentencepiece_seeds),
    "tiktoken": Reader(read_published("tiktoken.model"), _tiktoken_seeds),
    "tekken": Reader(read_published("tekken.json"), _tekken_seeds, is_json=True),
    "pieces": Reader(read_settings_of_pieces, _settings_of_pieces_seeds, is_json=True),
    "safetensors": Reader(read_safetensors_file, _safetensors_seeds),
    "header": Reader(read_safetensors_header, _safetensors_headers, is_json=True),
    "config": Reader(read_config, _config_seeds, is_json=True),
}
