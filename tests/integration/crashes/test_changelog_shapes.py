"""A worker restores changelogs of unusual shapes, and stores the position of their end."""

import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from tests.integration.cluster import PATIENCE_S, Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.outcome import number_of, wait_for_counts
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import KafkaStreams
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import position_name
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.tasks.restore.state_updater import RestoreEvent

_ABORTED: Final = 500
#: Each transaction in a segment of its own, which the log cleaner may clean immediately.
_CLEANED_SOON: Final = {
    "segment_ms": "100",
    "min_cleanable_dirty_ratio": "0.001",
    "delete_retention_ms": "0",
}
#: Kafka's record batch: base offset, length, ..., attributes; bit 5 of these is a control batch.
_BATCH: Final = struct.Struct(">qi")
_ATTRIBUTES: Final = struct.Struct(">h")
_ATTRIBUTES_AT: Final = 21
_CONTROL: Final = 0x20


class _Changelog:
    """A changelog of one partition; each transaction ends with a control record."""

    def __init__(self, cluster: Cluster, application_id: str, **config: str) -> None:
        self.cluster = cluster
        self.topic = f"{application_id}-{STORE}-changelog"
        self.partition = TopicPartition(self.topic, 0)
        cluster.create({self.topic: 1}, cleanup_policy="compact,delete", **config)
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "transactional.id": f"{application_id}-writer",
            }
        )
        self._producer.init_transactions(PATIENCE_S)
        self._end = 0
        self._time_ms = time.time_ns() // 1_000_000

    def write(self, rows: Mapping[str, int], *, aborted: bool = False) -> None:
        self._producer.begin_transaction()
        self._time_ms += 1_000
        for key, count in rows.items():
            value = struct.pack(">q", count)
            self._producer.produce(self.topic, value, key, 0, timestamp=self._time_ms)
        self._producer.flush(PATIENCE_S)
        if aborted:
            self._producer.abort_transaction(PATIENCE_S)
        else:
            self._producer.commit_transaction(PATIENCE_S)
        self._end += len(rows) + 1
        # The broker responds before it writes the control record.
        until(lambda: self.end == self._end, "the control record is written")

    @property
    def end(self) -> int:
        return self.cluster.log_ends(self.topic)[self.partition]

    @property
    def start(self) -> int:
        return self.cluster.admin.beginning_offsets([self.partition])[self.partition]

    def delete_up_to(self, offset: int) -> None:
        self.cluster.admin.delete_records({self.partition: offset})

    def control_offsets(self) -> list[int]:
        """Return the base offsets of the control batches in the broker's files."""
        return [
            offset
            for segment in sorted((_log_folder(self.cluster) / f"{self.topic}-0").glob("*.log"))
            for offset, attributes in _batches(segment)
            if attributes & _CONTROL
        ]

    def counts(self) -> dict[str, int]:
        folded = self.cluster.folded(self.topic)
        return {key.decode(): number_of(value) for key, (value, _) in folded.items()}


def _log_folder(cluster: Cluster) -> Path:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (broker,) = admin.list_topics(timeout=PATIENCE_S).brokers
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    (described,) = admin.describe_configs([resource]).values()
    return Path(described.result(PATIENCE_S)["log.dirs"].value)


def _batches(segment: Path) -> Iterator[tuple[int, int]]:
    try:
        data = segment.read_bytes()
    except FileNotFoundError:  # cleaned meanwhile
        return
    at = 0
    while at + _ATTRIBUTES_AT + _ATTRIBUTES.size <= len(data):
        offset, length = _BATCH.unpack_from(data, at)
        if length <= 0:  # space that the broker has reserved
            return
        yield offset, _ATTRIBUTES.unpack_from(data, at + _ATTRIBUTES_AT)[0]
        at += _BATCH.size + length


def _empty(log: _Changelog) -> None:
    assert (log.start, log.end) == (0, 0)


def _only_aborted(log: _Changelog) -> None:
    for number in range(_ABORTED):
        log.write({f"key-{number % 10}": number, "other": number}, aborted=True)


