"""Listeners of restores and standby updates."""

from collections.abc import Callable
from inspect import isclass
from typing import Any, Protocol, runtime_checkable

from tidewheel.streams.definitions.checks import check_callable
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.restore.state_updater import RestoreEvent, StandbyUpdateEvent


@runtime_checkable
class RestoreListener(Protocol):
    """Listener of restore progress.

    >>> class Progress:
    ...     def on_restore(self, event: RestoreEvent) -> None:
    ...         print(event.store, event.restored)
    >>> isinstance(Progress(), RestoreListener)
    True
    """

    def on_restore(self, event: RestoreEvent) -> None:
        """Handle an event in the restoring thread: return quickly."""
        ...


@runtime_checkable
class StandbyUpdateListener(Protocol):
    """Listener of the progress of standbys and learners.

    >>> class Promotions:
    ...     def on_standby_update(self, event: StandbyUpdateEvent) -> None:
    ...         if event.reason == "PROMOTED":
    ...             print(event.task_id, event.store, event.end - event.position)
    >>> isinstance(Promotions(), StandbyUpdateListener)
    True
    """

    def on_standby_update(self, event: StandbyUpdateEvent) -> None:
        """Handle an event in the restoring thread: return quickly."""
        ...


def called(
    listener: Any, setter: str, parameters: str, method: str = ""
) -> Callable[..., Any] | None:
    """Return the callable of a listener: the function itself, or its `method`; None for None.

    >>> called(5, "set_state_listener", "(new, old)")
    Traceback (most recent call last):
    ...
    tidewheel.state_stores.errors.StreamsError: set_state_listener: the listener is of type int, not a function; give a callable of 2 parameters: (new, old)
    """
    what = f"the listener (a function, or an object with {method})" if method else "the listener"
    if isclass(listener):
        name = listener.__name__
        raise StreamsError(
            f"{setter}: {what} is the class {name}; give an object of it, as in {name}()"
        )
    function = getattr(listener, method, listener) if method else listener
    checked: Callable[..., Any] | None = check_callable(
        function, what, parameters, setter, error=StreamsError
    )
    return checked
