"""A trie of cache blocks in columns: under 300 bytes a block, where objects took over 700.

A block's key is a 128-bit digest of its token run, of what else the engine told it apart by, and
of its parent's key: so one flat dictionary finds the block at the end of any path.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b

ROOT = 0
TOP = 0
"""Key of the root."""
_FREE = -1
_WIDTH = 16


class BlockTrie:
    """Blocks by slot number. Slots are used again once freed.

    depth: blocks from the root down to and with this one. copies: how often the engine holds it.
    """

    def __init__(self, page_size: int) -> None:
        self._page = page_size
        self._slot_of: dict[int, int] = {}
        self._key: list[int] = [TOP]
        self._free: list[int] = []
        self.parent = array("i", [ROOT])
        self.depth = array("i", [0])
        self.copies = array("i", [0])
        self._child, self._next, self._previous = (array("i", [0]) for _ in range(3))

    def __len__(self) -> int:
        """Blocks, the root left out."""
        return len(self._slot_of)

    def find(self, key: int) -> int | None:
        """Slot of the block with this key."""
        return self._slot_of.get(key)

    def key(self, slot: int) -> int:
        """Key of the block in this slot."""
        return self._key[slot]

    def held(self, key: int) -> bool:
        """Whether the engine has a copy of the block with this key."""
        slot = self._slot_of.get(key)
        return slot is not None and self.copies[slot] > 0

    def keys(
        self,
        tokens: Sequence[int],
        extra: Sequence[tuple[str, ...]] = (),
        above: int = TOP,
    ) -> list[int]:
        """Keys of the whole blocks of `tokens`, each below the one before.

        extra: of the leading blocks; those behind have none. above: key of the block the first is
        below.
        """
        width = self._page * 8
        raw = array("q", tokens).tobytes()
        path = above.to_bytes(_WIDTH, "little")
        keys = []
        for index in range(len(tokens) // self._page):
            told = repr(extra[index]).encode() if index < len(extra) and extra[index] else b""
            run = raw[index * width : (index + 1) * width]
            path = blake2b(path + run + told, digest_size=_WIDTH).digest()
            keys.append(int.from_bytes(path, "little"))
        return keys

    def child(self, above: int, key: int) -> int:
        """Slot of the block with this key; it is made below `above` where there is none."""
        slot = self._slot_of.get(key)
        if slot is None:
            slot = self._new(key, above)
            self._slot_of[key] = slot
        return slot

    def is_leaf(self, slot: int) -> bool:
        """Whether no block is below."""
        return self._child[slot] == ROOT

    def holds_below(self, slot: int) -> bool:
        """Whether the engine has a block right below this one."""
        below = self._child[slot]
        while below != ROOT:
            if self.copies[below]:
                return True
            below = self._next[below]
        return False

    def is_free(self, slot: int) -> bool:
        """Whether no block is in this slot."""
        return self.depth[slot] == _FREE

    def subtree(self, slot: int) -> Iterator[int]:
        """The block and all below it."""
        waiting = [slot]
        while waiting:
            slot = waiting.pop()
            below = self._child[slot]
            while below != ROOT:
                waiting.append(below)
                below = self._next[below]
            yield slot

    def free(self, slot: int) -> int:
        """Take a leaf out; returns the slot of its parent."""
        above, previous, following = self.parent[slot], self._previous[slot], self._next[slot]
        if previous == ROOT:
            self._child[above] = following
        else:
            self._next[previous] = following
        if following != ROOT:
            self._previous[following] = previous
        del self._slot_of[self._key[slot]]
        self._key[slot] = 0
        self.depth[slot] = _FREE
        self._free.append(slot)
        return above

    def _new(self, key: int, above: int) -> int:
        eldest = self._child[above]
        if self._free:
            slot = self._free.pop()
            self._key[slot] = key
            self.parent[slot] = above
            self.depth[slot] = self.depth[above] + 1
            self.copies[slot] = 0
            self._child[slot], self._next[slot], self._previous[slot] = ROOT, eldest, ROOT
        else:
            slot = len(self._key)
            self._key.append(key)
            self.parent.append(above)
            self.depth.append(self.depth[above] + 1)
            self.copies.append(0)
            self._child.append(ROOT)
            self._next.append(eldest)
            self._previous.append(ROOT)
        if eldest != ROOT:
            self._previous[eldest] = slot
        self._child[above] = slot
        return slot
