"""History before Kafka's log: any division of a topic gives the same records in the same order."""

import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidewheel import ConfigError, Serdes, StreamsBuilder, StreamsConfig, StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.batch.job import BatchJob
from tidewheel.streams.bulk.backfill.history import (
    GAP,
    OVERLAP,
    TIES,
    History,
    objections_to_history,
    read_history,
)
from tidewheel.streams.bulk.batch.executors import Counted, Work
from tidewheel.streams.bulk.batch.rows import RecordEncoder
from tidewheel.streams.bulk.batch.run import BatchRun
from tidewheel.streams.bulk.batch.source_segments import (
    OffsetRange,
    StoredRows,
    since,
    source_records,
)
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.tasks.processing.api.topology_spec import SourceSpec
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_TOPIC = "clicks"
_PARTITIONS = 2
_TYPES = {
    "key": "binary", "value": "binary", "timestamp": "bigint", "partition": "int", "offset": "bigint", "seq": "int",
}  # fmt: skip
_KEYS = [b"a", b"b", b"c"]

Written = TypeVar("Written")


class Logged(NamedTuple):
    """A record in Kafka's log."""

    offset: int
    key: bytes | None
    value: bytes
    timestamp: int
    seq: int = 0


Logs = dict[TopicPartition, list[Logged]]


