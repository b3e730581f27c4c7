"""The paged KV cache's book-keeping: which block belongs to whom, and what can be reused.

Only numbers of blocks live here; the tensors are the model runner's. ``BlockPool`` counts
references and remembers contents by digest; ``KVCacheManager`` gives requests their blocks.
Nothing here takes time that grows with the length of what is already cached.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from .request import Request


class BlockPool:
    """Blocks ``1 … num_blocks``, each free or held by one or more requests.

    Block 0 belongs to nobody and is never written: tables are padded with it, and what attention
    reads there and hides must be finite numbers.

    A free block keeps its contents until it is handed out again, so a later request with the same
    prefix can take it back. Handed out first: free blocks without known contents, then blocks that
    were never used, then the least recently freed.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0, num_blocks
        self.num_blocks = num_blocks
        self._ref_counts = [0] * (num_blocks + 1)
        self._hashes: list[bytes | None] = [None] * (num_blocks + 1)
        self._by_hash: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict()
        # Blocks from here on were never used: the list of free blocks starts empty, and a server
        # that needs little memory touches little of it.
        self._first_unused = 1

    @property
    def num_free(self) -> int:
        return len(self._free) + self.num_blocks + 1 - self._first_unused

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def num_gpu_blocks(self) -> int:
        """The ecosystem's name of ``num_blocks``."""
        return self.num_blocks

    def get_num_free_blocks(self) -> int:
        """The ecosystem's name of ``num_free``."""
        return self.num_free

    def get_usage(self) -> float:
        """Blocks held by requests over all blocks, 0 to 1."""
        return (self.num_blocks - self.num_free) / self.num_blocks

    def find(self, block_hash: bytes) -> int | None:
        """The block with these contents, free or held."""
        return self._by_hash.get(block_hash)

    def known_as(self, block_id: int) -> bytes | None:
        """The digest under which ``find`` answers this block."""
        return self._hashes[block_id]

    def is_free(self, block_id: int) -> bool:
        return self._ref_counts[block_id] == 0

    def take(self, count: int) -> list[int]:
        """Hand out ``count`` blocks, each with one reference. There must be enough free ones."""
        assert count <= self.num_free, (count, self.num_free)
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        oldest = next(iter(self._free), None)
        if self._first_unused <= self.num_blocks and (
            oldest is None or self._hashes[oldest] is not None
        ):
            block_id = self._first_unused
            self._first_unused += 1
        else:
            assert oldest is not None
            block_id = oldest
            del self._free[block_id]
            self._forget_hash(block_id)
        self._ref_counts[block_id] = 1
        return block_id

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to blocks that ``find`` answered."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._free[block_id]
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Drop one reference of each. The last blocks of the sequence are reused first, because
        a prefix is worth more than what follows it."""
        for block_id in reversed(block_ids):
            count = self._ref_counts[block_id]
            assert count > 0, f"block {block_id} is released but nobody holds it"
            self._ref_counts[block_id] = count - 1
            if count == 1:
                self._free[block_id] = None
                if self._hashes[block_id] is None:
                    self._free.move_to_end(block_id, last=False)

    def register(self, block_id: int, block_hash: bytes) -> None:
        """The block's contents are this; a block with the same contents that is known stays."""
        if block_hash not in self._by_hash and self._hashes[block_id] is None:
            self._by_hash[block_hash] = block_id
            self._hashes[block_id] = block_hash

    def forget(self, block_ids: Iterable[int]) -> None:
        """The contents must not be reused: what was computed into these blocks is wrong."""
        for block_id in block_ids:
            self._forget_hash(block_id)

    def forget_all(self) -> None:
        self.forget(list(self._by_hash.values()))

    def _forget_hash(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            del self._by_hash[block_hash]
            self._hashes[block_id] = None

    def check_integrity(self, held: Iterable[Sequence[int]]) -> None:
        """Raise ``AssertionError`` unless the books agree with the block lists of the requests."""
        counts = [0] * (self.num_blocks + 1)
        for block_ids in held:
            assert len(set(block_ids)) == len(block_ids), f"a block twice in one list: {block_ids}"
            for block_id in block_ids:
                counts[block_id] += 1
        assert counts == self._ref_counts, "reference counts differ from what requests hold"
        assert counts[0] == 0, "block 0 is held"
        for block_id, count in enumerate(counts[1:], start=1):
            unused = block_id >= self._first_unused
            assert not (unused and count), f"block {block_id} is held but was never handed out"
            listed = block_id in self._free
            assert listed == (count == 0 and not unused), f"block {block_id} is free twice or lost"
        for block_hash, block_id in self._by_hash.items():
            assert self._hashes[block_id] == block_hash, f"block {block_id} has another digest"
        known = sum(block_hash is not None for block_hash in self._hashes)
        assert known == len(self._by_hash), "a digest points nowhere"


class KVCacheManager:
    """Gives requests blocks, and finds what of a prompt is cached already."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching

    @property
    def num_tokens_capacity(self) -> int:
        return self.pool.num_blocks * self.block_size

    @property
    def usage(self) -> float:
        """Blocks held by requests over all blocks, 0 to 1."""
        return self.pool.get_usage()

    @property
    def block_pool(self) -> BlockPool:
        """The ecosystem's name of ``pool``."""
        return self.pool

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_prefix(self, request: Request) -> list[int]:
        """The longest run of cached blocks at the request's start; at least one token is left to
        compute, because the next token's logits come from it."""
        if not self.enable_prefix_caching or request.must_compute_prompt:
            return []
        found: list[int] = []
        hashes = request.hash_full_blocks(self.block_size)
        for block_hash in hashes[: (request.num_tokens - 1) // self.block_size]:
            block_id = self.pool.find(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def admit(self, request: Request, *, spare_blocks: int = 0) -> bool:
        """Give a waiting request all blocks that its known tokens need, cached ones included.

        Args:
            request: holds no block; afterwards its ``num_computed_tokens`` counts what was cached.
            spare_blocks: free blocks that must be left over.
        """
        assert not request.block_ids, request
        cached = self.find_prefix(request)
        num_new = self.num_blocks_for(request.num_tokens) - len(cached)
        num_taken = num_new + sum(self.pool.is_free(block_id) for block_id in cached)
        if num_taken + spare_blocks > self.pool.num_free:
            return False
        self.pool.share(cached)
        request.block_ids = cached + self.pool.take(num_new)
        request.num_computed_tokens = len(cached) * self.block_size
        request.num_registered_blocks = len(cached)
        return True

    def may_fit(
        self, request: Request, without: Iterable[Request], *, spare_blocks: int = 0
    ) -> bool:
        """Whether ``admit`` can succeed if these others lose their blocks; a block that they share
        is counted for each of them, so it may still be refused."""
        num_needed = self.num_blocks_for(request.num_tokens) - len(self.find_prefix(request))
        num_held = sum(len(other.block_ids) for other in without)
        return num_needed + spare_blocks <= self.pool.num_free + num_held

    def extend(self, request: Request) -> list[int] | None:
        """Blocks added so that all known tokens fit; ``None``: there are not enough free ones."""
        missing = self.num_blocks_for(request.num_tokens) - len(request.block_ids)
        if missing <= 0:
            return []
        if missing > self.pool.num_free:
            return None
        added = self.pool.take(missing)
        request.block_ids += added
        return added

    def register(self, request: Request, num_tokens: int) -> None:
        """Make the request's blocks up to ``num_tokens`` known for reuse, as far as they are full.

        Called when a step is scheduled that computes them: within a step all keys and values of a
        layer are written before any are read, so a request of the same step may share them.
        """
        if not self.enable_prefix_caching:
            return
        full = num_tokens // self.block_size
        if full <= request.num_registered_blocks:
            return
        hashes = request.hash_full_blocks(self.block_size)
        for index in range(request.num_registered_blocks, full):
            self.pool.register(request.block_ids[index], hashes[index])
        request.num_registered_blocks = full

    def is_prefix_coming(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether a running request is about to compute the block that the waiting one needs
        next: then waiting is cheaper than computing it twice."""
        if not self.enable_prefix_caching or request.must_compute_prompt:
            return False
        index = len(self.find_prefix(request))
        if index >= (request.num_tokens - 1) // self.block_size:
            return False
        wanted = request.block_hashes[index]
        return any(
            other.num_registered_blocks <= index < len(other.block_hashes)
            and other.block_hashes[index] == wanted
            for other in running
        )

    def free(self, request: Request) -> None:
        """Take the request's blocks back."""
        self.pool.release(request.block_ids)
        request.block_ids = []
        request.num_registered_blocks = 0

    def free_spoiled(self, request: Request) -> list[int]:
        """Take back blocks whose contents are wrong: none is reused by prefix.

        Returns: those that nobody else holds; they must be cleared before they are used again.
        """
        block_ids = request.block_ids
        self.pool.forget(block_ids)
        self.free(request)
        return [block_id for block_id in block_ids if self.pool.is_free(block_id)]

    def check_integrity(self, requests: Sequence[Request]) -> None:
        """Raise ``AssertionError`` unless the blocks agree with the requests that hold them."""
        self.pool.check_integrity([request.block_ids for request in requests])
        for request in requests:
            registered = request.num_registered_blocks
            assert registered * self.block_size <= request.num_computed_tokens, request
            for block_id, own in zip(
                request.block_ids[:registered], request.block_hashes, strict=False
            ):
                assert self.pool.known_as(block_id) in (None, own), (
                    f"block {block_id} is known by contents that {request} does not have"
                )
