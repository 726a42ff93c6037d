"""What the encoder of an encoder-decoder model reads: one input for all sequences of a request.

The input is encoded in one piece, for each of its tokens sees all others. What the decoder's cross-attention needs of
it lies in blocks like any other, owned by the sequences that read them. A block's contents depend on the whole input,
and so does its name: either all blocks of an input are found in the cache, or it is encoded again.
"""

from __future__ import annotations

from dragoman.engine.kv_cache import block_hash


class EncoderInput:
    """The encoder's input of one request.

    Attributes:
        token_ids: of the input; embeddings that are given belong to places in it.
        digest: of all that decides what the encoder makes of it. Root of the names of the decoder's blocks, whose keys
            and values depend on the input as much as on the decoder's own tokens.
    """

    __slots__ = ("digest", "token_ids")

    def __init__(self, token_ids: tuple[int, ...], salt: bytes = b"") -> None:
        self.token_ids = token_ids
        self.digest = block_hash(salt, token_ids)

    def __len__(self) -> int:
        return len(self.token_ids)

    def block_names(self, count: int) -> list[bytes]:
        """The names of its blocks; no block of a decoder has one of them, whose names are of whole blocks of tokens."""
        return [block_hash(self.digest, (index,)) for index in range(count)]
