"""Ports of `tidewheel.tasks.kafka.ports` over a `FakeBroker`; the factory is like `KafkaClients`."""

import time
from collections.abc import Iterable, Mapping, Sequence

from tests.fakes.broker import (
    CommitFate,
    FakeBroker,
    Log,
    RefusedRecordError,
    StoredRecord,
    Transaction,
    names_of,
)
from tidewheel.rebalance.model import ShardInput, TopicPartition
from tidewheel.streams.errors import FencedError, MissingSourceTopicError, StreamsError
from tidewheel.tasks.kafka.open_transactions import OpenTransaction
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    FailedDelivery,
    NewTopic,
    OffsetOutOfRangeError,
    TopicDescription,
    TransactionAbortedError,
    UnsettledOffsetsError,
)
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.engine.output import OutputColumns, headers_of_changelog
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


def _check_partitions(partitions: Iterable[TopicPartition]) -> None:
    """Raise as the real clients do, which know no shards."""
    for partition in partitions:
        if isinstance(partition, ShardInput):
            raise TypeError(f"{partition} is no partition")


class FakeReader:
    """`RecordSource` and `ChangelogReader`; never waits."""

    with_headers = True

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._positions: dict[TopicPartition, int] = {}
        self._stopped: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        _check_partitions(positions)
        self._positions = dict(positions)
        self._stopped.clear()
        self.paused.clear()

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        _check_partitions(positions)
        self._positions = {**positions, **self._positions}

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        _check_partitions(partitions)
        for partition in partitions:
            self._positions.pop(partition, None)
            self._stopped.discard(partition)
            self.paused.discard(partition)

    def prepare(self, topics: Sequence[str]) -> None: ...

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        assert not self.closed, "poll after close"
        runs: list[SourceRecords] = []
        with self._broker.lock:
            for partition in list(self._positions):
                if partition in self.paused or partition in self._stopped:
                    continue
                room = max_records - sum(map(len, runs))
                try:
                    records = self._read(partition, room)
                except StreamsError:
                    if runs:  # records before the failure are returned first
                        return runs
                    self._stopped.add(partition)
                    raise
                if records:
                    runs.append(self._run(partition, records))
        return runs

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        _check_partitions(partitions)
        self.paused |= set(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        _check_partitions(partitions)
        self.paused -= set(partitions)

    def positions(self) -> dict[TopicPartition, int]:
        return dict(self._positions)

    def end_offsets(self) -> dict[TopicPartition, int]:
        return {each: log.end for each, log in self._logs().items()}

    def stable_offsets(self) -> dict[TopicPartition, int]:
        return {each: log.last_stable_offset for each, log in self._logs().items()}

    def _logs(self) -> dict[TopicPartition, Log]:
        with self._broker.lock:
            logs = {each: self._broker.log_of(each) for each in self._positions}
            return {each: log for each, log in logs.items() if log is not None}

    def close(self) -> None:
        self.closed = True

    def _read(self, each: TopicPartition, room: int) -> list[StoredRecord]:
        log = self._broker.log_of(each)
        if log is None:
            raise MissingSourceTopicError(f"{each} does not exist", topic=each.topic)
        position = self._positions[each]
        if not log.start <= position <= log.end:
            raise OffsetOutOfRangeError(
                f"{each}: offset {position} is not in the log", partition=each, offset=position
            )
        records, self._positions[each] = log.read(position, room)
        return records

    def _run(self, each: TopicPartition, records: list[StoredRecord]) -> SourceRecords:
        headers = [record.headers for record in records]
        return SourceRecords(
            each.topic,
            each.partition,
            [record.offset for record in records],
            [record.key for record in records],
            [record.value for record in records],
            [record.timestamp for record in records],
            headers if self.with_headers and any(headers) else None,
        )


class FakeChangelogReader(FakeReader):
    with_headers = False


class FakeTransactionalProducer:
    """`TransactionalProducer`; like the real client, it detects fencing at a commit or abort."""

    def __init__(self, broker: FakeBroker, transactional_id: str) -> None:
        self._broker = broker
        self._transactional_id = transactional_id
        self._epoch = 0
        self._transaction: Transaction | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._ended: FencedError | CommitOutcomeUnknownError | None = None
        self.closed = False
        self.served = 0

    @property
    def transactional_id(self) -> str:
        return self._transactional_id

    @property
    def acknowledged(self) -> Mapping[TopicPartition, int]:
        return dict(self._positions)

    def init(self) -> None:
        with self._broker.lock:
            self._epoch = self._broker.init_producer(self._transactional_id)

    def serve(self) -> None:
        """Count the calls."""
        self.served += 1

    def begin(self) -> None:
        self._check_usable()
        assert self._transaction is None, "one transaction at a time"
        assert self._epoch, "init comes first"
        self._positions = {}
        self._transaction = Transaction()
        if not self._fenced():
            self._transaction = self._broker.open_transaction(self._transactional_id)

    def produce(self, columns: OutputColumns) -> None:
        """Send records; a rejected one makes the commit fail."""
        self._send(columns)

    def produce_changelog(
        self,
        partition: TopicPartition,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        headers: Headers = (),
        *,
        row_headers: Sequence[Headers] | None = None,
    ) -> None:
        columns = OutputColumns(
            topic=partition.topic,
            partitions=partition.partition,
            keys=keys,
            values=values,
            timestamps=timestamps,
            headers=headers_of_changelog(len(keys), headers, row_headers),
        )
        last = self._send(columns)
        if last is not None:
            self._positions[partition] = last.offset + 1

    def commit(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> dict[TopicPartition, int]:
        """Commit with the fate that the test set."""
        transaction = self._check_open()
        with self._broker.lock:
            self._check_not_fenced()
            if transaction.refusal:
                self.abort()
                raise TransactionAbortedError(transaction.refusal, record_refused=True)
            if offsets:
                transaction.offsets.setdefault(group_id, {}).update(offsets)
            fate = self._broker.commit(self._transactional_id, transaction)
        self._transaction = None
        if fate is CommitFate.ABORTS:
            raise TransactionAbortedError("the test said so")
        if fate is not CommitFate.COMMITS:
            self._ended = CommitOutcomeUnknownError("the test said so")
            raise self._ended
        return self._positions

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, CommittedOffset]
    ) -> None:
        self._check_open().offsets.setdefault(group_id, {}).update(offsets)

    def abort(self) -> None:
        if self._transaction is None:
            return
        with self._broker.lock:
            self._check_not_fenced()
            self._broker.abort(self._transactional_id)
            self._transaction = None

    def find_refused(self, columns: Sequence[OutputColumns]) -> list[FailedDelivery]:
        self._check_usable()
        refused: list[FailedDelivery] = []
        for part in columns:
            for index in range(len(part)):
                self.begin()
                assert self._transaction is not None
                try:
                    self._broker.append_columns(part, index, self._transaction)
                except RefusedRecordError as error:
                    refused.append(
                        FailedDelivery(columns=part, index=index, error=error, retriable=False)
                    )
                self.abort()
        return refused

    def close(self) -> None:
        """Close; idempotent. An open transaction stays open until its id is fenced."""
        self.closed = True

    def _send(self, columns: OutputColumns) -> StoredRecord | None:
        transaction = self._check_open()
        record: StoredRecord | None = None
        with self._broker.lock:
            if self._fenced():
                return None
            for index in range(len(columns)):
                try:
                    record = self._broker.append_columns(columns, index, transaction)
                except RefusedRecordError as error:
                    transaction.refusal = transaction.refusal or str(error)
        return record

    def _fenced(self) -> bool:
        return self._broker.is_fenced(self._transactional_id, self._epoch)

    def _check_usable(self) -> None:
        assert not self.closed, "use after close"
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)

    def _check_open(self) -> Transaction:
        self._check_usable()
        assert self._transaction is not None, "begin a transaction first"
        return self._transaction

    def _check_not_fenced(self) -> None:
        if self._fenced():
            self._transaction = None
            self._ended = FencedError(f"producer {self._transactional_id} was fenced")
            raise self._ended


