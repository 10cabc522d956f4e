"""What listeners are told of stores that are restored, and of copies that follow their changelogs."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from tidewheel.tasks.restore.restoring_task import Charge
from tidewheel.tasks.restore.store_restore import RestoreEvent, StoreRestore

UpdateKind = Literal["start", "batch", "suspended"]

#: Why a copy is followed no more, as Kafka Streams' SuspendReason: it has left this worker, or its task is to run here.
SuspendReason = Literal["MIGRATED", "PROMOTED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyUpdateEvent:
    """Progress of a copy of one store that follows one changelog partition (KIP-988).

    `start`, `position` and `end` are offsets: where following began, where the copy is (all that is below it is in the store),
    and the end of the changelog as far as it is known. `restored` counts the records since the start, `batch` those since
    the last event. `role` is "standby" or "learner"; `reason` is set in "suspended".

    >>> event = StandbyUpdateEvent(
    ...     kind="batch", task_id="0_1", role="standby", store="counts", topic="app-counts-changelog", partition=1,
    ...     start=0, position=90, end=100, restored=90, batch=40,
    ... )
    >>> event.end - event.position
    10
    """

    kind: UpdateKind
    task_id: str
    role: str
    store: str
    topic: str
    partition: int
    start: int
    position: int
    end: int
    restored: int
    batch: int = 0
    reason: SuspendReason | None = None


class RestoreEvents:
    """Tells two listeners: one of tasks that are restored to run, one of copies. Called by the updater's thread only.

    Args:
        on_restore: Told of tasks that are to run.
        on_standby_update: Told of copies, learners and standbys alike.
    """

    def __init__(
        self,
        on_restore: Callable[[RestoreEvent], None],
        on_standby_update: Callable[[StandbyUpdateEvent], None],
    ) -> None:
        self._on_restore = on_restore
        self._on_standby_update = on_standby_update

    def started(self, charge: Charge) -> None:
        """Tell that stores begin to be restored (those that have something to read), or to be followed."""
        for entry in charge.entries.values():
            if charge.copy is not None:
                entry.told, entry.said = True, entry.restored
                self._on_standby_update(self._update(charge, entry, "start"))
            elif not entry.is_done:
                entry.told = True
                self._on_restore(entry.event("start"))

    def loaded(self, charge: Charge, entry: StoreRestore) -> None:
        """Tell that records were loaded."""
        if not entry.told:
            return
        if charge.copy is None:
            self._on_restore(entry.event("batch"))
        elif entry.restored > entry.said:
            event = self._update(charge, entry, "batch")
            entry.said = entry.restored
            self._on_standby_update(event)

    def ended(self, entry: StoreRestore) -> None:
        """Tell that a store of a task that is to run is complete."""
        if entry.told:
            self._on_restore(entry.event("end"))
            entry.told = False

    def suspended(self, charge: Charge, reason: SuspendReason = "MIGRATED") -> None:
        """Tell that nothing more is read for a task, before all was."""
        for tell in self._suspensions(charge, reason):
            tell()

    @contextmanager
    def leaving(self, charge: Charge) -> Generator[None]:
        """Tell that a task leaves, which is closed meanwhile: of a restore before, of a copy after it is closed."""
        told = self._suspensions(charge, "MIGRATED")
        if charge.copy is None:
            for tell in told:
                tell()
        yield
        if charge.copy is not None:
            for tell in told:
                tell()

    def _suspensions(self, charge: Charge, reason: SuspendReason) -> list[Callable[[], None]]:
        tells: list[Callable[[], None]] = []
        for entry in charge.entries.values():
            if entry.told:
                entry.told = False
                tells.append(self._suspension(charge, entry, reason))
        return tells

    def _suspension(
        self, charge: Charge, entry: StoreRestore, reason: SuspendReason
    ) -> Callable[[], None]:
        if charge.copy is None:
            event = entry.event("suspended")
            return lambda: self._on_restore(event)
        update = self._update(charge, entry, "suspended", reason)
        return lambda: self._on_standby_update(update)

    def _update(
        self,
        charge: Charge,
        entry: StoreRestore,
        kind: UpdateKind,
        reason: SuspendReason | None = None,
    ) -> StandbyUpdateEvent:
        copy = charge.copy
        assert copy is not None, "who follows is a copy"
        end = None if copy.progress is None else copy.progress.ends.get(entry.partition)
        return StandbyUpdateEvent(
            kind=kind,
            task_id=str(charge.task.task_id),
            role=copy.role,
            store=entry.store,
            topic=entry.partition.topic,
            partition=entry.partition.partition,
            start=entry.start,
            position=entry.position,
            end=max(end or 0, entry.milestone, entry.position),
            restored=entry.restored,
            batch=max(entry.restored - entry.said, 0),
            reason=reason,
        )
