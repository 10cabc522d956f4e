"""Commit steps of a model worker, with lost outcomes (H8)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tests.simulation.model.model_broker import (
    BrokerError,
    FencedError,
    GroupOffset,
    Transaction,
    UnstableError,
)
from tests.simulation.model.model_tasks import (
    RETRY_MS,
    ActiveTask,
    Commit,
    CopyTask,
    Disk,
    LostReplyError,
    Part,
    Surroundings,
)
from tests.simulation.model.world import Process, RequestTimedOut
from tests.simulation.workload import TOPIC_ID, TaskNames
from tidewheel.rebalance.protocol import orders
from tidewheel.rebalance.protocol.orders import AnyReport, ReleaseTask
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

#: Share of transactions with late markers.
LATE_MARKERS = 0.08


class CommittingWorker(Process, ABC):
    """The committing half of a worker.

    Attributes:
        epoch: Of its producer, or None.
        commit: In progress, or None.
        unknown: Commit with an unknown outcome, or None.
        remembered: Stale positions that a consumer would remember.
    """

    def __init__(
        self, name: str, surroundings: Surroundings, send_report: Callable[[AnyReport], None]
    ) -> None:
        super().__init__(name)
        self.around = surroundings
        self.world = surroundings.world
        self.send_report = send_report  # Sends reports.
        self.incarnation = ""
        self._forget()

    def _forget(self) -> None:
        self.active: dict[str, ActiveTask] = {}
        self.copies: dict[str, CopyTask] = {}
        self.said_released: dict[tuple[str, int], orders.TaskReleased] = {}
        self.remembered: dict[str, int] = {}
        self.number = 0
        self.sequence = 0
        self.transactional_id = ""
        self.epoch: int | None = None
        self.commit: Commit | None = None
        self.unknown: Commit | None = None
        self.commit_due_ms = 0

    @abstractmethod
    def _fenced(self) -> None: ...

    @abstractmethod
    def _move(self, names: TaskNames, disk: Disk, offset: int) -> None: ...

    def _init_producer(self) -> None:
        broker, now, name = self.world.broker, self.world.now, self.transactional_id
        incarnation = self.incarnation

        def ready(epoch: Any) -> None:
            if self.incarnation == incarnation and self.transactional_id == name:
                self.epoch = epoch

        self.world.request(self, lambda: broker.init(name, now), ready)

    def _begin_commit(self) -> None:
        """Start a commit; processing stops until it is applied."""
        if self.commit is not None or self.unknown is not None or self.epoch is None:
            return
        now = self.world.now
        self.commit_due_ms = now + self.around.commit_interval_ms
        parts: list[Part] = []
        for active in self.active.values():
            if active.stage == "running" and active.position > active.committed:
                if active.release is not None and not self.around.rules.commits_before_release():
                    continue
                parts.append(self._cut(active))
        if not parts:
            self._release_active()
            return
        self.commit = commit = Commit(self.transactional_id, self.epoch, parts)
        self._send(commit, self._produce, self._decide_next)
        self._send(commit, self._send_offsets, self._decide_next)

    def _cut(self, active: ActiveTask) -> Part:
        self.sequence += 1
        progress = Progress(
            task_epoch=active.order.task_epoch,
            transactional_id=self.transactional_id,
            topic_id=TOPIC_ID,
            topology_hash=bytes(8),
            vector=Vector.at(active.position),
            sequence=self.sequence,
        )
        part = Part(active, active.buffer, active.outputs, active.position, progress)
        active.buffer, active.outputs = {}, []
        if not self.around.rules.applies_after_commit():
            self._apply_values(part)
        return part

    def _send(
        self,
        commit: Commit,
        action: Callable[[Commit], Any],
        then: Callable[[Commit, Any], None],
        *,
        gives_up: bool = False,
    ) -> None:
        def answered(answer: Any) -> None:
            if self.commit is not commit:
                return
            if isinstance(answer, FencedError):
                self._fenced()
            elif isinstance(answer, BrokerError) and answer.code == "CONCURRENT_TRANSACTIONS":
                self.world.post(self, RETRY_MS // 4, self._send, commit, action, then)
            else:
                then(commit, answer)

        self.world.request(self, lambda: action(commit), answered, gives_up=gives_up)

    def _produce(self, commit: Commit) -> None:
        records: list[tuple[str, Any, Any]] = []
        for part in commit.parts:
            names = part.active.names
            records += [(names.changelog_key, key, value) for key, value in part.buffer.items()]
            records += [(names.output_key, None, output) for output in part.outputs]
        ends = self.world.broker.produce(
            commit.transactional_id, commit.epoch, records, self.world.wall_ms()
        )
        for part in commit.parts:
            part.changelog_end = ends.get(part.active.names.changelog_key, -1)

    def _send_offsets(self, commit: Commit) -> None:
        self.world.broker.send_offsets(
            commit.transactional_id,
            commit.epoch,
            {
                part.active.names.offset_key: GroupOffset(
                    self.around.rules.offset_to_commit(part), part.progress
                )
                for part in commit.parts
            },
            self.world.wall_ms(),
        )

    def _decide_next(self, commit: Commit, answer: Any) -> None:
        commit.unanswered -= 1
        if not commit.unanswered:
            self._send(commit, self._decide, self._decided, gives_up=True)

    def _decide(self, commit: Commit) -> None:
        broker, world = self.world.broker, self.world
        transaction = broker.end(commit.transactional_id, commit.epoch, commit=True)
        if transaction is not None:
            late = world.chance.random() < LATE_MARKERS
            world.after(world.delay_ms() * (20 if late else 2), self._mark, transaction)
        if self.repeat_ends > 0:
            self.repeat_ends -= 1
            commit.suspicious = True
            world.trace_event(f"{self.incarnation}: the network repeats the end of a transaction")
            world.after(int(world.chance.uniform(20, 900)), self._late_end, commit)
        if self.lose_replies > 0:
            self.lose_replies -= 1
            raise LostReplyError

    def _mark(self, transaction: Transaction) -> None:
        self.world.broker.complete(transaction, self.world.wall_ms())

    def _late_end(self, commit: Commit) -> None:
        """Deliver a late copy of an EndTxn (F20)."""
        try:
            transaction = self.world.broker.end(commit.transactional_id, commit.epoch, commit=True)
        except BrokerError:
            return
        if transaction is not None:
            self.world.trace_event(
                f"a late end decides another transaction of {commit.transactional_id}"
            )
            self.world.after(5, self._mark, transaction)

    def _decided(self, commit: Commit, answer: Any) -> None:
        if isinstance(answer, (RequestTimedOut, LostReplyError)):
            self.world.trace_event(f"{self.incarnation} does not know what became of a commit")
            self._retire(commit)
            return
        if isinstance(answer, BrokerError):
            self._fenced()
            return
        self.commit = None
        self._apply(commit)
        if self.around.rules.retire(suspicious=commit.suspicious):
            self._retire(None)

    def _apply(self, commit: Commit) -> None:
        for part in commit.parts:
            active = part.active
            if self.active.get(active.names.text) is active:
                active.committed = part.position
                self.remembered.setdefault(active.names.text, part.position)
            if part.changelog_end >= 0:
                if self.around.rules.applies_after_commit():
                    self._apply_values(part)
                self._move(active.names, active.disk, part.changelog_end)
        self._release_active()

    @staticmethod
    def _apply_values(part: Part) -> None:
        store = part.active.disk.store
        for key, value in part.buffer.items():
            if value is None:
                store.pop(key, None)
            else:
                store[key] = value

    def _release_active(self) -> None:
        for active in list(self.active.values()):
            if active.release is None or active.stage not in ("running", "waiting", "restoring"):
                continue
            clean = active.position == active.committed
            if (
                active.stage == "running"
                and not clean
                and self.around.rules.commits_before_release()
            ):
                continue
            self._released(active, active.release)
        if any(
            each.release is not None and each.stage == "running" for each in self.active.values()
        ):
            self.world.post(self, 0, self._begin_commit)

    def _released(self, active: ActiveTask, order: ReleaseTask) -> None:
        names, ran = active.names, active.stage == "running"
        if self.around.rules.stops_after_release():
            del self.active[names.text]
        else:
            active.release = None
        active.disk.flush()
        if order.keep and names.stateful:
            self.copies[names.text] = CopyTask(
                names, "standby", order.keep, active.disk, opened=ran
            )
        said = orders.TaskReleased(
            task=names.text,
            task_epoch=order.task_epoch,
            input={names.input_key: active.position} if ran else dict(active.order.input),
            changelog_end={names.changelog_key: active.disk.offset}
            if ran and names.stateful
            else dict(active.order.changelog_end),
            kept=bool(order.keep) and names.stateful,
        )
        self.said_released[names.text, order.task_epoch] = said
        self.send_report(said)

    def _retire(self, commit: Commit | None) -> None:
        self.commit, self.epoch = None, None
        self.unknown = commit or Commit(self.transactional_id, -1, [])
        self.number += 1
        self.send_report(orders.WantTransactionalId(number=self.number))

    def _use(self, order: orders.UseTransactionalId) -> None:
        commit = self.unknown
        if commit is None or order.number != self.number:
            return
        if self.transactional_id == order.transactional_id:
            return
        self.transactional_id = order.transactional_id
        broker, now = self.world.broker, self.world.now

        def take_over() -> int:
            epoch = broker.init(order.transactional_id, now)
            broker.init(commit.transactional_id, now)
            return epoch

        self.world.request(self, take_over, lambda epoch: self._read_back(commit, epoch))

    def _read_back(self, commit: Commit, epoch: int) -> None:
        if self.unknown is not commit:
            return
        broker = self.world.broker

        def ask() -> list[tuple[GroupOffset | None, int]]:
            return [
                (
                    broker.committed(part.active.names.offset_key),
                    broker.log(part.active.names.changelog_key).last_stable_offset,
                )
                for part in commit.parts
            ]

        self.world.request(self, ask, lambda answer: self._judge(commit, epoch, answer))

    def _judge(self, commit: Commit, epoch: int, answer: Any) -> None:
        if self.unknown is not commit:
            return
        if isinstance(answer, UnstableError):
            self.world.post(self, RETRY_MS, self._read_back, commit, epoch)
            return
        self.unknown, self.epoch = None, epoch
        done: list[Part] = []
        for part, (committed, end) in zip(commit.parts, answer, strict=True):
            if committed is not None and committed.metadata == part.progress:
                part.changelog_end = end if part.buffer else -1
                done.append(part)
            elif (0 if committed is None else committed.offset) == part.active.committed:
                self._roll_back(part)
            else:
                self.world.trace_event(
                    f"{self.incarnation}: somebody else committed {part.active.names.text}"
                )
                self._fenced()
                return
        self._apply(Commit(commit.transactional_id, epoch, done))

    @staticmethod
    def _roll_back(part: Part) -> None:
        active = part.active
        active.position = active.committed
        active.buffer, active.outputs = {}, []
