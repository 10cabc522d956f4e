"""Seal barrier: waits until the key ranges have sealed their work for a commit."""

import threading
from collections.abc import Hashable, Iterable


class SealBarrier:
    """Barrier that opens when all awaited ranges have sealed (handed over) their work.

    >>> barrier = SealBarrier({"a", "b"})
    >>> barrier.sealed("a"); barrier.wait(0.0)
    False
    >>> barrier.sealed("b"); barrier.wait(0.0)
    True
    """

    def __init__(self, awaited: Iterable[Hashable]) -> None:
        self._awaited = set(awaited)
        self._all = threading.Event()
        if not self._awaited:
            self._all.set()

    def sealed(self, range_: Hashable) -> None:
        """Record that a range has sealed. Called in ranges' threads."""
        self._awaited.discard(range_)
        if not self._awaited:
            self._all.set()

    def wait(self, seconds: float) -> bool:
        return self._all.wait(max(seconds, 0.0))
