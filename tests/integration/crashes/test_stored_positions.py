"""Stored positions that are damaged, too far or too old: the store is emptied and restored.

Each test also plants a row beside the position. A position that is trusted would keep it.
"""

import logging
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tests.integration.outcome import wait_for_counts
from tests.integration.programs.jobs import JOBS, STORE
from tidewheel import Serdes, StreamsBuilder
from tidewheel.state_stores.layout.envelope import wrap_value
from tidewheel.state_stores.layout.position import Position
from tidewheel.state_stores.layout.restore import position_name
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.streams.broker import KafkaBroker
from tidewheel.tasks.kafka.ports import NewTopic

_RECORDS: Final = [(b"key-%03d" % (index % 100), b"x") for index in range(1_000)]
_COUNTS: Final = {key.decode(): count for key, count in Counter(k for k, _ in _RECORDS).items()}
_PLANTED: Final = b"planted"
_HOUR_MS: Final = 3_600_000
#: Version byte and checksum of a stored position.
_CHECKSUM: Final = struct.Struct(">I")


@contextmanager
def _database(config: dict[str, Any], store: str = STORE) -> Iterator[TaskDatabase]:
    options = RocksDBOptions()
    path = Path(config["state_dir"], config["application_id"], "0", "0_0")
    database = TaskDatabase.open(path, [store], options, SharedResources.create(options))
    try:
        yield database
    finally:
        database.close()


def _plant(config: dict[str, Any], edit: Callable[[bytes], bytes], store: str = STORE) -> None:
    """Edit the stored position, and plant a row that no changelog has."""
    name = position_name(f"{config['application_id']}-{store}-changelog", 0)
    with _database(config, store) as database:
        stored = database.position(name)
        assert stored is not None
        row = wrap_value((7).to_bytes(8, "big"), 1_000)
        database.write({store: [(_PLANTED, row)]}, {name: edit(stored)})


def _edited(**changes: Any) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        position = Position.decode(data)
        assert position is not None
        values: dict[str, Any] = {
            "offset": position.offset,
            "topic_id": position.topic_id,
            "written_at_ms": position.written_at_ms,
        }
        for name, change in changes.items():
            values[name] = change(values[name])
        return Position(**values).encode()

    return edit


def _of_a_later_version(data: bytes) -> bytes:
    body = bytes([data[0] + 1]) + data[1 : -_CHECKSUM.size]
    return body + _CHECKSUM.pack(zlib.crc32(body))


class Counted:
    """An application that has counted and was stopped cleanly."""

    def __init__(
        self, cluster: Cluster, config: dict[str, Any], start_app: StartApp, unique: str
    ) -> None:
        self.config, self._cluster, self._start_app = config, cluster, start_app
        self._topics = f"in-{unique}", f"out-{unique}"
        cluster.create(dict.fromkeys(self._topics, 1))
        cluster.send(self._topics[0], _RECORDS)
        assert self.counts() == _COUNTS

    def counts(self) -> dict[str, int]:
        app = self._start_app(JOBS["count_by_key"](*self._topics), self.config)
        self._cluster.wait_until_consumed(self.config["application_id"], self._topics[0])
        content = wait_for_counts(app, STORE, len(_RECORDS))
        assert app.close(timeout=60_000)
        assert app.error is None
        return {key: row.value for key, row in content.items()}


@pytest.fixture
def counted(cluster: Cluster, config: dict[str, Any], start_app: StartApp, unique: str) -> Counted:
    return Counted(cluster, config, start_app, unique)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        pytest.param(
            lambda data: data[:10], "no position", id="torn", marks=pytest.mark.fault("28")
        ),
        pytest.param(lambda _: b"", "no position", id="empty", marks=pytest.mark.fault("28")),
        pytest.param(
            lambda _: b'{"offset": 7, "topi',
            "no position",
            id="JSON",
            marks=pytest.mark.fault("28"),
        ),
        pytest.param(
            _of_a_later_version, "no position", id="later version", marks=pytest.mark.fault("28")
        ),
        pytest.param(
            lambda data: data[:5] + bytes([data[5] ^ 1]) + data[6:],
            "no position",
            id="flipped bit",
            marks=pytest.mark.fault("28"),
        ),
        pytest.param(
            _edited(offset=lambda offset: offset + 1),
            "beyond the end of the log",
            id="beyond the log",
            marks=pytest.mark.fault("29"),
        ),
        pytest.param(
            _edited(topic_id=lambda _: b"another topic id"),
            "was recreated",
            id="another topic",
            marks=pytest.mark.fault("29"),
        ),
    ],
)
def test_wrong_position_is_never_trusted(
    counted: Counted,
    caplog: pytest.LogCaptureFixture,
    edit: Callable[[bytes], bytes],
    reason: str,
) -> None:
    _plant(counted.config, edit)
    with caplog.at_level(logging.INFO, "tidewheel"):
        assert counted.counts() == _COUNTS
    assert reason in caplog.text


