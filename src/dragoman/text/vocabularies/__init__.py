"""Vocabularies in other forms than ``tokenizer.json``, as publishers upload them: each becomes the same pipeline.

* ``sentencepiece``: ``tokenizer.model``, ``spiece.model`` (a protobuf with pieces and scores);
* ``tiktoken``: ``tiktoken.model``, ``qwen.tiktoken``, ``hy.tiktoken`` (a line for each token, in base64);
* ``tekken``: Mistral's ``tekken.json``;
* ``byte_level``: ``vocab.json`` and ``merges.txt``;
* ``wordpiece``: ``vocab.txt``.

``files`` finds the one that a folder has. Code that comes with a model is never run: what its class does beyond the
file is known here by the class's name, or the folder is refused.

The names are imported on first access: most models have a ``tokenizer.json``, and no use for these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.core.lazy_imports import lazy_names

if TYPE_CHECKING:
    from dragoman.text.vocabularies.files import kind_of, read_vocabulary

__all__ = ["kind_of", "read_vocabulary"]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "files"))
