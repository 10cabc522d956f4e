"""A worker without Kafka, RocksDB and user code: real orders and reports, checkable data.

Stores are dicts with positions. A commit is three requests (records, offsets, decision) and an
apply, each a separate event; a crash loses unflushed data. Pure functions of the product decide
where they exist (`restore_start`, `start_position`). Other decisions are in `Rules`, for mutants.
"""

from collections.abc import Callable
from typing import Any

from tests.simulation.model.model_broker import GroupOffset, Log, UnstableError
from tests.simulation.model.model_commits import CommittingWorker
from tests.simulation.model.model_tasks import RETRY_MS, ActiveTask, CopyTask, Disk, Surroundings
from tests.simulation.model.world import incarnation_name
from tests.simulation.workload import (
    TOMBSTONE_RETENTION_MS,
    TOPIC_ID,
    TaskNames,
    counted,
    kept,
    key_of,
)
from tidewheel.rebalance.protocol import orders
from tidewheel.rebalance.protocol.orders import AnyOrder, AnyReport, KeepCopy, ReleaseTask, RunTask
from tidewheel.rebalance.protocol.rest import Rest
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.layout import restore
from tidewheel.state_stores.layout.position import Position
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.restore import start_positions

#: Interval of the worker's loop.
SLICE_MS = 200
RECORDS_PER_SLICE = 16
READY_AGAIN_MS = 900


