"""Keeps the garbage collector out where much is made that is no garbage."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

#: After so many objects more than went the collector looks at what is new: a few batches of records.
_BATCHES: Final = 50_000
#: What Python begins with, by version; another number is somebody's own choice.
_PYTHONS_OWN: Final = (700, 2_000)


@contextmanager
def collection_paused() -> Generator[None]:
    """Do without the garbage collector: it is started by the number of what is made, and looks at each several times.

    Reference counts free what makes no cycle in any case. Where it is off already it stays off.

    >>> import gc
    >>> with collection_paused():
    ...     gc.isenabled()
    False
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def made_to_stay() -> Generator[None]:
    """Do without the collector while definitions are made, and count what there is then as old: it is seldom looked at.

    Left among what is new, it would all be looked at twice at once, a tenth of what a worker's start takes.

    >>> import gc
    >>> with made_to_stay():
    ...     names = {"a": []}
    >>> any(each is names for each in gc.get_objects(generation=2))
    True
    """
    is_outermost = gc.isenabled()
    with collection_paused():
        yield
        # What somebody has frozen would go back among the old.
        if is_outermost and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()


def collect_by_batches() -> None:
    """Have the collector look at what is new after several batches, not several times in each.

    All records of a batch are alive until it is through, so it found nothing in its midst: that was a tenth of the
    processor time of a job without state. Another threshold than Python's own is left as it is.

    >>> import gc
    >>> before = gc.get_threshold()
    >>> collect_by_batches()
    >>> gc.get_threshold()[0] >= 50_000
    True
    >>> gc.set_threshold(*before)
    """
    first, *others = gc.get_threshold()
    if first in _PYTHONS_OWN:
        gc.set_threshold(_BATCHES, *others)
