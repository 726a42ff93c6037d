"""The block pool and the prefix cache, alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.engine.kv_cache import KVCache, block_hash

SIZE = 32


def chain(*token_ids: int, salt: bytes = b"") -> list[bytes]:
    """Names of blocks, each filled with one token."""
    names = [salt]
    for token_id in token_ids:
        names.append(block_hash(names[-1], [token_id] * SIZE))
    return names[1:]


def filled(cache: KVCache, names: list[bytes]) -> list[int]:
    """A sequence's blocks, computed and named."""
    blocks = [cache.allocate() for _ in names]
    for block, name in zip(blocks, names, strict=True):
        cache.name(block, name)
    return blocks


def test_a_name_says_the_tokens_and_all_before_them() -> None:
    assert chain(1, 2) == chain(1, 2)
    assert chain(2, 1)[0] == chain(2, 2)[0]
    assert len({*chain(1, 2), *chain(2, 1), *chain(2, 2)[1:], *chain(1, 2, salt=b"adapter")}) == 7


def test_equal_prefixes_share_blocks() -> None:
    cache = KVCache(8, SIZE)
    first = filled(cache, chain(1, 2, 3))
    shared = cache.match(chain(1, 2, 9))
    assert shared == first[:2]
    cache.share(shared)
    assert [cache.owners(block) for block in first] == [2, 2, 1]
    cache.check_integrity([first, shared])


def test_a_prefix_survives_its_owner() -> None:
    cache = KVCache(4, SIZE)
    blocks = filled(cache, chain(1, 2))
    cache.release(blocks)
    assert cache.available == 4
    assert cache.cached == 2
    assert cache.match(chain(1, 2)) == blocks


def test_a_block_without_a_name_is_forgotten() -> None:
    cache = KVCache(2, SIZE)
    cache.release([cache.allocate()])
    assert (cache.available, cache.cached) == (2, 0)


def test_free_blocks_are_taken_before_cached_ones() -> None:
    cache = KVCache(4, SIZE)
    cache.release(filled(cache, chain(1, 2)))
    taken = [cache.allocate(), cache.allocate()]
    assert len(cache.match(chain(1, 2))) == 2
    cache.check_integrity([taken])


def test_the_least_recently_used_prefix_goes_first_and_from_its_end() -> None:
    cache = KVCache(4, SIZE)
    old, new = filled(cache, chain(1, 2)), filled(cache, chain(8, 9))
    cache.release(new)
    cache.release(old)
    cache.share(cache.match(chain(8, 9)))
    cache.release(new)
    cache.allocate()
    assert cache.match(chain(1, 2)) == old[:1]
    assert cache.match(chain(8, 9)) == new
    cache.allocate()
    cache.allocate()
    assert cache.match(chain(1, 2)) == []
    assert cache.match(chain(8, 9)) == new[:1]


def test_of_two_blocks_with_equal_contents_the_first_is_shared() -> None:
    cache = KVCache(4, SIZE)
    first, second = filled(cache, chain(1)), filled(cache, chain(1))
    assert cache.match(chain(1)) == first
    cache.release(second)
    assert cache.match(chain(1)) == first
    cache.check_integrity([first])


@pytest.mark.parametrize("damage", ["owner", "name", "free"])
def test_check_integrity_finds_damage(damage: str) -> None:
    cache = KVCache(4, SIZE)
    blocks = filled(cache, chain(1, 2))
    cache.check_integrity([blocks])
    if damage == "owner":
        cache.share(blocks[:1])
    elif damage == "name":
        del cache._block_of[chain(1)[0]]
    else:
        cache._free.append(blocks[0])
    with pytest.raises(AssertionError):
        cache.check_integrity([blocks])


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 12), st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=4))))
def test_no_block_is_lost_and_no_prefix_is_wrong(num_blocks: int, operations: list[tuple[int, list[int]]]) -> None:
    """Random sequences come, share what they can, and go; ``contents`` says what each block was last filled with."""
    cache = KVCache(num_blocks, SIZE)
    tables: list[list[int]] = []
    contents: dict[int, bytes] = {}
    for kind, tokens in operations:
        if kind == 0 and tables:
            cache.release(tables.pop(tokens[0] % len(tables)))
        else:
            names = chain(*tokens)
            shared = cache.match(names)
            assert [contents[block] for block in shared] == names[: len(shared)]
            if len(names) - len(shared) + cache.ownerless(shared) > cache.available:
                continue
            cache.share(shared)
            new = [cache.allocate() for _ in names[len(shared) :]]
            for block, name in zip(new, names[len(shared) :], strict=True):
                contents[block] = name
                if kind != 1:
                    cache.name(block, name)
            tables.append(shared + new)
        cache.check_integrity(tables)
    for table in tables:
        cache.release(table)
    assert cache.available == num_blocks


def test_a_block_without_owner_is_found_by_what_it_begins_with() -> None:
    """The end of a prompt: the name is noted while others are written behind it, and goes when the block is reused."""
    cache = KVCache(1, SIZE)
    (name,) = chain(1)
    block = cache.allocate()
    cache.note_tail(block, name)
    assert cache.has_name(block, name)
    assert not cache.match([name]), "its owner writes into it"
    cache.release([block])
    assert cache.match([name]) == [block]
    cache.check_integrity([])
    assert cache.allocate() == block
    assert not cache.has_name(block, name)
    assert not cache.match([name])
