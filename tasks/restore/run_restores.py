"""Stores that are far behind, restored from sorted runs: planned here, made elsewhere, taken in here.

For each such store: look for the newest snapshot, plan (`tidewheel.state_stores.bulk_restore.plan`), order the runs, ingest them. What
is left is read as any changelog. Whatever goes wrong with runs ends in reading the changelog: a snapshot that can't be
used is left aside, and what can't be made is read.
"""

import logging
import secrets
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

from tidewheel.state_stores.bulk_restore.manifest import (
    ChangelogFacts,
    StoreSnapshot,
    read_too_slowly,
)
from tidewheel.state_stores.bulk_restore.plan import (
    RestoreFrom,
    RestorePlan,
    plan_restore,
)
from tidewheel.state_stores.spec import StoreKind
from tidewheel.tasks.ports import Clock
from tidewheel.tasks.restore.run_ports import (
    RunMaker,
    RunOrder,
    RunProgress,
    RunReport,
    RunSettings,
    RunsFailed,
    RunsMade,
)
from tidewheel.tasks.restore.store_restore import (
    LogFacts,
    RestoringTask,
    StoreRestore,
    tombstone_retention_ms,
)

_log = logging.getLogger(__name__)

#: An order that failed for another reason than its snapshot is given once more: those who make it may have been killed.
_ATTEMPTS: Final = 2


class _Made:
    """A store whose runs are being made."""

    def __init__(self, restoring: RestoringTask, entry: StoreRestore, facts: LogFacts) -> None:
        self.restoring = restoring
        self.entry = entry
        self.facts = facts
        self.attempts = 0
        self.without_snapshot = False
        self.order: RunOrder | None = None