def _tail_of_aborted(log: _Changelog) -> None:
    log.write({"a": 1, "b": 2})
    for number in range(_ABORTED):
        log.write({"a": number, "never": number}, aborted=True)


def _only_a_control_record(log: _Changelog) -> None:
    log.write({"a": 1, "b": 2})
    log.delete_up_to(log.end - 1)
    assert log.start == log.end - 1 > 0


def _start_above_zero(log: _Changelog) -> None:
    log.write({"a": 1, "b": 2, "gone": 3})
    log.delete_up_to(log.end)
    log.write({"a": 5, "c": 6})
    log.write({"a": 7}, aborted=True)
    assert log.start > 0


def _all_deleted(log: _Changelog) -> None:
    log.write({"a": 1, "b": 2})
    log.delete_up_to(log.end)
    assert log.start == log.end > 0


def _cleaned(log: _Changelog) -> None:
    """Have the broker delete records of the first transactions, and then their control records."""
    for number in range(10):
        log.write({"a": number, "b": number})
        log.write({"a": -1, "never": 1}, aborted=True)
        assert {log.end - 4, log.end - 1} <= {*log.control_offsets()}, "not yet cleaned"
    end, count = log.end, 0

    def are_gone() -> bool:
        # The cleaner comes only for new records, and never to the last segment.
        nonlocal count
        count += 1
        log.write({"a": 100 + count})
        time.sleep(0.5)  # not more than two records a second
        return sum(offset < end for offset in log.control_offsets()) < 10

    until(are_gone, "the log cleaner deletes control records")
    log.write({"b": 50}, aborted=True)
    assert log.start == 0


_SHAPES: Final = {
    "empty": _empty,
    "only aborted transactions": _only_aborted,
    "a tail of aborted transactions": _tail_of_aborted,
    "only a control record": _only_a_control_record,
    "a start above 0": _start_above_zero,
    "all records deleted": _all_deleted,
    "cleaned control records": _cleaned,
}


def _stored_position(config: dict[str, Any], log: _Changelog) -> int:
    path = Path(config["state_dir"], config["application_id"], "0", "0_0")
    position = Position.decode(TaskDatabase.positions_in(path)[position_name(log.topic, 0)])
    assert position is not None
    return position.offset


@pytest.mark.fault("38")
@pytest.mark.parametrize("shape", _SHAPES)
def test_N4_a_worker_restores_any_shape_of_changelog_to_its_end(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, shape: str
) -> None:
    source, sink = f"in-{unique}", f"out-{unique}"
    cluster.create({source: 1, sink: 1})
    more = _CLEANED_SOON if _SHAPES[shape] is _cleaned else {}
    log = _Changelog(cluster, config["application_id"], **more)
    _SHAPES[shape](log)
    counts, end = log.counts(), log.end

    def start(events: list[RestoreEvent], **settings: Any) -> KafkaStreams:
        return start_app(
            JOBS["count_by_key"](source, sink),
            config | settings,
            prepare=lambda app: app.set_restore_listener(events.append),
        )

    def content(app: KafkaStreams) -> dict[str, int]:
        return {key: row.value for key, row in app.store(STORE).all()}

    # The test wrote the changelog, so no offsets are committed.
    app = start([], accept_offsets=True)
    assert content(app) == counts
    assert app.close(timeout=60_000)
    assert app.error is None
    assert _stored_position(config, log) == end

    events: list[RestoreEvent] = []
    app = start(events, accept_offsets=True)
    assert content(app) == counts
    cluster.send(source, [(b"a", b"x"), (b"new", b"x")])
    cluster.wait_until_consumed(config["application_id"], source)
    expected = counts | {"a": counts.get("a", 0) + 1, "new": 1}
    wait_for_counts(app, STORE, sum(expected.values()))
    assert content(app) == expected
    assert app.close(timeout=60_000)
    assert [each for each in events if each.restored] == [], "nothing was restored again"
    assert content(start([])) == expected
