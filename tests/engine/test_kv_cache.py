"""Blocks: references, reuse by prefix, and the order in which free blocks are handed out."""

from __future__ import annotations

import hashlib
from array import array

import pytest

from fake_engine import make_request
from hookserve.engine.kv_cache import BlockPool, KVCacheManager
from hookserve.engine.request import Request


def request(prompt: list[int], name: str = "r", salt: str | None = None) -> Request:
    return Request(make_request(name, prompt, cache_salt=salt), 0.0)


def computed(manager: KVCacheManager, prompt: list[int], salt: str | None = None) -> Request:
    """An admitted request whose whole prompt is computed."""
    made = request(prompt, salt=salt)
    assert manager.admit(made)
    made.num_computed_tokens = made.num_tokens
    manager.register(made, made.num_tokens)
    return made


@pytest.fixture
def manager():
    return KVCacheManager(16, 4, enable_prefix_caching=True)


def test_a_prompt_takes_the_blocks_of_an_equal_prefix(manager):
    first = computed(manager, list(range(11)))
    second = request([*range(8), 90, 91, 92])
    assert manager.admit(second)
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] not in first.block_ids
    assert second.num_computed_tokens == 8
    assert manager.pool.num_held == 4
    manager.check_integrity([first, second])
    manager.free(first)
    manager.check_integrity([second])
    assert manager.pool.num_held == 3


def test_at_least_one_token_is_left_to_compute(manager):
    computed(manager, list(range(8)))
    again = request(list(range(8)))
    assert manager.admit(again)
    assert again.num_computed_tokens == 4


def test_a_block_is_only_reused_behind_the_same_beginning(manager):
    computed(manager, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    other = request([0, 2, 3, 4, 5, 6, 7, 8, 9])
    assert manager.find_prefix(other) == []


def test_a_salt_keeps_tenants_apart(manager):
    prompt = list(range(9))
    mine = computed(manager, prompt, salt="a")
    assert manager.find_prefix(request(prompt, salt="b")) == []
    assert manager.find_prefix(request(prompt)) == []
    assert manager.find_prefix(request(prompt, salt="a")) == mine.block_ids[:2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", [98, 1, 2, 3]), ("ab", [1, 2, 3, 4])),
        ((None, [1, 2, 3, 4]), ("", [1, 2, 3, 4])),
        (("a", [1, 2, 3, 4]), ("a\x01\x00\x00\x00", [2, 3, 4, 5])),
        (("é", [1, 2, 3, 4]), ("e\u0301", [1, 2, 3, 4])),
        (("\ud800", [1, 2, 3, 4]), ("?", [1, 2, 3, 4])),
    ],
)
def test_a_salt_is_never_taken_for_another_or_for_tokens(one, other):
    digests = [
        set(request(prompt * 3, salt=salt).hash_full_blocks(size))
        for salt, prompt in (one, other)
        for size in (1, 2, 4)
    ]
    assert len(set().union(*digests)) == sum(len(some) for some in digests)


def test_a_digest_covers_salt_and_every_token_before():
    made = request([1, 2, 3, 4, 5, 6, 7], salt="s")

    def block(previous: bytes, tokens: list[int]) -> bytes:
        return hashlib.sha256(b"block:" + previous + array("i", tokens).tobytes()).digest()

    first = block(hashlib.sha256(b"root:s").digest(), [1, 2, 3])
    second = block(first, [4, 5, 6])
    assert made.hash_full_blocks(3) == [first, second]
    made.append_token(8)
    made.append_token(9)
    assert made.hash_full_blocks(3) == [first, second, block(second, [7, 8, 9])]


def test_tokens_that_are_not_computed_yet_are_not_shared(manager):
    first = request(list(range(12)))
    manager.admit(first)
    manager.register(first, 5)
    assert manager.find_prefix(request(list(range(12)))) == first.block_ids[:1]


