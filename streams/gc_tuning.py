"""Garbage collector tuning."""

import gc
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

#: Net new objects before a collection: a few batches of records.
_BATCHES: Final = 50_000
#: Python's default thresholds, by version; other values were set by the user.
_PYTHON_DEFAULTS: Final = (700, 2_000)


@contextmanager
def collection_paused() -> Generator[None]:
    """Disable the garbage collector in the block, because it scans new objects several times.

    Reference counting still frees objects without cycles. A disabled collector stays disabled.

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
def permanent_objects() -> Generator[None]:
    """Disable the collector while definitions are created, then move them to the oldest generation.

    Otherwise the collector scans all of them twice, a tenth of a worker's start time.

    >>> import gc
    >>> with permanent_objects():
    ...     names = {"a": []}
    >>> any(each is names for each in gc.get_objects(generation=2))
    True
    """
    is_outermost = gc.isenabled()
    with collection_paused():
        yield
        # Not if the user froze objects: `unfreeze` would thaw those too.
        if is_outermost and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()


def collect_by_batches() -> None:
    """Collect new objects after several batches, not several times per batch.

    A batch's records are alive until it ends. Collections within it free nothing, and cost a tenth
    of a stateless job's CPU time. A threshold set by the user is kept.

    >>> import gc
    >>> before = gc.get_threshold()
    >>> collect_by_batches()
    >>> gc.get_threshold()[0] >= 50_000
    True
    >>> gc.set_threshold(*before)
    """
    first, *older = gc.get_threshold()
    if first in _PYTHON_DEFAULTS:
        gc.set_threshold(_BATCHES, *older)
