"""GGUF, the file format of llama.cpp: a whole model in one file, or in one split into parts.

``file`` reads a header, ``tensors`` and ``block_types`` what is stored; ``architectures`` and ``names`` say what
llama.cpp's metadata and tensor names mean in the families' terms; ``vocabulary`` makes a tokenizer of the metadata.
``opening`` joins them: a folder in Hugging Face layout that describes the model, and its tensors under the family's
names.
"""