def test_a_prefix_that_is_about_to_be_computed_is_worth_waiting_for(manager):
    first = request(list(range(12)))
    manager.admit(first)
    manager.register(first, 4)
    same, other = request([*range(8), 90, 91]), request([*range(4), 90, 91, 92, 93, 94])
    assert manager.is_prefix_coming(same, [first])
    assert not manager.is_prefix_coming(other, [first])
    assert not manager.is_prefix_coming(same, [])
    manager.register(first, 8)
    assert not manager.is_prefix_coming(same, [first])


def test_prefix_caching_can_be_off():
    manager = KVCacheManager(16, 4, enable_prefix_caching=False)
    computed(manager, list(range(9)))
    assert manager.find_prefix(request(list(range(9)))) == []


def test_free_contents_live_until_their_block_is_needed(manager):
    first = computed(manager, list(range(9)))
    manager.free(first)
    assert manager.pool.num_held == 0
    # 13 blocks were never used, and one of the three has no digest: those go first.
    filler = manager.pool.take(14)
    again = request(list(range(9)))
    assert len(manager.find_prefix(again)) == 2
    # The end of a prefix is given away before its beginning.
    manager.pool.take(1)
    assert len(manager.find_prefix(again)) == 1
    manager.pool.release(filler)
    assert len(manager.find_prefix(again)) == 1


def test_the_least_recently_freed_prefix_is_given_away_first(manager):
    old = computed(manager, [1] * 9)
    new = computed(manager, [2] * 9)
    manager.free(new)
    manager.free(old)
    manager.pool.take(16 - 4 + 2)
    assert manager.find_prefix(request([2] * 9)) == []
    assert len(manager.find_prefix(request([1] * 9))) == 2


def test_admission_counts_cached_free_blocks_as_taken():
    manager = KVCacheManager(4, 4, enable_prefix_caching=True)
    manager.free(computed(manager, list(range(13))))
    # All four blocks are free, three of them are this prompt's own prefix.
    assert not manager.admit(request(list(range(17))))
    assert manager.pool.num_held == 0
    made = request(list(range(13)))
    assert not manager.admit(made, spare_blocks=1)
    assert manager.admit(made)
    assert made.num_computed_tokens == 12


def test_growth_takes_a_block_when_the_last_one_is_full(manager):
    made = request([1, 2, 3, 4])
    manager.admit(made)
    assert manager.extend(made) == []
    made.append_token(5)
    (added,) = manager.extend(made)
    assert made.block_ids[-1] == added
    manager.pool.take(manager.pool.num_free)
    for _ in range(4):
        made.append_token(5)
    assert manager.extend(made) is None
    assert len(made.block_ids) == 2


def test_block_0_is_never_handed_out():
    pool = BlockPool(5)
    assert sorted(pool.take(5)) == [1, 2, 3, 4, 5]
    assert pool.num_free == 0


def test_what_failed_is_neither_found_nor_left_uncleared(manager):
    good = computed(manager, list(range(5)))
    bad = computed(manager, [*range(4), 9, 9, 9, 9, 9])
    assert bad.block_ids[0] == good.block_ids[0]
    own = bad.block_ids[1:]
    assert manager.free_spoiled(bad) == own
    assert manager.find_prefix(request([*range(4), 9, 9, 9, 9, 9])) == []
    manager.check_integrity([good])


def test_check_integrity_sees_what_is_wrong(manager):
    held = computed(manager, list(range(9)))
    manager.check_integrity([held])
    with pytest.raises(AssertionError, match="reference counts"):
        manager.check_integrity([])
    held.block_hashes[1] = b"another"
    with pytest.raises(AssertionError, match=f"block {held.block_ids[1]} is known by contents"):
        manager.check_integrity([held])
    manager.pool._free[held.block_ids[0]] = None
    with pytest.raises(AssertionError, match="free twice or lost"):
        manager.check_integrity([held])
