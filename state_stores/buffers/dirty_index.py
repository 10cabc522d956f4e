"""The uncommitted disk keys of each key, so that a scan of one key doesn't look at all the others."""

from bisect import insort
from collections.abc import Callable


class DirtyIndex:
    """Uncommitted disk keys by key, in order; brought up to date only when somebody asks.

    Args:
        part: The bytes of a disk key that are the key's.
        since: Returns the disk keys that became dirty after the first so many.
    """

    def __init__(self, part: slice, since: Callable[[int], list[bytes]]) -> None:
        self._part = part
        self._since = since
        self._by_key: dict[bytes, list[bytes]] = {}
        self._seen = 0

    def of(self, key: bytes, dirty_count: int) -> list[bytes] | None:
        """Return a key's uncommitted disk keys in order, None if there are none; the list is the index's own.

        Args:
            key: The key.
            dirty_count: How many disk keys are dirty now.
        """
        if dirty_count > self._seen:
            self._update(dirty_count)
        return self._by_key.get(key)

    def _update(self, dirty_count: int) -> None:
        by_key, part = self._by_key, self._part
        for disk_key in self._since(self._seen):
            key = disk_key[part]
            mine = by_key.get(key)
            if mine is None:
                by_key[key] = [disk_key]
            else:
                insort(mine, disk_key)
        self._seen = dirty_count

    def clear(self) -> None:
        """Nothing is dirty any more."""
        self._by_key = {}
        self._seen = 0
