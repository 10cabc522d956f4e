"""A cut through the work of several ranges: who was asked, and who has sealed."""

import threading
from collections.abc import Hashable, Iterable


class Cut:
    """Waits for those ranges whose seal comes soon.

    >>> cut = Cut({"a", "b"})
    >>> cut.made("a"); cut.wait(0.0)
    False
    >>> cut.made("b"); cut.wait(0.0)
    True
    """

    def __init__(self, awaited: Iterable[Hashable]) -> None:
        self._awaited = set(awaited)
        self._all = threading.Event()
        if not self._awaited:
            self._all.set()

    def made(self, range_: Hashable) -> None:
        """Note that a range has sealed. Called from the ranges' threads."""
        self._awaited.discard(range_)
        if not self._awaited:
            self._all.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the ranges that are awaited; return whether all have sealed."""
        return self._all.wait(max(seconds, 0.0))
