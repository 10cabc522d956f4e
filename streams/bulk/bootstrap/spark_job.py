"""Store loading by Spark: `SparkJob` and the functions that executors import."""

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from tidewheel.rebalance.inspect.describe import fold_log
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.bulk.bootstrap.driver import Checked
from tidewheel.streams.bulk.bootstrap.plan import StoreTarget
from tidewheel.streams.bulk.bootstrap.rows import (
    ChangelogRow,
    Columns,
    RowEncoder,
    existing_row,
    one_per_key,
)
from tidewheel.streams.bulk.bootstrap.writer import (
    PartitionReport,
    WriteOrder,
    newest_keys,
    write_partition,
)
from tidewheel.streams.bulk.bounded_transactions import TRANSACTION_TIMEOUT_MS
from tidewheel.streams.bulk.driver import BulkDriver
from tidewheel.streams.bulk.stable_ends import stable_ends
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.group.group_log_writer import group_topics
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.changelog import read_range
from tidewheel.streams.kafka.portable_settings import clients_of
from tidewheel.tasks.kafka.ports import CommittedOffset, TransactionalProducer
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.frames import Placed, PlacedRow
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame

Counted = Callable[[int], None]

#: Rows per progress update.
_COUNT_EVERY: Final = 10_000

#: In a row's version field: marks a note (an error, or a number of rows left out), not a row.
_NOTE: Final = -1
_PROBLEM: Final = "problem"
_LEFT_OUT: Final = "left out"


