"""Vocabularies in other forms than ``tokenizer.json``, as publishers upload them: each becomes the same pipeline.

* ``sentencepiece``: ``tokenizer.model``, ``spiece.model`` (a protobuf with pieces and scores);
* ``tiktoken``: ``tiktoken.model``, ``qwen.tiktoken``, ``hy.tiktoken`` (a line for each token, in base64);
* ``tekken``: Mistral's ``tekken.json``;
* ``byte_level``: ``vocab.json`` and ``merges.txt``;
* ``wordpiece``: ``vocab.txt``.

``files`` finds the one that a folder has. Code that comes with a model is never run: what its class does beyond the
file is known here by the class's name, or the folder is refused.
"""