class ModelWorker(CommittingWorker):
    """One worker process.

    Attributes:
        hello: Called at the start of an incarnation.
        gone: Called when the process ends by itself.
        lease_left: Milliseconds, or None without a lease.
    """

    def __init__(
        self,
        name: str,
        member: str,
        app: str,
        surroundings: Surroundings,
        *,
        send_report: Callable[[AnyReport], None],
        hello: Callable[[], None],
        gone: Callable[[], None],
        lease_left: Callable[[], int | None],
    ) -> None:
        super().__init__(name, surroundings, send_report)
        self.member = member
        self.app = app
        self.hello, self.gone, self.lease_left = hello, gone, lease_left
        self.disks: dict[str, Disk] = {}
        self.incarnations = 0
        self.progress = 0  # Loop turns, as the watchdog sees them.
        self.slow_until_ms = 0
        self.no_disk_until_ms = 0
        self._stores_made = 0

    def _forget(self) -> None:
        super()._forget()
        self.status_due_ms = 0
        self.leaving = False
        self.rest: Rest | None = None

    # Lives and incarnations.

    def start(self) -> None:
        self.begin()
        self._new_incarnation()
        self.world.post(self, 1, self._turn)

    def crash(self) -> None:
        self.stop()
        for disk in self.disks.values():
            disk.crash()

    def leave(self, *, rejoin: bool, drain_ms: int) -> None:
        self.leaving = True
        self.send_report(orders.WorkerLeaves(rejoin=rejoin, drain_ms=drain_ms))

    def topics_changed(self) -> None:
        workload = self.around.workload
        self.send_report(
            orders.TasksSeen(
                tasks=workload.seen_tasks(),
                partitions=workload.partitions(),
            )
        )

    def _new_incarnation(self) -> None:
        self._forget()
        self.incarnations += 1
        self.incarnation = incarnation_name(self.member, self.incarnations)
        self.transactional_id = self.around.rules.next_transactional_id(
            self.app, self.member, self.incarnation, 0
        )
        self.hello()

    def _fenced(self) -> None:
        if self.around.rules.fenced_ends_incarnation():
            self.world.trace_event(f"{self.incarnation} is fenced and begins again")
            self._drop_active_stores()
            self._new_incarnation()
            return
        self.commit = self.unknown = None
        self.epoch = None
        self._init_producer()

    def _drop_active_stores(self) -> None:
        """Discard uncommitted changes; applied ones stay on disk."""
        for active in self.active.values():
            active.disk.flush()
        for copy in self.copies.values():
            copy.disk.flush()

    # Orders.

    def obey(self, order: AnyOrder) -> None:
        """Execute an order; idempotent."""
        match order:
            case RunTask():
                self._run(order)
            case ReleaseTask():
                self._release(order)
            case KeepCopy():
                self._keep(order)
            case orders.DropCopy():
                copy = self.copies.pop(order.task, None)
                if copy is not None:
                    copy.disk.flush()
            case _:
                self._obey_for_itself(order)

    def _obey_for_itself(self, order: AnyOrder) -> None:
        match order:
            case orders.Welcome():
                self._set_rest(order.rest)
                if order.transactional_id == self.transactional_id and self.epoch is None:
                    self._init_producer()
            case orders.SetRest():
                self._set_rest(order.rest)
            case orders.UseTransactionalId():
                self._use(order)
            case orders.EndIncarnation():
                self._end(order)
            case orders.MayClose():
                self._close()
            case _:
                raise AssertionError(f"{order} is about a task")

    def _set_rest(self, rest: Rest | None) -> None:
        if rest != self.rest:
            self.rest = rest
            for active in self.active.values():
                self._stop_input(active)

    def _stop_input(self, active: ActiveTask) -> None:
        """Take no input from the next record on, or from the offset that the rest demands."""
        if self.rest is None:
            active.stop = 1 << 60
        elif active.stage == "running":
            active.stop = self.rest.until.get(active.names.input_key, active.position)

    def _end(self, order: orders.EndIncarnation) -> None:
        self.world.trace_event(f"{self.incarnation} ends: {order.code} {order.reason}")
        self._drop_active_stores()
        if order.final or self.leaving:
            self._forget()
            self.stop()
            self.gone()
        else:
            self._new_incarnation()

    def _close(self) -> None:
        if not self.leaving:
            return
        self._drop_active_stores()
        self.send_report(orders.WorkerClosed())
        self.stop()
        self.gone()

    def disk_of(self, task: str) -> Disk:
        found = self.disks.get(task)
        if found is None:
            found = self.disks[task] = Disk(self._store_uuid())
        return found

    def _store_uuid(self) -> str:
        self._stores_made += 1
        return f"{self.member}-store-{self._stores_made}"

    def _run(self, order: RunTask) -> None:
        task = order.task
        active = self.active.get(task)
        if active is not None:
            if active.order.task_epoch == order.task_epoch:
                if active.stage == "running":
                    self._report_running(active)
                return
            if active.order.task_epoch > order.task_epoch:
                return
            self.world.fail(
                f"{self.incarnation} was told to run {task} at epoch {order.task_epoch} while it runs it at {active.order.task_epoch}"
            )
        if (task, order.task_epoch) in self.said_released:
            return
        if self.no_disk_until_ms > self.world.now:
            self.send_report(
                orders.TaskBroken(
                    task=task, epoch=order.task_epoch, role="active", detail="no space"
                )
            )
            return
        copy = self.copies.get(task)
        if copy is not None and self.around.rules.promotes_in_place():
            del self.copies[task]
        names = self.around.workload.names[task]
        active = ActiveTask(names, order, self.disk_of(task) if copy is None else copy.disk)
        active.stage = "promoted" if copy is not None and copy.opened else "waiting"
        self.active[task] = active
        self._ask_start(active)

    def _release(self, order: ReleaseTask) -> None:
        active = self.active.get(order.task)
        said = self.said_released.get((order.task, order.task_epoch))
        if said is not None:
            self.send_report(said)
        elif active is None:
            # The order to run it never arrived: no commits since.
            self.send_report(
                orders.TaskReleased(
                    task=order.task, task_epoch=order.task_epoch, input={}, changelog_end={}
                )
            )
        elif active.order.task_epoch == order.task_epoch and active.release is None:
            active.release = order
            self._begin_commit()

    def _keep(self, order: KeepCopy) -> None:
        if order.task in self.active:
            return
        copy = self.copies.get(order.task)
        if copy is None:
            if self.no_disk_until_ms > self.world.now:
                self.send_report(
                    orders.TaskBroken(
                        task=order.task,
                        epoch=order.learn_epoch,
                        role=order.role,
                        detail="no space",
                    )
                )
                return
            names = self.around.workload.names[order.task]
            copy = CopyTask(names, order.role, order.learn_epoch, self.disk_of(order.task))
            self.copies[order.task] = copy
        copy.role = order.role
        if copy.learn_epoch != order.learn_epoch:
            copy.learn_epoch, copy.ready, copy.said_ms = order.learn_epoch, False, -1

    # The loop.

    def _turn(self) -> None:
        self.world.post(self, SLICE_MS, self._turn)
        self.progress += 1
        now = self.world.now
        reachable = self.world.reachable(self)
        if reachable:
            for copy in self.copies.values():
                self._follow(copy)
        lease = self.lease_left()
        # The open commit's changes are not in the stores yet.
        free = self.commit is None and self.unknown is None
        free = free and self.around.rules.may_read_input(lease)
        others = any(each.stage == "restoring" for each in self.active.values())
        free = free and self.around.rules.runs_independently(others_restore=others)
        for active in list(self.active.values()):
            if active.stage == "restoring" and reachable:
                self._restore(active)
            if active.stage == "running" and active.release is None and free:
                self._process(active)
        if now >= self.commit_due_ms:
            self._begin_commit()
        if now >= self.status_due_ms and self.transactional_id:
            self.status_due_ms = now + 2 * SLICE_MS
            self.send_report(orders.WorkerStatus(tasks=tuple(self._rows())))

    def _rows(self) -> list[TaskStatus]:
        now = self.world.now
        rows = [
            TaskStatus(
                task=task,
                role="active",
                epoch=active.order.task_epoch,
                state="RUNNING" if active.stage == "running" else "RESTORING",
                input={active.names.input_key: active.position},
                committed={active.names.input_key: active.committed} if active.committed else {},
                lag=self.around.workload.input_end(task, now) - active.position
                if active.stage == "running"
                else -1,
                rest=self._rest_of(active),
            )
            for task, active in self.active.items()
        ]
        for task, copy in self.copies.items():
            key = copy.names.changelog_key
            rows.append(
                TaskStatus(
                    task=task,
                    role=copy.role,
                    epoch=copy.learn_epoch,
                    state="RUNNING" if copy.ready else "RESTORING",
                    changelog={key: copy.disk.offset},
                    ends={key: copy.end},
                    lag=copy.end - copy.disk.offset if copy.opened else -1,
                )
            )
        return rows

    def _rest_of(self, active: ActiveTask) -> int:
        """Return the epoch of the rest that a task has reached, else 0."""
        if self.rest is None or active.stage != "running" or active.position != active.committed:
            return 0
        least = self.rest.until.get(active.names.input_key, 0)
        return self.rest.epoch if active.position >= least else 0

    def _process(self, active: ActiveTask) -> None:
        names = active.names
        end = min(self.around.workload.input_end(names.text, self.world.now), active.stop)
        before = active.position
        for offset in range(before, min(end, before + RECORDS_PER_SLICE)):
            key = key_of(names.task, offset)
            active.position = offset + 1
            if not names.is_own(key):
                continue
            count = counted(active.disk.store, active.buffer, key)
            if names.stateful:
                active.buffer[key] = kept(count)
            active.outputs.append((key, count if names.stateful else 0, offset))
        if active.position > before:
            self.around.processed(self, active)

    # Restoring.

    def _start_of_disk(self, names: TaskNames, disk: Disk) -> None:
        """Resume from the disk position, or start empty."""
        log = self.world.broker.log(names.changelog_key)
        start, why = restore.restore_start(
            disk.position,
            topic_id=TOPIC_ID,
            log_start=log.start,
            log_end=self.around.rules.end_at_open(log, is_shard=not names.task.shard.is_whole),
            tombstone_retention_ms=TOMBSTONE_RETENTION_MS,
            now_ms=self.world.wall_ms(),
        )
        if start is restore.StartFrom.BEGINNING and disk.position is not None:
            self.world.trace_event(f"{self.incarnation} wipes {names.text}: {why}")
            disk.wipe(self._store_uuid())

    def _read(self, names: TaskNames, disk: Disk) -> tuple[int, int]:
        """Restore a slice; return the number of records and the last offset."""
        log: Log = self.world.broker.log(names.changelog_key)
        rate = self.around.restore_per_s if self.slow_until_ms <= self.world.now else 7
        batch = log.read(disk.offset, max(1, rate * SLICE_MS // 1000))
        for _, key, value in batch.records:
            if not self.around.rules.restores(names, key):
                continue
            if value is None:
                disk.store.pop(key, None)
            else:
                disk.store[key] = value
        self._move(names, disk, batch.position)
        return len(batch.records), batch.records[-1][0] if batch.records else -1

    def _move(self, names: TaskNames, disk: Disk, offset: int) -> None:
        if disk.offset != offset or disk.position is None:
            disk.position = Position(
                offset=offset, topic_id=TOPIC_ID, written_at_ms=self.world.wall_ms()
            )
            self.around.applied(self, names, disk)
            if self.world.chance.random() < 0.2:
                disk.flush()

    def _follow(self, copy: CopyTask) -> None:
        if not copy.opened:
            copy.opened = True
            self._start_of_disk(copy.names, copy.disk)
        copy.end = self.world.broker.log(copy.names.changelog_key).last_stable_offset
        if copy.disk.offset < copy.end or copy.disk.position is None:
            self._read(copy.names, copy.disk)
        lag, now = copy.end - copy.disk.offset, self.world.now
        if lag <= self.around.acceptable_recovery_lag and now >= copy.said_ms + READY_AGAIN_MS:
            copy.ready, copy.said_ms = True, now
            self.send_report(
                orders.CopyReady(
                    task=copy.names.text,
                    learn_epoch=copy.learn_epoch,
                    store_uuid=copy.disk.uuid,
                    positions={copy.names.changelog_key: copy.disk.offset},
                    ends={copy.names.changelog_key: copy.end},
                )
            )
        elif copy.ready and lag > 2 * self.around.acceptable_recovery_lag:
            self.spoil(copy, "fell behind")

    def spoil(self, copy: CopyTask, reason: str) -> None:
        copy.ready, copy.said_ms = False, -1
        self.send_report(
            orders.CopyNotReady(task=copy.names.text, learn_epoch=copy.learn_epoch, reason=reason)
        )

    def damage(self, copy: CopyTask) -> None:
        """Lose a copy's files; another store replaces it."""
        self.swap(copy)
        if copy.ready:
            self.spoil(copy, "damaged")

    def swap(self, copy: CopyTask) -> None:
        """Replace a copy's store without a report, except for its new lag."""
        copy.disk.wipe(self._store_uuid())
        copy.opened = False
        copy.said_ms = -READY_AGAIN_MS

    # Opening a task that this worker owns.

    def _ask_start(self, active: ActiveTask) -> None:
        broker, names = self.world.broker, active.names

        def ask() -> tuple[GroupOffset | None, int]:
            rules = self.around.rules
            committed = broker.committed(names.offset_key, stable=rules.stable_offsets())
            if not names.stateful:
                return committed, 0
            log = broker.log(names.changelog_key)
            return committed, rules.end_at_open(log, is_shard=not names.task.shard.is_whole)

        self.world.request(self, ask, lambda answer: self._start_known(active, answer))

    def _start_known(self, active: ActiveTask, answer: Any) -> None:
        if self.active.get(active.names.text) is not active:
            return
        if isinstance(answer, UnstableError):
            self.world.post(self, RETRY_MS, self._ask_start, active)
            return
        committed, changelog_end = answer
        names = active.names
        try:
            explicit = self._explicit_start(names, committed)
        except StreamsError as error:
            self.world.fail(f"{self.incarnation} cannot start {names.text}: {error}")
            return
        start = self.around.rules.start(explicit, self.remembered.get(names.text))
        active.position = active.committed = start
        if names.stateful and active.stage != "promoted":
            self._start_of_disk(names, active.disk)
        active.until = (
            self.around.rules.read_until(active.order, names, changelog_end)
            if names.stateful
            else 0
        )
        active.stage = "restoring"
        if self.world.reachable(self):
            self._restore(active)

    def _explicit_start(self, names: TaskNames, committed: GroupOffset | None) -> int:
        if committed is None:
            found = None
        else:
            progress = committed.metadata
            text = progress.encode() if isinstance(progress, Progress) else ""
            found = CommittedOffset(committed.offset, text)
        return start_positions.start_position(
            names.input,
            committed=found,
            log_start=0,
            log_end=self.around.workload.input_end(names.text, self.world.now),
            topic_id=TOPIC_ID,
            reset="earliest",
        ).offset

    def _restore(self, active: ActiveTask) -> None:
        names = active.names
        if names.stateful:
            count, last = self._read(names, active.disk)
            active.restored += count
            active.last_record_at = max(active.last_record_at, last)
            position = active.disk.offset
            if not self.around.rules.restored(position, active.until, active.last_record_at):
                return
        if self.epoch is None:
            return
        active.stage = "running"
        self._stop_input(active)
        self.around.opened(self, active)
        self._report_running(active)
        if active.release is not None:
            self._begin_commit()

    def _report_running(self, active: ActiveTask) -> None:
        self.send_report(
            orders.TaskRunning(
                task=active.names.text,
                task_epoch=active.order.task_epoch,
                input={active.names.input_key: active.committed},
                restored=active.restored,
            )
        )