class KafkaWriterPorts:
    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._clients = clients_of(settings)
        self._admin = KafkaResetAdmin(settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def producer(self, transactional_id: str) -> TransactionalProducer:
        return self._clients.transactional_producer(transactional_id, TRANSACTION_TIMEOUT_MS)

    def committed(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        return self._admin.committed(group_id, [partition], stable=True).get(partition)

    def end_offset(self, partition: TopicPartition) -> int:
        return stable_ends(self._admin, [partition])[partition]

    def read(self, partition: TopicPartition, start: int, end: int) -> Iterable[SourceRecords]:
        return read_range(self._settings, partition, start, end)

    def group(self) -> Group:
        with contextlib.closing(group_topics(self._settings, self._admin)) as topics:
            return fold_log(topics.log()).group


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkJob:
    """Spark job over a frame's rows, for one use.

    `check` fills `placed` (shuffled rows) and `to_write` (number of puts and deletes to write).
    """

    driver: BulkDriver
    frame: "DataFrame"
    target: StoreTarget
    columns: Columns
    opened: contextlib.ExitStack
    placed: "list[Placed]" = field(default_factory=list["Placed"])
    to_write: list[int] = field(default_factory=list[int])

    def check(self, existing: Mapping[int, tuple[int, int]], timestamp_ms: int) -> Checked:
        from tidewheel.state_stores.bulk_restore.spark.frames import placed_rows, run_on_places  # noqa: PLC0415 - see bulk_session

        spec, settings = self.target.spec, self.driver.executor_settings
        encoder = RowEncoder(
            spec=spec,
            topic=self.target.changelog,
            partitions=self.target.partitions,
            columns=self.columns,
            default_timestamp_ms=timestamp_ms,
        )
        rows = self.opened.enter_context(
            placed_rows(
                self.frame,
                self.columns.names,
                partial(place_rows, encoder),
                self.target.partitions,
                rows_of=partial(place_existing, settings, self.target.changelog, spec.kind),
                items=[(number, *ends) for number, ends in sorted(existing.items())],
            )
        )
        self.placed.append(rows)
        checked_places = run_on_places(
            rows,
            partial(check_place, spec, self._keep_last),
            description=self._description("checking rows"),
            on_progress=self.driver.two_stage_reporter(
                "reading rows", "checking rows", rows.arrived
            ),
        )
        problems = [place.problem for place in checked_places if place.problem]
        self.to_write.append(sum(place.records for place in checked_places))
        return Checked(
            rows=sum(place.rows for place in checked_places),
            left_out=sum(place.left_out for place in checked_places),
            problem=problems[0] if problems else "",
        )

    def write(self, order: WriteOrder) -> Sequence[PartitionReport]:
        from tidewheel.state_stores.bulk_restore.spark.frames import run_on_places  # noqa: PLC0415 - see bulk_session

        return run_on_places(
            self.placed[0],
            partial(write_place, order, self.driver.executor_settings, self._keep_last),
            description=self._description("writing rows"),
            on_progress=self.driver.progress_reporter("writing rows", self.to_write[0]),
        )

    @property
    def _keep_last(self) -> bool:
        return self.columns.order_by is not None

    def _description(self, step: str) -> str:
        return f"{self.target.application_id}: bootstrap {self.target.spec.name}: {step}"


@contextlib.contextmanager
def spark_job(
    driver: BulkDriver, frame: "DataFrame", target: StoreTarget, columns: Columns
) -> Generator[SparkJob]:
    from tidewheel.state_stores.bulk_restore.spark.frames import runs_twice  # noqa: PLC0415 - see bulk_session

    if runs_twice(driver.session):
        raise ConfigError(
            "spark.speculation is on: Spark would start tasks a second time while the first ones write, and each fences the "
            "other; set it to false for this session"
        )
    with contextlib.ExitStack() as opened:
        yield SparkJob(driver=driver, frame=frame, target=target, columns=columns, opened=opened)


def place_rows(
    encoder: RowEncoder, rows: Iterable[Mapping[str, Any]], count: Counted
) -> "Iterator[PlacedRow]":
    """Yield encoded rows, then a note: the first bad row's error, or how many were left out."""
    return _counted(_encoded(encoder, rows), count)


def _encoded(encoder: RowEncoder, rows: Iterable[Mapping[str, Any]]) -> "Iterator[PlacedRow]":
    left_out = 0
    for row in rows:
        try:
            encoded = encoder.encode(row)
        except StreamsError as error:
            yield _note(_PROBLEM, str(error))
            return
        if encoded is None:
            left_out += 1
        else:
            yield _placed(encoded)
    if left_out:
        yield _note(_LEFT_OUT, left_out)


def place_existing(
    settings: ClientSettings,
    changelog: str,
    kind: StoreKind,
    item: tuple[int, int, int],
    count: Counted,
) -> "Iterator[PlacedRow]":
    """Yield the keys of changelog range `item` (partition, first offset, end) as rows."""
    number, start, end = item
    runs = read_range(settings, TopicPartition(changelog, number), start, end)
    keys = newest_keys(runs, versioned=kind is StoreKind.VERSIONED)
    rows = (
        _placed(existing_row(number, key, version, later=later, live=live))
        for later, (key, version, live) in enumerate(keys)
    )
    return _counted(rows, count)


def _counted(rows: "Iterable[PlacedRow]", count: Counted) -> "Iterator[PlacedRow]":
    passed = 0
    for row in rows:
        passed += 1
        if passed == _COUNT_EVERY:
            count(passed)
            passed = 0
        yield row
    count(passed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceChecked:
    """Check result of one partition; `records` includes deletes."""

    rows: int = 0
    records: int = 0
    left_out: int = 0
    problem: str = ""


def check_place(
    spec: StoreSpec,
    keep_last: bool,
    _: int,
    rows: "Iterable[PlacedRow]",
    count: Counted,
) -> PlaceChecked:
    notes: list[tuple[str, Any]] = []
    row_count = records = 0
    versioned = spec.kind is StoreKind.VERSIONED
    try:
        for record in _records(_counted(rows, count), spec, keep_last, 0, notes):
            records += 1
            row_count += record[1] is not None or versioned
    except StreamsError as error:
        notes.append((_PROBLEM, str(error)))
    problems = [text for what, text in notes if what == _PROBLEM]
    return PlaceChecked(
        rows=row_count,
        records=records,
        left_out=sum(number for what, number in notes if what == _LEFT_OUT),
        problem=problems[0] if problems else "",
    )


def write_place(
    order: WriteOrder,
    settings: ClientSettings,
    keep_last: bool,
    partition: int,
    rows: "Iterable[PlacedRow]",
    count: Counted,
) -> PartitionReport:
    records = _records(rows, order.target.spec, keep_last, order.deleted_at_ms, [])
    with KafkaWriterPorts(settings) as ports:
        return write_partition(order, partition, records, ports, count)


def _records(
    rows: "Iterable[PlacedRow]",
    spec: StoreSpec,
    keep_last: bool,
    deleted_at_ms: int,
    notes: list[tuple[str, Any]],
) -> Iterator[tuple[bytes, bytes | None, int]]:
    return one_per_key(
        _without_notes(rows, notes), spec, keep_last=keep_last, deleted_at_ms=deleted_at_ms
    )


def _without_notes(
    rows: "Iterable[PlacedRow]", notes: list[tuple[str, Any]]
) -> Iterator[ChangelogRow]:
    for (partition, order), payload in rows:
        if order[1] == _NOTE:
            notes.append(payload)
        else:
            yield ChangelogRow(partition, order, *payload)


def _placed(row: ChangelogRow) -> "PlacedRow":
    return (row.partition, row.order), (row.value, row.timestamp)


def _note(what: str, figure: Any) -> "PlacedRow":
    """Return a note for the driver; it sorts before all rows of partition 0."""
    return (0, (b"", _NOTE, 0, (False, None), b"")), (what, figure)
