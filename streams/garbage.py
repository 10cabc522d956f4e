"""Keeps the garbage collector out where much is made that is no garbage."""

import gc
from collections.abc import Generator
from contextlib import contextmanager


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
