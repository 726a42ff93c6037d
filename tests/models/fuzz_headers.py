#!/usr/bin/env python3
"""Fuzzing of the readers of weight files: whatever the bytes, they are read or refused with the file's name.

    pip install atheris
    python tests/models/fuzz_headers.py gguf -max_total_time=120
    python tests/models/fuzz_headers.py safetensors -max_total_time=120

Not part of the tests, which hold a small corpus of bad files (``test_gguf_file.py``, ``test_checkpoint.py``). Other
arguments are libFuzzer's; a folder among them is a corpus that grows. What ends with a traceback is a bug.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dragoman.models"]):
    from dragoman.core.errors import ModelError
    from dragoman.models.gguf.opening import describing_folder, open_gguf, tensor_files
    from dragoman.models.safetensors_file import read_header

_MOST_READ_BYTES = 1 << 20

# In memory, as the file is written a thousand times a second.
FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


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
        must_name(path, error)


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
        must_name(path, error)


def must_name(path: Path, error: ModelError) -> None:
    """An error that does not say which file is wrong is a bug too."""
    if str(path) not in str(error):
        raise AssertionError(f"does not name the file: {error}")


def _gguf_seed() -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def pair(key: str, kind: int, value: bytes) -> bytes:
        return text(key) + struct.pack("<I", kind) + value

    texts = struct.pack("<IQ", 8, 3) + text("a") + text("b") + text("ab")
    pairs = [
        pair("general.architecture", 8, text("llama")),
        *(pair(f"llama.{key}", 4, struct.pack("<I", 32))
          for key in ("context_length", "embedding_length", "feed_forward_length")),
        *(pair(f"llama.{key}", 4, struct.pack("<I", 1)) for key in ("block_count", "attention.head_count")),
        pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        pair("tokenizer.ggml.model", 8, text("gpt2")),
        pair("tokenizer.ggml.pre", 8, text("gpt-2")),
        pair("tokenizer.ggml.tokens", 9, texts),
        pair("tokenizer.ggml.merges", 9, struct.pack("<IQ", 8, 1) + text("a b")),
        pair("tokenizer.ggml.token_type", 9, struct.pack("<IQiii", 5, 3, 1, 1, 1)),
    ]  # fmt: skip
    tensors = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 32, 4, 8, 0)
    tensors += text("output_norm.weight") + struct.pack("<IQIQ", 1, 32, 0, 160)
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, len(pairs)) + b"".join(pairs) + tensors
    return head + bytes(-len(head) % 32) + bytes(160) + bytes(128)


def _safetensors_seed() -> bytes:
    entries = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"format": "pt"}}
    head = json.dumps(entries).encode()
    return len(head).to_bytes(8, "little") + head + bytes(24)


TARGETS = {
    "gguf": (read_gguf_file, _gguf_seed),
    "safetensors": (read_safetensors_file, _safetensors_seed),
}


def main() -> None:
    os.environ["DRAGOMAN_CACHE"] = str(FOLDER / "cache")
    target, seed = TARGETS[sys.argv.pop(1)]
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes(seed())
    target(seed())
    atheris.Setup([sys.argv[0], *sys.argv[1:], str(corpus)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
