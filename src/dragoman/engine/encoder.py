"""What the encoder of an encoder-decoder model reads: one input for all sequences of a request.

The input is encoded in one piece, for each of its tokens sees all others. What the decoder's cross-attention needs of
it lies in blocks like any other, owned by the sequences that read them. A block's contents depend on the whole input,
and so does its name: either all blocks of an input are found in the cache, or it is encoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.engine.kv_cache import KVCache, block_hash

if TYPE_CHECKING:
    from dragoman.engine.sequence import Sequence


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


class EncoderInputs:
    """The blocks of encoder inputs: which of them are in the cache, and which are encoded in the scheduled step.

    ``shared``: requests with equal inputs share blocks.
    """

    def __init__(self, cache: KVCache, *, shared: bool) -> None:
        self._cache = cache
        self._shared = shared
        self._encoding: list[Sequence] = []

    def begin_step(self) -> None:
        """What was to be encoded has been."""
        self._encoding = []

    def to_encode(self) -> list[Sequence]:
        """Those sequences, started for this step and still running, whose inputs it has to encode."""
        return [sequence for sequence in self._encoding if sequence.encoder_blocks]

    def must_wait(self, sequence: Sequence) -> bool:
        """Whether this step encodes the sequence's input for another one."""
        return self._shared and any(other.salt == sequence.salt for other in self._encoding)

    def tokens_to_encode(self, sequence: Sequence) -> int:
        """What it costs to start the sequence."""
        encoder = sequence.group.encoder
        return 0 if encoder is None or self._found(encoder) else len(encoder)

    def blocks_needed(self, sequence: Sequence) -> int:
        """How many fewer blocks are available once the sequence has those of its input."""
        encoder = sequence.group.encoder
        if encoder is None:
            return 0
        found = self._found(encoder)
        return self._cache.ownerless(found) if found else self._cache.blocks_for(len(encoder))

    def start(self, sequence: Sequence) -> None:
        """Give the sequence the blocks of its input: those that hold it already, or new ones to encode into."""
        encoder = sequence.group.encoder
        if encoder is None:
            return
        found = self._found(encoder)
        self._cache.share(found)
        sequence.encoded = bool(found)
        if not found:
            self._encoding.append(sequence)
            found = [self._cache.allocate() for _ in range(self._cache.blocks_for(len(encoder)))]
        sequence.encoder_blocks = found

    def encoded(self, sequence: Sequence) -> None:
        """The sequence's input is in its blocks, which can be shared now."""
        encoder = sequence.group.encoder
        assert encoder is not None
        sequence.encoded = True
        if self._shared:
            names = encoder.block_names(len(sequence.encoder_blocks))
            for block, name in zip(sequence.encoder_blocks, names, strict=True):
                self._cache.name(block, name)

    def _found(self, encoder: EncoderInput) -> list[int]:
        """The blocks of an input that is in the cache; none where a single one is missing."""
        if not self._shared:
            return []
        count = self._cache.blocks_for(len(encoder))
        found = self._cache.match(encoder.block_names(count))
        return found if len(found) == count else []
