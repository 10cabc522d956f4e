"""Spark's part of `tidewheel bootstrap` in this process, on a fake cluster, and kills of writers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import (
    FakeAdmin,
    FakeChangelogReader,
    FakeSinkProducer,
    FakeTransactionalProducer,
)
from tests.streams.group.fake_group import APP, GroupAdmin
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.bulk.bootstrap.driver import Checked
from tidewheel.streams.bulk.bootstrap.plan import StoreTarget
from tidewheel.streams.bulk.bootstrap.rows import (
    ChangelogRow,
    RowEncoder,
    columns_of,
    existing_row,
    one_per_key,
)
from tidewheel.streams.bulk.bootstrap.writer import (
    PartitionReport,
    WriteOrder,
    newest_keys,
    write_partition,
)
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.topics import GroupTopics
from tidewheel.streams.kafka.admin.group_log import state_topic
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


class Killed(BaseException):
    """The process is gone: no handler catches this."""


class Kill:
    """Kill at the `at`th effect; counts all effects."""

    def __init__(self, at: int = 1 << 30) -> None:
        self.at = at
        self.count = 0
        self.last = ""

    def __call__(self, effect: str) -> None:
        self.count += 1
        self.last = effect
        if self.count == self.at:
            raise Killed(effect)


class FakeWriterPorts:
    """Writer ports on a fake broker; `around` receives each effect beforehand."""

    def __init__(
        self, broker: FakeBroker, group: Callable[[], Group], around: Callable[[str], None]
    ) -> None:
        self._broker = broker
        self._group = group
        self._around = around

    def producer(self, transactional_id: str) -> FakeTransactionalProducer:
        return KilledProducer(self._broker, transactional_id, self._around)

    def committed(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        self._around(f"read the offsets of {group_id}")
        found = FakeAdmin(self._broker).committed(group_id, [partition], stable=True)
        return found.get(partition)

    def end_offset(self, partition: TopicPartition) -> int:
        return FakeAdmin(self._broker).end_offsets([partition])[partition]

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterator[SourceRecords]:
        reader = FakeChangelogReader(self._broker)
        reader.assign({partition: start})
        while reader.positions()[partition] < end:
            yield from reader.poll(1_000, 0)

    def group(self) -> Group:
        self._around("read the group")
        return self._group()


class KilledProducer(FakeTransactionalProducer):
    """Producer that reports its effects beforehand."""

    def __init__(
        self, broker: FakeBroker, transactional_id: str, around: Callable[[str], None]
    ) -> None:
        super().__init__(broker, transactional_id)
        self._around = around
        self._is_killed = False

    def _before(self, effect: str) -> None:
        try:
            self._around(effect)
        except Killed:
            self._is_killed = True
            raise

    def init(self) -> None:
        self._before(f"init {self.transactional_id}")
        super().init()

    def produce(self, columns: OutputColumns) -> None:
        self._before(f"produce {self.transactional_id}")
        super().produce(columns)

    def produce_changelog(self, *args: Any, **options: Any) -> None:
        self._before(f"produce {self.transactional_id}")
        super().produce_changelog(*args, **options)

    def commit(self, *args: Any) -> dict[TopicPartition, int]:
        self._before(f"commit {self.transactional_id}")
        return super().commit(*args)

    def abort(self) -> None:
        """Abort; a killed process aborts nothing."""
        if not self._is_killed:
            super().abort()


class Leader(KilledProducer):
    def write(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.begin()
        where = TopicPartition(state_topic(APP), 0)
        self.produce_changelog(where, keys, values, [0] * len(keys))
        self.commit(APP, {})


class KilledAdmin(GroupAdmin):
    """Admin that reports its changes beforehand."""

    def __init__(self, broker: FakeBroker, before: Kill) -> None:
        super().__init__(broker)
        self._before = before

    def fence(self, transactional_ids: Sequence[str]) -> None:
        self._before(f"fence {', '.join(transactional_ids)}")
        super().fence(transactional_ids)

    def delete_group(self, group_id: str) -> None:
        self._before(f"delete group {group_id}")
        super().delete_group(group_id)


def killed_group_log(broker: FakeBroker, kill: Kill, now_ms: int) -> GroupLogWriter:
    """Return an opened writer of the group log of `APP`, which reports its effects beforehand."""
    admin = KilledAdmin(broker, kill)
    group_log = GroupLogWriter(
        APP,
        admin=admin,
        topics=GroupTopics(APP, admin, FakeChangelogReader(broker), FakeChangelogReader(broker)),
        writer=lambda: Leader(broker, f"{APP}-leader", kill),
        sink=lambda: FakeSinkProducer(broker),
        now_ms=lambda: now_ms,
        pause=lambda _: None,
    )
    group_log.open(-1)
    return group_log


class LocalJob:
    def __init__(
        self,
        target: StoreTarget,
        rows: Iterable[Mapping[str, Any]],
        ports: FakeWriterPorts,
        order_by: str | None = None,
    ) -> None:
        self.target = target
        self.rows = list(rows)
        self.ports = ports
        self.order_by = order_by
        self._sorted: dict[int, list[ChangelogRow]] = {}
        self._timestamp_ms = 0

    def check(self, existing: Mapping[int, tuple[int, int]], timestamp_ms: int) -> Checked:
        spec = self.target.spec
        self._timestamp_ms = timestamp_ms
        names = list(dict.fromkeys(name for row in self.rows for name in row)) or ["key", "value"]
        encoder = RowEncoder(
            spec=spec,
            topic=self.target.changelog,
            partitions=self.target.partitions,
            columns=columns_of(names, spec, self.order_by),
            default_timestamp_ms=timestamp_ms,
        )
        found = [encoder.encode({name: row.get(name) for name in names}) for row in self.rows]
        rows = [each for each in found if each is not None]
        versioned = spec.kind is StoreKind.VERSIONED
        for number, (start, end) in existing.items():
            partition = TopicPartition(self.target.changelog, number)
            runs = self.ports.read(partition, start, end)
            rows += [
                existing_row(number, key, version, later=later, live=live)
                for later, (key, version, live) in enumerate(
                    newest_keys(runs, versioned=versioned, at_once=2)
                )
            ]
        rows.sort(key=lambda row: row.order)
        self._sorted = {
            number: [row for row in rows if row.partition == number]
            for number in range(self.target.partitions)
        }
        try:
            written = [record for number in self._sorted for record in self._records(number)]
        except StreamsError as error:
            return Checked(problem=str(error))
        return Checked(
            rows=sum(value is not None or versioned for _, value, _ in written),
            left_out=len(found) - len([each for each in found if each is not None]),
        )

    def write(self, order: WriteOrder) -> Sequence[PartitionReport]:
        return [
            write_partition(order, number, self._records(number), self.ports, lambda _: None)
            for number in range(self.target.partitions)
        ]

    def _records(self, number: int) -> Iterator[tuple[bytes, bytes | None, int]]:
        return one_per_key(
            self._sorted[number],
            self.target.spec,
            keep_last=self.order_by is not None,
            deleted_at_ms=self._timestamp_ms,
        )
