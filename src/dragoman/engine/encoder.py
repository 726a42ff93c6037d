"""Encoder inputs of an encoder-decoder model: one input for all sequences of a request.

The input is encoded in one piece, as each of its tokens sees all others. The keys and values for the decoder's
cross-attention are in ordinary blocks, owned by the sequences that read them. A block's contents and name depend on
the whole input: either all blocks of an input are found in the cache, or it is encoded again.

Images that layers of a decoder look at are inputs too: each run of them has blocks of its own, which a sequence holds
from its start on, or is given back when no later token sees them.
"""

from __future__ import annotations

import numpy as np

from dragoman.engine.arrays import Int32
from dragoman.engine.batch import build_encoder_batch
from dragoman.engine.image_runs import CrossAttentionImages
from dragoman.engine.kv_cache import NO_BLOCK, KVCache
from dragoman.engine.prompt_inputs import EncoderInput
from dragoman.engine.runner import Runner
from dragoman.engine.sequence import Sequence


class EncoderInputs:
    """The blocks of encoder inputs: which are in the cache, and which are encoded in the scheduled step.

    ``shared``: requests with equal inputs share blocks.
    """

    def __init__(self, cache: KVCache, *, shared: bool) -> None:
        self._cache = cache
        self._shared = shared
        self._encoding: list[Sequence] = []

    def begin_step(self) -> None:
        """Forget the inputs that the last step encoded."""
        self._encoding = []

    def to_encode(self) -> list[Sequence]:
        """Return the sequences, started for this step and still running, whose inputs it has to encode."""
        return [sequence for sequence in self._encoding if sequence.encoder_blocks]

    def must_wait(self, sequence: Sequence) -> bool:
        """Return whether this step encodes the sequence's input for another one."""
        if not self._shared or not self._encoding:
            return False
        images = _cross_attention(sequence)
        if images is None:
            return any(other.hash_seed == sequence.hash_seed for other in self._encoding)
        coming = {name for other in self._encoding for name in self._first_names(other)}
        return not coming.isdisjoint(self._names(sequence, number)[0] for number in range(len(images.runs)))

    def tokens_to_encode(self, sequence: Sequence) -> int:
        """Return how many tokens of its input starting the sequence encodes."""
        encoder = sequence.group.encoder
        return 0 if encoder is None or self._found(encoder) else len(encoder)

    def blocks_needed(self, sequence: Sequence, computed: int) -> int:
        """Return how many available blocks the sequence's input takes. ``computed``: tokens that come from the
        cache."""
        images = _cross_attention(sequence)
        if images is not None:
            return sum(self._blocks_of_run(sequence, number) for number in images.needed(computed))
        encoder = sequence.group.encoder
        if encoder is None:
            return 0
        found = self._found(encoder)
        return self._cache.ownerless(found) if found else self._cache.blocks_for(len(encoder))

    def start(self, sequence: Sequence, computed: int) -> None:
        """Give the sequence the blocks of its input: cached ones, or new ones to encode into."""
        images = _cross_attention(sequence)
        if images is not None:
            self._start_runs(sequence, images, computed)
            return
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

    def share(self, parent: Sequence) -> None:
        """Add an owner to the blocks of a sequence's input."""
        self._cache.share(parent.encoder_blocks)

    def release(self, sequence: Sequence) -> None:
        """Remove an owner from the blocks of a sequence's input."""
        self._cache.release(sequence.encoder_blocks)

    def mark_encoded(self, sequence: Sequence) -> None:
        """Record that the sequence's input is in its blocks, which can be shared now."""
        images = _cross_attention(sequence)
        if images is not None:
            for number in sequence.unwritten_runs if self._shared else ():
                names, first = self._names(sequence, number), sequence.run_blocks[number]
                for block, name in zip(sequence.encoder_blocks[first:], names, strict=False):
                    self._cache.name(block, name)
            sequence.unwritten_runs = []
            return
        encoder = sequence.group.encoder
        assert encoder is not None
        sequence.encoded = True
        if self._shared:
            names = encoder.block_names(len(sequence.encoder_blocks))
            for block, name in zip(sequence.encoder_blocks, names, strict=True):
                self._cache.name(block, name)

    def _found(self, encoder: EncoderInput) -> list[int]:
        """Return the cached blocks of an input; none where a single one is missing."""
        if not self._shared:
            return []
        count = self._cache.blocks_for(len(encoder))
        found = self._cache.match(encoder.block_names(count))
        return found if len(found) == count else []

    # Images ----------------------------------------------------------------------------------------------------------

    def missing_images(self, sequence: Sequence, images: CrossAttentionImages, computed: int) -> list[int]:
        """Return the images whose embeddings the sequence needs when it starts: those of runs that are not in the
        cache."""
        if sequence.blocks:
            missing = sequence.unwritten_runs
        else:
            missing = [number for number in images.needed(computed) if not self._cached_run(sequence, number)]
        return [image for number in missing for image in images.runs[number].images]

    def to_write(self, sequence: Sequence) -> list[tuple[range, list[int]]]:
        """Return the images of each run that the scheduled step writes for the sequence, and its blocks."""
        images = _cross_attention(sequence)
        if images is None:
            return []
        found = []
        for number in sequence.unwritten_runs:
            run, first = images.runs[number], sequence.run_blocks[number]
            blocks = sequence.encoder_blocks[first : first + self._cache.blocks_for(run.length)]
            found.append((run.images, blocks))
        return found

    def advance(self, sequence: Sequence) -> bool:
        """Remove an owner from the blocks of images that no later token sees. Return whether there were any."""
        images = _cross_attention(sequence)
        assert images is not None
        needed = images.needed(sequence.computed)
        passed = [number for number in sequence.run_blocks if number not in needed]
        for number in passed:
            first = sequence.run_blocks.pop(number)
            end = first + self._cache.blocks_for(images.runs[number].length)
            self._cache.release(sequence.encoder_blocks[first:end])
            sequence.encoder_blocks[first:end] = [NO_BLOCK] * (end - first)
        return bool(passed)

    def _start_runs(self, sequence: Sequence, images: CrossAttentionImages, computed: int) -> None:
        """Give the sequence the blocks of all runs that its tokens see: first the cached ones, so that none is lost."""
        needed = images.needed(computed)
        found = {number: self._cached_run(sequence, number) for number in needed}
        for blocks in found.values():
            self._cache.share(blocks)
        sequence.unwritten_runs = [number for number in needed if not found[number]]
        sequence.encoder_blocks, sequence.run_blocks = [], {}
        for number in needed:
            count = self._cache.blocks_for(images.runs[number].length)
            sequence.run_blocks[number] = len(sequence.encoder_blocks)
            sequence.encoder_blocks += found[number] or [self._cache.allocate() for _ in range(count)]
        if sequence.unwritten_runs:
            self._encoding.append(sequence)

    def _blocks_of_run(self, sequence: Sequence, number: int) -> int:
        found = self._cached_run(sequence, number)
        return self._cache.ownerless(found) if found else len(self._names(sequence, number))

    def _cached_run(self, sequence: Sequence, number: int) -> list[int]:
        """Return the cached blocks of a run; none where a single one is missing."""
        if not self._shared:
            return []
        names = self._names(sequence, number)
        found = self._cache.match(names)
        return found if len(found) == len(names) else []

    def _names(self, sequence: Sequence, number: int) -> list[bytes]:
        images = _cross_attention(sequence)
        assert images is not None
        count = self._cache.blocks_for(images.runs[number].length)
        return images.block_names(number, sequence.hash_seed, count)

    def _first_names(self, sequence: Sequence) -> list[bytes]:
        return [self._names(sequence, number)[0] for number in sequence.unwritten_runs]


def encode(sequences: list[Sequence], inputs: EncoderInputs, runner: Runner, tables: Int32) -> None:
    """Encode the inputs of some sequences, or write what layers need that look at their images. ``tables``: the blocks
    of all rows' inputs."""
    written = [(sequence, run) for sequence in sequences for run in inputs.to_write(sequence)]
    for sequence, (images, blocks) in written:
        values = np.concatenate([sequence.image_values[index] for index in images])
        runner.write_image(values, np.array(blocks, np.int32))
    if not written:
        runner.encode(build_encoder_batch(sequences, tables))
    for sequence in sequences:
        inputs.mark_encoded(sequence)
        sequence.image_values = {}


def input_blocks(runner: Runner, cache: KVCache) -> int:
    """Return the maximum number of blocks of a sequence's inputs."""
    if runner.tower is not None and runner.tower.vision.cross_attention_layers:
        return cache.num_blocks
    return min(cache.blocks_for(runner.encoder_context), cache.num_blocks)


def _cross_attention(sequence: Sequence) -> CrossAttentionImages | None:
    images = sequence.group.images
    return None if images is None else images.cross_attention
