"""Attention window: how many blocks a sequence needs in memory."""

from __future__ import annotations

import msgspec

from dragoman.models.kv_groups import blocks_per_sequence


class Window(msgspec.Struct, frozen=True):
    """No token sees more than ``positions``, its own included; 0: all before it are seen.

    ``step_tokens``: maximum tokens of a sequence that one step computes, which need blocks before the step.
    """

    positions: int
    step_tokens: int
    block_size: int

    def first_block(self, computed: int) -> int:
        """Return the first block that the token after ``computed`` ones sees."""
        return max(0, computed - self.positions + 1) // self.block_size if self.positions else 0

    def end_block(self, num_tokens: int, first_block: int) -> int:
        """Return the end of the blocks of a sequence of so many tokens whose blocks start at ``first_block``."""
        return min(first_block + self.most_blocks(num_tokens), -(-num_tokens // self.block_size))

    def most_blocks(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of so many tokens has at one time."""
        return blocks_per_sequence(num_tokens, self.positions, self.step_tokens, self.block_size)

    def longest(self, max_context: int, num_blocks: int) -> int:
        """Return the maximum tokens of a sequence, within a context, for which so many blocks are enough."""
        return max_context if self.most_blocks(max_context) <= num_blocks else num_blocks * self.block_size
