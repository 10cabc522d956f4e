"""A worker without Kafka, RocksDB and user code: it obeys real orders, gives real reports, and its data can be checked.

Stores are dicts with positions. What can go wrong in a real worker's hands is done here step by step: a commit is three
requests (records, offsets, the decision) and an apply, each an event of its own; positions are asked for, not known;
a crash takes what was not flushed. Where a pure function of the product decides (`restore_start`, `start_position`), it
decides here too. What it has to decide itself is in `Rules`, one method per rule, so that a mutant can remove one.
"""

from collections.abc import Callable
from typing import Any

from tests.simulation.model_broker import GroupOffset, Log, UnstableError
from tests.simulation.model_commits import CommittingWorker
from tests.simulation.model_tasks import RETRY_MS, ActiveTask, CopyTask, Disk, Surroundings
from tests.simulation.workload import (
    TOMBSTONE_RETENTION_MS,
    TOPIC_ID,
    TaskNames,
    counted,
    kept,
    key_of,
)
from tests.simulation.world import incarnation_name
from tidewheel.rebalance.protocol import orders
from tidewheel.rebalance.protocol.orders import AnyOrder, AnyReport, KeepCopy, ReleaseTask, RunTask
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.state_stores import restore
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.layout.position import Position
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.ports import CommittedOffset
from tidewheel.tasks.restore import start_positions

#: A worker's loop comes around this often.
SLICE_MS = 200
RECORDS_PER_SLICE = 16
READY_AGAIN_MS = 900


