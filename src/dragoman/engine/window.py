"""How much of its text a sequence holds in memory: all, or, where no token sees more than a window, about that."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman.models.memory import blocks_held


@dataclass(frozen=True, slots=True)
class Window:
    """No token sees more than ``positions``, its own included; 0: all before it are seen.

    ``step_tokens``: most tokens of a sequence that one step computes, which are to have blocks before it.
    """

    positions: int
    step_tokens: int
    block_size: int

    def first_block(self, computed: int) -> int:
        """The first block of which the token behind ``computed`` ones sees anything."""
        return max(0, computed - self.positions + 1) // self.block_size if self.positions else 0

    def end_block(self, num_tokens: int, first_block: int) -> int:
        """Up to where a sequence of so many tokens, which holds blocks from ``first_block`` on, has memory."""
        return min(first_block + self.most_blocks(num_tokens), -(-num_tokens // self.block_size))

    def most_blocks(self, num_tokens: int) -> int:
        """How many a sequence of so many tokens holds at one time."""
        return blocks_held(num_tokens, self.positions, self.step_tokens, self.block_size)

    def longest(self, max_context: int, num_blocks: int) -> int:
        """The most tokens of a sequence, within a context, for which so many blocks are enough."""
        return max_context if self.most_blocks(max_context) <= num_blocks else num_blocks * self.block_size
