"""What programs may give to be told how stores are restored and how copies of them follow."""

from typing import Protocol, runtime_checkable

from tasks.state_updater import RestoreEvent, StandbyUpdateEvent


@runtime_checkable
class RestoreListener(Protocol):
    """Told how restoring goes on.

    >>> class Progress:
    ...     def on_restore(self, event: RestoreEvent) -> None:
    ...         print(event.store, event.restored)
    >>> isinstance(Progress(), RestoreListener)
    True
    """

    def on_restore(self, event: RestoreEvent) -> None:
        """Called from the restoring thread: keep it short."""
        ...


@runtime_checkable
class StandbyUpdateListener(Protocol):
    """Told how copies of stores (standbys and learners) follow their changelogs.

    >>> class Promotions:
    ...     def on_standby_update(self, event: StandbyUpdateEvent) -> None:
    ...         if event.reason == "PROMOTED":
    ...             print(event.task_id, event.store, event.end - event.position)
    >>> isinstance(Promotions(), StandbyUpdateListener)
    True
    """

    def on_standby_update(self, event: StandbyUpdateEvent) -> None:
        """Called from the restoring thread: keep it short."""
        ...
