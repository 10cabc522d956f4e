"""Restores from sorted runs for stores that are far behind.

The run maker builds runs, starting from the newest snapshot
(`tidewheel.state_stores.bulk_restore.plan`); the updater's thread ingests them. The changelog
reader restores later records, or all if runs fail.
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
from tidewheel.state_stores.errors import DiskFullError, StateStoreError
from tidewheel.state_stores.spec import StoreKind
from tidewheel.tasks.errors import TaskCorruptedError
from tidewheel.tasks.kafka.ports import Clock
from tidewheel.tasks.restore.run_ports import (
    RunMaker,
    RunOrder,
    RunProgress,
    RunReport,
    RunsBuilt,
    RunSettings,
    RunsFailed,
)
from tidewheel.tasks.restore.store_restore import (
    LogFacts,
    RestoringTask,
    StoreRestore,
    tombstone_retention_ms,
)

_log = logging.getLogger(__name__)

#: Attempts to build a store's runs, because the building process may die.
_ATTEMPTS: Final = 2


class _RunBuild:
    def __init__(self, restoring: RestoringTask, entry: StoreRestore, facts: LogFacts) -> None:
        self.restoring = restoring
        self.entry = entry
        self.facts = facts
        self.attempts = 0
        self.without_snapshot = False
        self.order: RunOrder | None = None


class RunRestores:
    """Restores from runs in progress; only the updater's thread calls it.

    Args:
        post: Runs an action in the updater's thread; thread-safe.
        on_end: Receives a task for one of whose stores the changelog reader now continues.
        guarded: Runs an action on a task's disk; False on failure.
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
        self._builds: dict[StoreRestore, _RunBuild] = {}
        self._order_numbers = count(1)
        #: Part of the runs' directory names; earlier processes used others.
        self._life = secrets.token_hex(4)
        #: (store, reason) of unused snapshots that are already logged.
        self._refused: set[tuple[str, str]] = set()

    def entries(self) -> list[StoreRestore]:
        return list(self._builds)

    def begin(self, restoring: RestoringTask, entry: StoreRestore, facts: LogFacts) -> None:
        """Request sorted files for a store if worthwhile; until `on_end` its changelog is not read."""
        settings = self._settings
        if not self._is_worthwhile(settings, entry, facts):
            return
        entry.awaits_runs = True
        build = self._builds[entry] = _RunBuild(restoring, entry, facts)
        build.without_snapshot = restoring.wiped  # its files may be damaged
        self._find_snapshot(settings.maker, build)

    def _is_worthwhile(self, settings: RunSettings, entry: StoreRestore, facts: LogFacts) -> bool:
        spec = entry.task.stores.specs[entry.store]
        if not spec.logging or entry.needs_headers or entry.limit is not None:
            # Runs are made of whole changelogs and lack headers; a limit means an input topic.
            return False
        if spec.kind is StoreKind.CUSTOM:  # only the user's object understands its records
            return False
        behind = _end(entry, facts) - entry.position
        if behind > settings.from_records:
            return True
        # For few records, runs pay only in a full restore with snapshots.
        is_full_restore = entry.task.stores.position(entry.store) is None
        return behind > 0 and is_full_restore and settings.maker.has_snapshots

    def stop(self, restoring: RestoringTask) -> None:
        for build in [
            candidate for candidate in self._builds.values() if candidate.restoring is restoring
        ]:
            self._end(build)

    def close(self) -> None:
        for build in list(self._builds.values()):
            self._end(build)

    def _end(self, build: _RunBuild) -> None:
        build.entry.awaits_runs = False
        del self._builds[build.entry]
        self._forget_order(build)

    def _forget_order(self, build: _RunBuild) -> None:
        if build.order is not None:
            self._settings.maker.forget(build.order)
            build.order = None

    # -- planning ----------------------------------------------------------------------------------

    def _find_snapshot(self, maker: RunMaker, build: _RunBuild) -> None:
        if not maker.has_snapshots or build.without_snapshot:
            self._order(build, None)
            return

        def found(snapshot: StoreSnapshot | None) -> None:
            self._post(partial(self._on_snapshot, build, snapshot))

        maker.find_snapshot(build.entry.store, build.facts.topic.topic_id, found)

    def _on_snapshot(self, build: _RunBuild, snapshot: StoreSnapshot | None) -> None:
        if self._builds.get(build.entry) is build:
            self._order(build, snapshot)

    def _order(self, build: _RunBuild, snapshot: StoreSnapshot | None) -> None:
        self._guarded(build.restoring, partial(self._plan, build, snapshot))

    def _plan(self, build: _RunBuild, snapshot: StoreSnapshot | None) -> None:
        settings, entry = self._settings, build.entry
        stores = entry.task.stores
        facts = changelog_facts(entry, build.facts)
        plan = plan_restore(
            stores.position(entry.store),
            snapshot,
            stores.specs[entry.store],
            facts,
            runs_from_records=settings.from_records,
            slowest_ms=stores.slowest_ms(entry.store),
        )
        self._log_plan(entry, plan)
        if plan.kind is not RestoreFrom.SNAPSHOT and not plan.in_runs:
            self._end(build)
            self._on_end(build.restoring)
            return
        if plan.kind is not RestoreFrom.POSITION and stores.position(entry.store) is not None:
            with stores.trusted():
                stores.forget(entry.store)
            entry.start = entry.position = build.facts.start
        build.attempts += 1
        task_name = str(entry.task.task_id).replace("/", "-")  # of a shard: 0_1/2of4
        order = build.order = RunOrder(
            spec=stores.specs[entry.store],
            partition=entry.partition,
            snapshot=plan.snapshot,
            from_offset=plan.from_offset,
            to_offset=max(_end(entry, build.facts) if plan.in_runs else 0, plan.from_offset),
            complete_from_zero=plan.kind is RestoreFrom.CHANGELOG,
            urgent=build.restoring.grant is not None,
            directory=settings.directory()
            / f"{task_name}-{self._life}-{next(self._order_numbers)}",
            slowest_ms=stores.slowest_ms(entry.store),
        )

        def report_back(report: RunReport) -> None:
            self._post(partial(self._on_report, build, order, report))

        settings.maker.make(order, report_back)

    def _log_plan(self, entry: StoreRestore, plan: RestorePlan) -> None:
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

    # -- reports -----------------------------------------------------------------------------------

    def _on_report(self, build: _RunBuild, order: RunOrder, report: RunReport) -> None:
        if self._builds.get(build.entry) is not build or build.order is not order:
            return  # the order was cancelled
        match report:
            case RunProgress():
                self._count(build, report.position, report.records)
            case RunsBuilt():
                slow = self._read_too_slowly(build, order)
                if slow is not None:
                    self._failed(build, RunsFailed(reason=slow))
                else:
                    self._guarded(build.restoring, partial(self._ingest, build, order, report))
            case RunsFailed():
                self._failed(build, report)

    def _count(self, build: _RunBuild, position: int, records: int) -> None:
        entry = build.entry
        new_records = max(records - entry.restored, 0)
        entry.built_to, entry.restored = position, records
        self._on_progress(build.restoring, entry, new_records)

    def _read_too_slowly(self, build: _RunBuild, order: RunOrder) -> str | None:
        if order.from_offset == order.to_offset:
            return None  # no changelog record was read
        retention_ms = tombstone_retention_ms(build.facts.topic)
        return read_too_slowly(build.facts.now_ms, self._clock.now_ms(), retention_ms)

    def _ingest(self, build: _RunBuild, order: RunOrder, report: RunsBuilt) -> None:
        entry, facts = build.entry, build.facts
        caught_up_at_ms = facts.now_ms
        if order.snapshot is not None and order.to_offset == order.snapshot.to_offset:
            caught_up_at_ms = order.snapshot.caught_up_at_ms
        try:
            with entry.task.stores.trusted():
                entry.task.stores.ingest(
                    entry.store,
                    report.runs,
                    offset=order.to_offset,
                    caught_up_at_ms=caught_up_at_ms,
                    from_nothing=order.complete_from_zero or order.snapshot is not None,
                )
        except DiskFullError:
            raise
        except StateStoreError as error:
            raise TaskCorruptedError(str(error), task_id=str(entry.task.task_id)) from error
        self._count(build, order.to_offset, report.records)
        self._end(build)
        entry.finish_runs(order.to_offset)
        self._on_end(build.restoring)

    def _failed(self, build: _RunBuild, report: RunsFailed) -> None:
        entry, settings = build.entry, self._settings
        self._forget_order(build)
        again = report.snapshot or build.attempts < _ATTEMPTS
        _log.warning(
            "task %s store %s: %s; %s",
            entry.task.task_id,
            entry.store,
            report.reason,
            "continuing without the snapshot; if its files stay so, run `tidewheel snapshot --full`"
            if report.snapshot
            else "beginning again"
            if again
            else "reading the changelog here",
        )
        build.without_snapshot = build.without_snapshot or report.snapshot
        entry.built_to = 0
        if again:
            self._find_snapshot(settings.maker, build)
        else:
            self._end(build)
            self._on_end(build.restoring)


def _end(entry: StoreRestore, facts: LogFacts) -> int:
    """Return the offset at which runs end: records from the stable offset on may abort."""
    return facts.stable if entry.end is None else min(entry.end, facts.stable)


def changelog_facts(entry: StoreRestore, facts: LogFacts) -> ChangelogFacts:
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