class RunRestores:
    """What is being made. Its thread is the updater's.

    Args:
        settings: What makes runs.
        clock: Time.
        post: Has something done by the thread, soon; may be called by any.
        on_progress: Told of a store that has come further elsewhere, and how many records were read or brought.
        on_end: Told of a store that is to be read from where it stands: its runs are in, or can't be had.
        guarded: Does something with a task's disk; returns whether it went well.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        clock: Clock,
        post: Callable[[Callable[[], None]], None],
        on_progress: Callable[[RestoringTask, StoreRestore, int], None],
        on_end: Callable[[RestoringTask], None],
        guarded: Callable[[RestoringTask, Callable[[], object]], bool],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._post = post
        self._on_progress = on_progress
        self._on_end = on_end
        self._guarded = guarded
        self._made: dict[StoreRestore, _Made] = {}
        self._numbers = count(1)
        #: What a former life has left behind may still be there for a moment.
        self._life = secrets.token_hex(4)
        #: What was said of snapshots that were not used: once each.
        self._refused: set[tuple[str, str]] = set()

    def entries(self) -> list[StoreRestore]:
        """Return the stores whose runs are being made."""
        return list(self._made)

    def begin(self, restoring: RestoringTask, entry: StoreRestore, facts: LogFacts) -> None:
        """Have a store's runs made if that pays; it is not to be read then until `on_end` is told."""
        settings = self._settings
        if not self._pays(settings, entry, facts):
            return
        entry.awaits_runs = True
        made = self._made[entry] = _Made(restoring, entry, facts)
        self._look(settings.maker, made)

    def _pays(self, settings: RunSettings, entry: StoreRestore, facts: LogFacts) -> bool:
        spec = entry.task.stores.specs[entry.store]
        if not spec.logging or entry.needs_headers or entry.limit is not None:
            return False  # runs are made without the records' headers
        if spec.kind is StoreKind.CUSTOM:  # its records mean something to the user's object only
            return False
        behind = _end(entry, facts) - entry.position
        if behind > settings.from_records:
            return True
        # A few seconds of a restore from the beginning are not worth a process of its own, unless the user said so.
        begins = entry.task.stores.position(entry.store) is None
        return behind > 0 and begins and settings.maker.has_snapshots

    def stop(self, restoring: RestoringTask) -> None:
        """Forget what is being made for a task."""
        for made in [each for each in self._made.values() if each.restoring is restoring]:
            self._end(made)

    def close(self) -> None:
        """Forget everything."""
        for made in list(self._made.values()):
            self._end(made)

    def _end(self, made: _Made) -> None:
        made.entry.awaits_runs = False
        del self._made[made.entry]
        self._drop_order(made)

    def _drop_order(self, made: _Made) -> None:
        if made.order is not None:
            self._settings.maker.forget(made.order)
            made.order = None

    # -- planning --------------------------------------------------------------------------------------------------

    def _look(self, maker: RunMaker, made: _Made) -> None:
        """Plan with the newest snapshot, once that is known."""
        if not maker.has_snapshots or made.without_snapshot:
            self._go(made, None)
            return

        def found(snapshot: StoreSnapshot | None) -> None:
            self._post(partial(self._found, made, snapshot))

        maker.find_snapshot(made.entry.store, made.facts.topic.topic_id, found)

    def _found(self, made: _Made, snapshot: StoreSnapshot | None) -> None:
        if self._made.get(made.entry) is made:
            self._go(made, snapshot)

    def _go(self, made: _Made, snapshot: StoreSnapshot | None) -> None:
        """Order what the plan says."""
        self._guarded(made.restoring, partial(self._plan, made, snapshot))

    def _plan(self, made: _Made, snapshot: StoreSnapshot | None) -> None:
        settings, entry = self._settings, made.entry
        stores = entry.task.stores
        facts = changelog_facts(entry, made.facts)
        plan = plan_restore(
            stores.position(entry.store),
            snapshot,
            stores.specs[entry.store],
            facts,
            runs_from_records=settings.from_records,
            slowest_ms=stores.slowest_ms(entry.store),
        )
        self._say(entry, plan)
        if plan.kind is not RestoreFrom.SNAPSHOT and not plan.in_runs:
            self._end(made)
            self._on_end(made.restoring)
            return
        if plan.kind is not RestoreFrom.POSITION and stores.position(entry.store) is not None:
            with stores.trusted():
                stores.forget(entry.store)
            entry.start = entry.position = made.facts.start
        made.attempts += 1
        order = made.order = RunOrder(
            spec=stores.specs[entry.store],
            partition=entry.partition,
            snapshot=plan.snapshot,
            from_offset=plan.from_offset,
            to_offset=max(_end(entry, made.facts) if plan.in_runs else 0, plan.from_offset),
            complete_from_zero=plan.kind is RestoreFrom.CHANGELOG,
            urgent=made.restoring.grant is not None,
            directory=settings.directory()
            / f"{entry.task.task_id}-{self._life}-{next(self._numbers)}",
            slowest_ms=stores.slowest_ms(entry.store),
        )

        def tell(report: RunReport) -> None:
            self._post(partial(self._told, made, order, report))

        settings.maker.make(order, tell)

    def _say(self, entry: StoreRestore, plan: RestorePlan) -> None:
        _log.info(
            "task %s store %s: restoring from %s %s: %s",
            entry.task.task_id,
            entry.store,
            plan.kind.value,
            f"and {plan.from_offset}" if plan.from_offset else "",
            plan.reason,
        )
        if plan.refused is not None and (entry.store, plan.refused) not in self._refused:
            self._refused.add((entry.store, plan.refused))
            _log.warning(
                "the snapshot of store %s is not used: %s; run `tidewheel snapshot` again",
                entry.store,
                plan.refused,
            )

    # -- what is told ----------------------------------------------------------------------------------------------

    def _told(self, made: _Made, order: RunOrder, report: RunReport) -> None:
        if self._made.get(made.entry) is not made or made.order is not order:
            return  # nobody waits for it any more
        match report:
            case RunProgress():
                self._count(made, report.position, report.records)
            case RunsMade():
                slow = self._read_too_slowly(made, order)
                if slow is not None:
                    self._failed(made, RunsFailed(reason=slow))
                else:
                    self._guarded(made.restoring, partial(self._take_in, made, order, report))
            case RunsFailed():
                self._failed(made, report)

    def _count(self, made: _Made, position: int, records: int) -> None:
        entry = made.entry
        more = max(records - entry.restored, 0)
        entry.built_to, entry.restored = position, records
        self._on_progress(made.restoring, entry, more)

    def _read_too_slowly(self, made: _Made, order: RunOrder) -> str | None:
        if order.from_offset == order.to_offset:
            return None  # nothing was read
        retention_ms = tombstone_retention_ms(made.facts.topic)
        return read_too_slowly(made.facts.now_ms, self._clock.now_ms(), retention_ms)

    def _take_in(self, made: _Made, order: RunOrder, report: RunsMade) -> None:
        entry, facts = made.entry, made.facts
        caught_up_at_ms = facts.now_ms
        if order.snapshot is not None and order.to_offset == order.snapshot.to_offset:
            caught_up_at_ms = order.snapshot.caught_up_at_ms
        with entry.task.stores.trusted():
            entry.task.stores.ingest(
                entry.store,
                report.runs,
                offset=order.to_offset,
                caught_up_at_ms=caught_up_at_ms,
                from_nothing=order.complete_from_zero or order.snapshot is not None,
            )
        self._count(made, order.to_offset, report.records)
        self._end(made)
        entry.finish_runs(order.to_offset)
        self._on_end(made.restoring)

    def _failed(self, made: _Made, report: RunsFailed) -> None:
        entry, settings = made.entry, self._settings
        self._drop_order(made)
        again = report.snapshot or made.attempts < _ATTEMPTS
        _log.warning(
            "task %s store %s: %s; %s",
            entry.task.task_id,
            entry.store,
            report.reason,
            "going on without the snapshot; if its files stay so, run `tidewheel snapshot --full`"
            if report.snapshot
            else "beginning again"
            if again
            else "reading the changelog here",
        )
        made.without_snapshot = made.without_snapshot or report.snapshot
        entry.built_to = 0
        if again:
            self._look(settings.maker, made)
        else:
            self._end(made)
            self._on_end(made.restoring)


def _end(entry: StoreRestore, facts: LogFacts) -> int:
    """Return where runs end: at the store's own end, but never beyond the decided records."""
    return facts.stable if entry.end is None else min(entry.end, facts.stable)


def changelog_facts(entry: StoreRestore, facts: LogFacts) -> ChangelogFacts:
    """Return what is known of a changelog, as plans need it."""
    return ChangelogFacts(
        topic=facts.topic.name,
        topic_id=facts.topic.topic_id,
        partition_count=facts.topic.partitions,
        partition=entry.partition.partition,
        log_start=facts.start,
        log_end=facts.end,
        stable_end=facts.stable,
        tombstone_retention_ms=tombstone_retention_ms(facts.topic),
        now_ms=facts.now_ms,
    )