def test_planted_row_would_stay_with_a_trusted_position(counted: Counted) -> None:
    """The premise of the tests above."""
    _plant(counted.config, bytes)
    with _database(counted.config) as database:
        assert database.get_many(STORE, [_PLANTED]) != [None]
    assert counted.counts() == _COUNTS | {_PLANTED.decode(): 7}


@pytest.fixture
def cleaned_cluster() -> Iterator[Cluster]:
    """A cluster whose log cleaner looks for dirty logs five times per second, not every 15 s."""
    with KafkaBroker(properties={"log.cleaner.backoff.ms": 200}) as broker:
        made = Cluster(broker.bootstrap_servers)
        yield made
        made.close()


@pytest.mark.fault("30")
@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.timeout(400)
def test_key_deleted_behind_an_old_position_does_not_return(
    cleaned_cluster: Cluster,
    config: dict[str, Any],
    start_app: StartApp,
    unique: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log cleaner has removed the deletes that the stored position has not seen."""
    cluster = cleaned_cluster
    config |= {"bootstrap_servers": cluster.bootstrap_servers}
    source, changelog = f"in-{unique}", f"{config['application_id']}-rows-changelog"
    cluster.create({source: 1})
    cleaned = {
        "cleanup.policy": "compact",
        "delete.retention.ms": "0",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.0",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "500",
    }
    cluster.admin.create_topics([NewTopic(name=changelog, partitions=1, config=cleaned)])
    keys = [b"key-%d" % number for number in range(10)]
    cluster.send(source, [(key, b"old") for key in keys])
    rows = _Rows(cluster, config, start_app, source)
    assert rows.content() == {key.decode(): "old" for key in keys}
    # Another worker deletes half of the keys; the cleaner removes values and deletes.
    deleted = keys[:5]
    now_ms = time.time_ns() // 1_000_000
    cluster.send(changelog, [(key, None) for key in deleted], first_timestamp=now_ms)

    # Each is later than the segment's first record, a transaction's end, so it rolls the segment.
    # The first cleaning sets the time from which a delete may go, and the next one removes it.
    times = count(now_ms + 1_000, 1_000)

    def is_cleaned() -> bool:
        cluster.send(changelog, [(keys[9], b"old")], first_timestamp=next(times))
        left = {record.key for record in cluster.read(changelog)}
        return not left.intersection(deleted)

    until(is_cleaned, "the log cleaner removes the deletes")
    _plant(config, _edited(written_at_ms=lambda written_ms: written_ms - 2 * _HOUR_MS), "rows")
    with caplog.at_level(logging.INFO, "tidewheel"):
        content = rows.content()
    assert content == {key.decode(): "old" for key in keys[5:]}
    assert "tombstones behind it may be gone" in caplog.text


class _Rows:
    """An application whose store `rows` is a table of its input."""

    def __init__(
        self, cluster: Cluster, config: dict[str, Any], start_app: StartApp, source: str
    ) -> None:
        self._cluster, self._config, self._start_app = cluster, config, start_app
        self._source = source

    def content(self) -> dict[str, str]:
        text = Serdes.string()
        builder = StreamsBuilder()
        builder.stream(self._source, key_serde=text, value_serde=text).to_table(store="rows")
        app = self._start_app(builder, self._config)
        self._cluster.wait_until_consumed(self._config["application_id"], self._source)
        content: dict[str, str] = {
            key: str(getattr(row, "value", row)) for key, row in app.store("rows").all()
        }
        assert app.close(timeout=60_000)
        assert app.error is None
        return content