@dataclass
class Frame:
    rows: list[dict[str, Any]]
    columns: Sequence[str]
    dtypes: list[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.dtypes = [(name, _TYPES[name]) for name in self.columns]


class InlineRun(BatchRun):
    """Places and writes rows in this process, as three tasks of Spark."""

    def frame_of(self, frame: Any, source: SourceSpec) -> Any:
        return frame

    def write_rows(
        self,
        step: str,
        frame: Any,
        encoder: RecordEncoder,
        place: Callable[[Iterable[Mapping[str, Any]], Counted], Iterator[Any]],
        write: Callable[[int, Iterator[Any], Counted], Written],
    ) -> list[Written]:
        placed = [
            row for part in range(3) for row in place(frame.rows[part::3], lambda _rows: None)
        ]
        placed.sort(key=lambda row: row[0])
        return [
            write(partition, (row for row in placed if row[0][0] == partition), lambda _rows: None)
            for partition in range(encoder.partitions)
        ]


def _read(
    folder: str | Path,
    frame: Frame,
    logs: Logs,
    firsts: Mapping[TopicPartition, int],
    **options: Any,
) -> History:
    """Read a frame before the logs, of which records below the firsts were deleted."""
    work = Work(job=None, url=str(folder))  # type: ignore[arg-type] # rows need no job
    source = SourceSpec(
        name="source", topics=(_TOPIC,), key_serde=Serdes.bytes(), value_serde=Serdes.bytes()
    )
    ranges = {
        at: OffsetRange(first=firsts[at], end=_end(log, firsts[at])) for at, log in logs.items()
    }

    def offsets_at(partitions: Sequence[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        return {
            at: next(
                (
                    record.offset
                    for record in logs[at]
                    if record.offset >= firsts[at] and record.timestamp >= time_ms
                ),
                ranges[at].end,
            )
            for at in partitions
        }

    return read_history(
        InlineRun(None, work, None),  # type: ignore[arg-type] # no session
        _TOPIC,
        frame,  # type: ignore[arg-type] # as far as it is read
        source,
        len(logs),
        ranges,
        **{"offsets_at": offsets_at, **options},
    )


def _end(log: Sequence[Logged], first: int) -> int:
    return max([first, *(record.offset + 1 for record in log)])


def _content(folder: str | Path, history: History, logs: Logs) -> dict[TopicPartition, list[Any]]:
    """Return the records of all segments; their offsets must rise."""
    storage = Work(job=None, url=str(folder)).storage()  # type: ignore[arg-type] # see above
    content: dict[TopicPartition, list[Any]] = {}
    for at, segments in history.segments.items():
        runs: list[SourceRecords] = []
        for segment in segments:
            if isinstance(segment, StoredRows):
                runs += source_records(storage, None, at, [segment])
            else:
                runs += _consumed(at, logs[at], segment)
        offsets = [offset for run in runs for offset in run.offsets]
        assert offsets == sorted(set(offsets))
        content[at] = [
            row
            for run in runs
            for row in zip(run.raw_keys, run.raw_values, run.timestamps, strict=True)
        ]
    return content


def _consumed(at: TopicPartition, log: Sequence[Logged], part: OffsetRange) -> list[SourceRecords]:
    records = [record for record in log if part.first <= record.offset < part.end]
    runs = [
        SourceRecords(
            at.topic,
            at.partition,
            [record.offset for record in chunk],
            [record.key for record in chunk],
            [record.value for record in chunk],
            [record.timestamp for record in chunk],
            None,
        )
        for chunk in (records[first : first + 3] for first in range(0, len(records), 3))
    ]
    return runs if part.from_ms is None else list(since(runs, part.from_ms))


def _all(logs: Logs) -> dict[TopicPartition, list[Any]]:
    return {
        at: [(record.key, record.value, record.timestamp) for record in log]
        for at, log in logs.items()
    }


def _row(at: TopicPartition, record: Logged) -> dict[str, Any]:
    return {
        "key": None if record.key is None else bytearray(record.key),
        "value": bytearray(record.value),
        "timestamp": record.timestamp,
        "partition": at.partition,
        "offset": record.offset,
        "seq": record.seq,
    }


@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, _PARTITIONS - 1),
            st.integers(1, 3),  # offsets that it needs: transactions leave markers
            st.sampled_from([*_KEYS, None]),
            st.integers(0, 20),
        ),
        max_size=30,
    ),
    deleted=st.lists(st.integers(0, 30), min_size=_PARTITIONS, max_size=_PARTITIONS),
    dumped=st.integers(0, 30),
    seed=st.integers(0, 1_000),
)
def test_a_dump_and_the_rest_of_the_log_are_the_topic(
    steps: list[tuple[int, int, bytes | None, int]],
    deleted: list[int],
    dumped: int,
    seed: int,
) -> None:
    logs: Logs = {TopicPartition(_TOPIC, number): [] for number in range(_PARTITIONS)}
    for number, (partition, taken, key, time_ms) in enumerate(steps):
        log = logs[TopicPartition(_TOPIC, partition)]
        log.append(Logged(_end(log, 0) + taken - 1, key, b"%d" % number, time_ms))
    rows: list[dict[str, Any]] = []
    firsts: dict[TopicPartition, int] = {}
    left_out = 0
    for at, log in logs.items():
        count = min(deleted[at.partition], len(log))
        firsts[at] = _end(log[:count], 0)
        # The dump may end behind the first retained record.
        in_dump = log[: max(count, min(dumped, len(log)))]
        left_out += len(in_dump) - count
        rows += [_row(at, record) for record in in_dump]
    random.Random(seed).shuffle(rows)
    frame = Frame(rows, ["key", "value", "timestamp", "partition", "offset"])
    # Markers look like missing records.
    accept = frozenset({GAP} if any(taken > 1 for _, taken, _, _ in steps) else ())
    with tempfile.TemporaryDirectory() as folder:
        history = _read(folder, frame, logs, firsts, accept=accept)
        assert _content(folder, history, logs) == _all(logs)
    assert sum(history.left_out.values()) == left_out
    for at, stored in history.rows.items():
        assert 0 <= stored.first_offset == firsts[at] - stored.records


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(_KEYS), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    deleted=st.lists(st.integers(0, 30), min_size=_PARTITIONS, max_size=_PARTITIONS),
    split=st.integers(0, 25),
    dumped=st.integers(0, 60),
    first_offset=st.integers(0, 2),
    seed=st.integers(0, 1_000),
)
@example(
    steps=[(b"a", 0, False), (b"a", 1, True), (b"a", 5, False)],
    deleted=[1, 1],
    split=3,
    dumped=0,
    first_offset=0,
    seed=0,
)
def test_rows_before_a_time_and_the_log_from_then_on_are_the_topic(
    steps: list[tuple[bytes, int, bool]],
    deleted: list[int],
    split: int,
    dumped: int,
    first_offset: int,
    seed: int,
) -> None:
    """Kafka may have records of before that time among later ones; the frame has them, too."""
    topic: list[tuple[bytes, bytes, int]] = []
    late: list[tuple[bytes, bytes, int]] = []
    now_ms = 0
    for number, (key, passed, is_late) in enumerate(steps):
        now_ms += passed
        topic.append((key, b"%d" % number, now_ms))
        if is_late and now_ms < split:
            late.append(topic[-1])
    written = [*(record for record in topic if record not in late), *late]
    logs: Logs = {TopicPartition(_TOPIC, number): [] for number in range(_PARTITIONS)}
    for key, value, time_ms in written:
        log = logs[TopicPartition(_TOPIC, partition_of(key, _PARTITIONS))]
        log.append(Logged(_end(log, first_offset), key, value, time_ms))
    firsts: dict[TopicPartition, int] = {}
    for at, log in logs.items():
        later = [place for place, record in enumerate(log) if record.timestamp >= split]
        # Kafka has a record of before the time, or all of them.
        most = (later[0] if later else len(log)) - 1
        firsts[at] = _end(log[: max(min(deleted[at.partition], most), 0)], 0)
    rows = [
        _row(TopicPartition(_TOPIC, 0), Logged(0, key, value, time_ms, seq))
        for seq, (key, value, time_ms) in enumerate(topic)
        if time_ms < max(split, dumped)
    ]
    random.Random(seed).shuffle(rows)
    frame = Frame(rows, ["key", "value", "timestamp", "seq"])
    expected: dict[TopicPartition, list[Any]] = {at: [] for at in logs}
    for key, value, time_ms in topic:
        at = TopicPartition(_TOPIC, partition_of(key, _PARTITIONS))
        expected[at].append((key, value, time_ms))
    with tempfile.TemporaryDirectory() as folder:
        history = _read(folder, frame, logs, firsts, until_ms=split, order_by=["seq"])
        assert _content(folder, history, logs) == expected
    assert sum(history.left_out.values()) == sum(row["timestamp"] >= split for row in rows)


