"""Whether the caches of a worker may be flushed twice for one commit, which begins early then. Pure.

A key that changes in both parts of such a commit is forwarded twice, and a cache is there so that keys that come often are forwarded
rarely. So it is only done while few keys do.
"""

from typing import Final

#: The share of a commit's keys that may be forwarded twice.
_SHARE: Final = 0.05
#: The share is that of so many keys at least: of a few keys one more would make much.
_ENOUGH: Final = 100
#: For so many intervals commits are not divided, once too many keys were forwarded twice; then it is tried again.
_COMMITS: Final = 100


class DividedCommits:
    """Counts what the commits that were divided have forwarded twice.

    >>> divided = DividedCommits(interval_s=0.1)
    >>> divided.count(keys=1_000, twice=2, now_s=5.0)
    >>> divided.are_allowed(5.1)
    True
    >>> divided.count(keys=10, twice=9, now_s=5.1)
    >>> divided.are_allowed(5.2), divided.are_allowed(15.2)
    (False, True)
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._until_s = 0.0
        self._keys, self._twice = 0, 0

    def are_allowed(self, now_s: float) -> bool:
        """Return whether caches may be flushed twice for the next commit."""
        return now_s >= self._until_s

    def count(self, *, keys: int, twice: int, now_s: float) -> None:
        """Take a commit that was divided: how many keys of the caches it had, and how many of them were forwarded twice."""
        self._keys += keys
        self._twice += twice
        if self._twice > _SHARE * max(self._keys, _ENOUGH):
            self.refuse(now_s)
        elif self._keys >= _ENOUGH:
            self._keys, self._twice = 0, 0

    def refuse(self, now_s: float) -> None:
        """Divide none for a while: a part became a commit of its own, so that all of its keys were forwarded once more."""
        self._until_s = now_s + _COMMITS * self._interval_s
        self._keys, self._twice = 0, 0