class FakeSinkProducer:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._failed: list[FailedDelivery] = []
        self.closed = False
        self.served = 0

    def produce(self, columns: OutputColumns) -> None:
        assert not self.closed, "use after close"
        with self._broker.lock:
            for index in range(len(columns)):
                retriable = self._broker.take_send_failure(columns.topic)
                error: Exception = TimeoutError("the test said so")
                if retriable is None:
                    try:
                        self._broker.append_columns(columns, index, None)
                        continue
                    except RefusedRecordError as refused:
                        error = refused
                self._failed.append(
                    FailedDelivery(
                        columns=columns, index=index, error=error, retriable=bool(retriable)
                    )
                )

    def serve(self) -> None:
        """Count the calls."""
        self.served += 1

    def flush(self) -> list[FailedDelivery]:
        failed, self._failed = self._failed, []
        return failed

    def close(self, wait_s: float = 0.0) -> None:
        self.closed = True


class FakeAdmin:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.closed = False

    def list_topics(self) -> dict[str, int]:
        with self._broker.lock:
            return {name: len(topic.logs) for name, topic in self._broker.topics.items()}

    def describe_topics(
        self, names: Sequence[str], *, config: Sequence[str] = ()
    ) -> dict[str, TopicDescription]:
        with self._broker.lock:
            found = {
                name: self._broker.topics[name] for name in names if name in self._broker.topics
            }
            return {
                name: TopicDescription(
                    name=name,
                    topic_id=topic.topic_id,
                    partitions=len(topic.logs),
                    config={each: topic.config[each] for each in config if each in topic.config},
                )
                for name, topic in found.items()
            }

    def create_topics(self, topics: Sequence[NewTopic]) -> None:
        with self._broker.lock:
            for topic in topics:
                if topic.name not in self._broker.topics:
                    self._broker.create_topic(topic.name, topic.partitions, topic.config)

    def delete_topics(self, names: Sequence[str]) -> None:
        for name in names:
            self._broker.delete_topic(name)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> None:
        _check_partitions(before)
        with self._broker.lock:
            for each, offset in before.items():
                log = self._broker.log_of(each)
                if log is None or offset > log.end:
                    raise StreamsError(f"{each}: there is no offset {offset}")
                del log.entries[: max(offset - log.start, 0)]
                log.start = max(log.start, offset)

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        with self._broker.lock:
            return {partition: self._log(partition).start for partition in partitions}

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        with self._broker.lock:
            return {partition: self._log(partition).end for partition in partitions}

    def stable_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        with self._broker.lock:
            return {partition: self._log(partition).last_stable_offset for partition in partitions}

    def open_transactions(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OpenTransaction]:
        with self._broker.lock:
            logs = {each: self._log(each) for each in partitions}
            return {
                each: OpenTransaction(
                    partition=each,
                    start=log.last_stable_offset,
                    end=log.end,
                    servers="fake:9092",
                    transactional_id=self._broker.transactional_id_at(log, log.last_stable_offset),
                    producer_id=1,
                    producer_epoch=0,
                    state="Ongoing",
                )
                for each, log in logs.items()
                if log.last_stable_offset < log.end
            }

    def offsets_of_age(self, ages_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return per partition the first offset at most this old, else the end."""
        now_ms = time.time_ns() // 1_000_000
        found: dict[TopicPartition, int] = {}
        with self._broker.lock:
            for each, age_ms in ages_ms.items():
                log = self._log(each)
                records, end = log.read(log.start, log.end)
                young = (one.offset for one in records if one.timestamp >= now_ms - age_ms)
                found[each] = next(young, end)
        return found

    def committed(
        self, group_id: str, partitions: Sequence[TopicPartition] | None, *, stable: bool
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return committed offsets; raise immediately where the real client times out."""
        _check_partitions(partitions or ())
        with self._broker.lock:
            group = self._broker.groups[group_id]
            wanted = list(group) if partitions is None else list(partitions)
            pending = self._broker.pending_offsets(group_id)
            waiting = sorted(pending if partitions is None else pending & set(wanted))
            if stable and waiting:
                raise UnsettledOffsetsError(
                    f"group {group_id}: undecided commits of {names_of(waiting)}"
                )
            return {each: group[each] for each in wanted if each in group}

    def reach_group(self, group_id: str) -> None: ...

    def group_members(self, group_id: str) -> tuple[str, ...]:
        return self._broker.members[group_id]

    def groups(self, prefix: str) -> tuple[str, ...]:
        with self._broker.lock:
            groups = {name for name, offsets in self._broker.groups.items() if offsets}
            return tuple(sorted(name for name in groups if name.startswith(prefix)))

    def offsets_retention_ms(self) -> int:
        return 7 * 86_400_000

    def alter_committed(
        self, group_id: str, offsets: Mapping[TopicPartition, int | CommittedOffset]
    ) -> None:
        _check_partitions(offsets)
        with self._broker.lock:
            if self._broker.members[group_id]:
                raise StreamsError(f"group {group_id} has members")
            for each, offset in offsets.items():
                self._broker.groups[group_id][each] = (
                    CommittedOffset(offset, "") if isinstance(offset, int) else offset
                )

    def delete_group(self, group_id: str) -> None:
        with self._broker.lock:
            self._broker.groups.pop(group_id, None)

    def fence(self, transactional_ids: Sequence[str]) -> None:
        with self._broker.lock:
            for transactional_id in transactional_ids:
                self._broker.fenced.append(transactional_id)
                self._broker.init_producer(transactional_id)

    def close(self) -> None:
        self.closed = True

    def _log(self, each: TopicPartition) -> Log:
        _check_partitions([each])
        log = self._broker.log_of(each)
        if log is None:
            raise MissingSourceTopicError(f"{each} does not exist")
        return log


class FakeClients:
    """Factory of clients of one fake broker; keeps them for tests."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.sources: list[FakeReader] = []
        self.producers: list[FakeTransactionalProducer] = []
        self.sink_producers: list[FakeSinkProducer] = []

    def source(self) -> FakeReader:
        self.sources.append(FakeReader(self.broker))
        return self.sources[-1]

    def input_reader(self) -> FakeReader:
        return FakeReader(self.broker)

    def transactional_producer(
        self, transactional_id: str, transaction_timeout_ms: int = 60_000
    ) -> FakeTransactionalProducer:
        self.producers.append(FakeTransactionalProducer(self.broker, transactional_id))
        return self.producers[-1]

    def sink_producer(self) -> FakeSinkProducer:
        self.sink_producers.append(FakeSinkProducer(self.broker))
        return self.sink_producers[-1]

    def admin(self) -> FakeAdmin:
        return FakeAdmin(self.broker)

    def global_reader(self) -> FakeReader:
        return FakeReader(self.broker)

    def changelog_reader(self) -> FakeChangelogReader:
        return FakeChangelogReader(self.broker)