_AT = TopicPartition(_TOPIC, 0)
_LOG: Logs = {_AT: [Logged(offset, b"k", b"%d" % offset, offset * 10) for offset in range(5)]}
_DUMP = [_row(_AT, record) for record in _LOG[_AT]]
_WITH_OFFSETS = ["key", "value", "timestamp", "partition", "offset"]
_PLAIN = ["key", "value", "timestamp", "seq"]


def _values(folder: Path, history: History, logs: Logs = _LOG) -> list[int]:
    (rows,) = _content(folder, history, logs).values()
    return [int(value) for _, value, _ in rows]


@pytest.mark.parametrize(
    ("dump", "first", "problem"),
    [
        (_DUMP[:3], 4, "clicks-0: the last row has offset 2, Kafka is read from 4 on"),
        ([], 2, "clicks-0: there is no row, Kafka is read from 2 on"),
        ([_DUMP[4]], 2, "clicks-0: there is no row, Kafka is read from 2 on"),
        (
            [_DUMP[0], _DUMP[3]],
            4,
            "clicks-0: 2 offsets are missing between the rows, the first is 1",
        ),
    ],
)
def test_missing_offsets_are_an_error_unless_accepted(
    tmp_path: Path, dump: list[dict[str, Any]], first: int, problem: str
) -> None:
    frame = Frame(dump, _WITH_OFFSETS)
    with pytest.raises(StreamsError, match=f"{re.escape(problem)}.*accept gap"):
        _read(tmp_path, frame, _LOG, {_AT: first})
    history = _read(tmp_path, frame, _LOG, {_AT: first}, accept={GAP})
    assert history.gaps == (problem,)
    kept = [row["offset"] for row in dump if row["offset"] < first]
    assert _values(tmp_path, history) == [*kept, *range(first, 5)]


def test_a_dump_of_an_earlier_topic_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StreamsError, match="5 rows are from offset 0 on, where no record"):
        _read(tmp_path, Frame(_DUMP, _WITH_OFFSETS), {_AT: []}, {_AT: 0})


def test_many_gaps_are_counted(tmp_path: Path) -> None:
    firsts = {TopicPartition(_TOPIC, number): 7 for number in range(12)}
    with pytest.raises(StreamsError, match=r"clicks-7: there is no row.* and 4 more; give"):
        _read(tmp_path, Frame([], _WITH_OFFSETS), {at: [] for at in firsts}, firsts)


def test_doubled_offsets_are_an_error_if_both_rows_count(tmp_path: Path) -> None:
    frame = Frame([*_DUMP, _DUMP[2]], _WITH_OFFSETS)
    history = _read(tmp_path, frame, _LOG, {_AT: 2})
    assert _values(tmp_path, history) == [0, 1, 2, 3, 4]
    assert history.left_out == {_AT: 4}
    with pytest.raises(StreamsError, match="offset 2"):
        _read(tmp_path, frame, _LOG, {_AT: 3})


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        (["key", "value", "timestamp", "offset"], {}, "a column offset but no partition"),
        (_WITH_OFFSETS, {"until_ms": 5}, "drop it, or leave out the time"),
        ([*_WITH_OFFSETS, "seq"], {"order_by": ["seq"]}, "drop it, or leave out the time"),
        (_PLAIN, {}, "until_ms"),
        (_PLAIN, {"until_ms": 5, "order_by": ["at"]}, "ordered by at, which the frame has not"),
        (["key", "value"], {"until_ms": 5}, "no column timestamp"),
    ],
)
def test_a_frame_that_nothing_divides_from_the_log_is_refused(
    tmp_path: Path, columns: list[str], options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"clicks: .*{problem}"):
        _read(tmp_path, Frame(_DUMP, columns), _LOG, {_AT: 2}, **options)