class ModelWorker(CommittingWorker):
    """One worker process.

    Attributes:
        hello: Called when a new incarnation begins.
        gone: Called when the process ends by itself.
        lease_left: Milliseconds of lease, or None without one.
        progress: Loop turns, as the watchdog sees them.
    """

    def __init__(
        self,
        name: str,
        member: str,
        app: str,
        surroundings: Surroundings,
        *,
        say: Callable[[AnyReport], None],
        hello: Callable[[], None],
        gone: Callable[[], None],
        lease_left: Callable[[], int | None],
    ) -> None:
        super().__init__(name, surroundings, say)
        self.member = member
        self.app = app
        self.hello, self.gone, self.lease_left = hello, gone, lease_left
        self.disks: dict[str, Disk] = {}
        self.incarnations = 0
        self.progress = 0
        self.slow_until_ms = 0
        self.no_disk_until_ms = 0
        self._stores_made = 0

    def _forget(self) -> None:
        """Be nobody: no producer, no task."""
        super()._forget()
        self.status_due_ms = 0
        self.leaving = False

    # Lives and incarnations.

    def start(self) -> None:
        """Start the process."""
        self.begin()
        self._new_incarnation()
        self.world.post(self, 1, self._turn)

    def crash(self) -> None:
        """Be killed: what was not flushed is lost."""
        self.stop()
        for disk in self.disks.values():
            disk.crash()

    def leave(self, *, rejoin: bool, drain_ms: int) -> None:
        """Go in order."""
        self.leaving = True
        self.say(orders.WorkerLeaves(rejoin=rejoin, drain_ms=drain_ms))

    def topics_changed(self) -> None:
        """Say what the topics make of tasks now."""
        workload = self.around.workload
        self.say(
            orders.TasksSeen(
                tasks=tuple(
                    (each.task, each.stateful, each.changelogs) for each in workload.seen_tasks()
                ),
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
            self.world.note(f"{self.incarnation} is fenced and begins anew")
            self._drop_active_stores()
            self._new_incarnation()
            return
        self.commit = self.unknown = None
        self.epoch = None
        self._init_producer()

    def _drop_active_stores(self) -> None:
        """Forget what is not committed; what is applied stays on disk."""
        for active in self.active.values():
            active.disk.flush()
        for copy in self.copies.values():
            copy.disk.flush()

    # Orders.

    def obey(self, order: AnyOrder) -> None:
        """Carry out an order; twice does no harm."""
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
                if order.transactional_id == self.transactional_id and self.epoch is None:
                    self._init_producer()
            case orders.UseTransactionalId():
                self._use(order)
            case orders.EndIncarnation():
                self._end(order)
            case orders.Leaveable():
                self._close()
            case _:
                raise AssertionError(f"{order} is about a task")

    def _end(self, order: orders.EndIncarnation) -> None:
        self.world.note(f"{self.incarnation} ends: {order.code} {order.reason}")
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
        self.say(orders.WorkerClosed())
        self.stop()
        self.gone()

    def disk_of(self, task: str) -> Disk:
        """Return a task's directory, made when it is first asked for."""
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
                    self._say_running(active)
                return
            if active.order.task_epoch > order.task_epoch:
                return
            self.world.fail(
                f"{self.incarnation} was told to run {task} at epoch {order.task_epoch} while it runs it at {active.order.task_epoch}"
            )
        if (task, order.task_epoch) in self.said_released:
            return
        if self.no_disk_until_ms > self.world.now:
            self.say(
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
            self.say(said)
        elif active is None:
            # The order to run it never came here: nothing was committed since.
            self.say(
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
                self.say(
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
        # What a commit under way has taken is not in the stores yet.
        free = self.commit is None and self.unknown is None
        free = free and self.around.rules.may_take_input(lease)
        others = any(each.stage == "restoring" for each in self.active.values())
        free = free and self.around.rules.goes_on(others_restore=others)
        for active in list(self.active.values()):
            if active.stage == "restoring" and reachable:
                self._restore(active)
            if active.stage == "running" and active.release is None and free:
                self._process(active)
        if now >= self.commit_due_ms:
            self._begin_commit()
        if now >= self.status_due_ms and self.transactional_id:
            self.status_due_ms = now + 2 * SLICE_MS
            self.say(orders.WorkerStatus(tasks=tuple(self._rows())))

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

    def _process(self, active: ActiveTask) -> None:
        names = active.names
        end = self.around.workload.input_end(names.text, self.world.now)
        before = active.position
        for offset in range(before, min(end, before + RECORDS_PER_SLICE)):
            key = key_of(names.task, offset)
            count = counted(active.disk.store, active.buffer, key)
            if names.stateful:
                active.buffer[key] = kept(count)
            active.outputs.append((key, count if names.stateful else 0, offset))
            active.position = offset + 1
        if active.position > before:
            self.around.processed(self, active)

    # Restoring.

    def _start_of_disk(self, names: TaskNames, disk: Disk) -> None:
        """Go on from the position on disk, or begin anew."""
        log = self.world.broker.log(names.changelog_key)
        start, why = restore.restore_start(
            disk.position,
            topic_id=TOPIC_ID,
            log_start=log.start,
            log_end=log.last_stable_offset,
            tombstone_retention_ms=TOMBSTONE_RETENTION_MS,
            now_ms=self.world.wall_ms(),
        )
        if start is restore.StartFrom.BEGINNING and disk.position is not None:
            self.world.note(f"{self.incarnation} wipes {names.text}: {why}")
            disk.wipe(self._store_uuid())

    def _read(self, names: TaskNames, disk: Disk) -> tuple[int, int]:
        """Read a slice of the changelog into a store; returns how many records, and the last one's offset."""
        log: Log = self.world.broker.log(names.changelog_key)
        rate = self.around.restore_per_s if self.slow_until_ms <= self.world.now else 7
        batch = log.read(disk.offset, max(1, rate * SLICE_MS // 1000))
        for _, key, value in batch.records:
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
            self.say(
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
        """Say that a copy is not ready any more."""
        copy.ready, copy.said_ms = False, -1
        self.say(
            orders.CopyNotReady(task=copy.names.text, learn_epoch=copy.learn_epoch, reason=reason)
        )

    def damage(self, copy: CopyTask) -> None:
        """Lose a copy's files: another store begins in its place."""
        self.swap(copy)
        if copy.ready:
            self.spoil(copy, "damaged")

    def swap(self, copy: CopyTask) -> None:
        """Begin another store in a copy's place, and say nothing of it but what follows from being behind."""
        copy.disk.wipe(self._store_uuid())
        copy.opened = False
        copy.said_ms = -READY_AGAIN_MS

    # Opening a task that this worker owns.

    def _ask_start(self, active: ActiveTask) -> None:
        broker, key = self.world.broker, active.names.input_key

        def ask() -> tuple[GroupOffset | None, int]:
            committed = broker.committed(key, stable=self.around.rules.stable_offsets())
            if not active.names.stateful:
                return committed, 0
            return committed, broker.log(active.names.changelog_key).last_stable_offset

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
        self.around.opened(self, active)
        self._say_running(active)
        if active.release is not None:
            self._begin_commit()

    def _say_running(self, active: ActiveTask) -> None:
        self.say(
            orders.TaskRunning(
                task=active.names.text,
                task_epoch=active.order.task_epoch,
                input={active.names.input_key: active.committed},
                restored=active.restored,
            )
        )
