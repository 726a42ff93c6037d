"""Events of the prefix cache: which named blocks there are, and which are not there any more."""

from __future__ import annotations

import msgspec


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """Consecutive blocks of one sequence have names now.

    ``parent``: the name of the block before them, None for the first. ``token_ids``: their tokens; empty where the
    names do not follow from the tokens alone, but also from a caller's salt, from given embeddings, from images or from
    an encoder's input. ``adapter``: its key in the process.
    """

    names: list[bytes]
    parent: bytes | None
    token_ids: list[int]
    adapter: str | None


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """These names are not in the cache any more."""

    names: list[bytes]


BlockEvent = BlocksStored | BlocksRemoved