def test_rows_without_offsets_need_no_time_if_the_log_is_empty_or_overlap_is_accepted(
    tmp_path: Path,
) -> None:
    empty: Logs = {_AT: []}
    history = _read(tmp_path, Frame(_DUMP, _PLAIN), empty, {_AT: 3})
    assert history.rows[_AT].first_offset == -2
    assert _values(tmp_path, history, empty) == [0, 1, 2, 3, 4]
    overlapping = _read(tmp_path, Frame(_DUMP, _PLAIN), _LOG, {_AT: 3}, accept={OVERLAP})
    assert _values(tmp_path, overlapping) == [0, 1, 2, 3, 4, 3, 4]


@pytest.mark.parametrize(
    ("logs", "first", "until_ms", "is_gap"),
    [
        (_LOG, 2, 30, False),
        (_LOG, 2, 20, True),
        (_LOG, 2, 15, True),
        (_LOG, 0, 0, False),
        ({_AT: []}, 7, 30, True),
        ({_AT: []}, 0, 30, False),
    ],
)
def test_a_log_without_records_before_the_time_may_have_lost_later_ones(
    tmp_path: Path, logs: Logs, first: int, until_ms: int, is_gap: bool
) -> None:
    frame = Frame(_DUMP, _PLAIN)
    if is_gap:
        with pytest.raises(StreamsError, match=r"clicks-0: Kafka is read from .*accept gap"):
            _read(tmp_path, frame, logs, {_AT: first}, until_ms=until_ms)
    history = _read(tmp_path, frame, logs, {_AT: first}, until_ms=until_ms, accept={GAP})
    assert len(history.gaps) == is_gap
    rows = [row["offset"] for row in _DUMP if row["timestamp"] < until_ms]
    log = [record.offset for record in logs[_AT] if record.offset >= first]
    later = [offset for offset in log if _LOG[_AT][offset].timestamp >= until_ms]
    assert _values(tmp_path, history, logs) == rows + later


_TIED = [_row(_AT, Logged(0, b"k", value, 5, seq)) for seq, value in enumerate([b"9", b"1", b"5"])]


def test_rows_of_one_key_and_time_need_an_order(tmp_path: Path) -> None:
    log: Logs = {_AT: []}
    firsts = {_AT: 0}
    with pytest.raises(StreamsError, match=r"key b'k' and the time 5 ms.*accept ties"):
        _read(tmp_path, Frame(_TIED, _PLAIN), log, firsts)
    ordered = _read(tmp_path, Frame(_TIED, _PLAIN), log, firsts, order_by=["seq"])
    assert _values(tmp_path, ordered, log) == [9, 1, 5]
    by_value = _read(tmp_path, Frame(_TIED, _PLAIN), log, firsts, accept={TIES})
    assert _values(tmp_path, by_value, log) == [1, 5, 9]


@pytest.mark.parametrize("change", [{"key": None}, {"value": b"9"}])
def test_rows_of_one_time_without_a_key_or_difference_need_no_order(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    rows = [row | change for row in _TIED]
    log: Logs = {_AT: []}
    history = _read(tmp_path, Frame(rows, _PLAIN), log, {_AT: 0})
    assert len(_values(tmp_path, history, log)) == 3


def test_a_bad_row_is_an_error(tmp_path: Path) -> None:
    rows = [*_TIED[:1], _TIED[1] | {"timestamp": None}, _DUMP[4]]
    with pytest.raises(StreamsError, match=r"clicks: timestamp of the row .* is None"):
        _read(tmp_path, Frame(rows, _PLAIN), _LOG, {_AT: 0}, until_ms=20)


def test_a_topic_that_workers_restore_a_store_from_has_no_history() -> None:
    def objections(*topics: str, optimization: Any = "all") -> list[str]:
        builder = StreamsBuilder()
        users = builder.table("users", key_serde=str, value_serde=str, store="names")
        builder.global_table("cities", key_serde=str, value_serde=str, store="cities-store")
        clicks = builder.stream(re.compile("cl.*"), key_serde=str, value_serde=str)
        clicks.join(users, lambda click, user: click + user).group_by_key().count(store="counts")
        config = StreamsConfig(application_id="app", topology_optimization=optimization)
        counts = {"users": 1, "cities": 1, "clicks": 1}
        plan = BatchJob.of(builder.build(config), config, counts).plan
        return list(objections_to_history(plan, topics))

    assert objections("clicks") == []
    of_global, unknown, restored = objections("users", "cities", "orders", "clicks")
    assert of_global.startswith("history of cities: ")
    assert "does not read this topic" in unknown
    assert "restore store names from this topic" in restored
    assert objections("users", optimization="none") == []
