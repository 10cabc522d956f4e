"""Kafka Streams and Tidewheel on one broker: each reads the other's records and state.

`SharedTopics.java` is the Java half, with the applications of `shared_topologies.py`.
"""

import base64
import logging
import secrets
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import pytest

from tests.integration.cluster import PATIENCE_S, Cluster
from tests.interop.kafka_streams_process import KafkaStreamsProcess, Row
from tests.interop.shared_topologies import (
    KEEPING,
    OUTPUTS,
    STORES,
    TABLES,
    TOPOLOGIES,
    TWO_SIDED,
    WINDOW_MS,
)
from tidewheel import (
    KafkaStreams,
    RunOptions,
    Serde,
    Serdes,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
)
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.worker.application.application import SystemClock
from tidewheel.tasks.processing.api.record import Headers

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.first,
    pytest.mark.timeout(300),
]

_SERDES: Final[Mapping[str, tuple[Serde[Any], Sequence[Any]]]] = {
    "string": (Serdes.string(), ["", "a", "grüße", "\U0001f30a"]),
    "int64": (Serdes.int64(), [0, -1, 2**63 - 1, -(2**63)]),
    "int32": (Serdes.int32(), [0, -1, 2**31 - 1, -(2**31)]),
    "float64": (Serdes.float64(), [0.0, -0.0, 1.5, 5e-324, 1.7976931348623157e308, -0.1]),
    "boolean": (Serdes.boolean(), [True, False]),
    "uuid": (Serdes.uuid(), [uuid.UUID(int=0), uuid.UUID("01234567-89ab-cdef-fedc-ba9876543210")]),
    "bytes": (Serdes.bytes(), [b"", b"\x00\xff"]),
    "windowed": (
        Serdes.windowed(str, WINDOW_MS),
        [Windowed("a", 0, WINDOW_MS), Windowed("", 1_700_000_000_000, 1_700_000_010_000)],
    ),
    "session_windowed": (
        Serdes.session_windowed(str),
        [Windowed("a", 5, 5), Windowed("é", 1_700_000_000_000, 1_700_000_000_001)],
    ),
}

#: Owners of an application, one after the other, each without local state.
_LIVES: Final = ("ours", "java", "ours")
_ROWS_PER_LIFE: Final = 20

_State = list[tuple[int, bytes, bytes, int, Headers]]

_Output = tuple[bytes, bytes | None, int, Headers]

_Input = tuple[str, str, str | None, int, Sequence[tuple[str, str | None]]]

#: Keys of these stores end with a sequence number, which restarts with each life.
_NUMBERED: Final = ("join-outer-this-join-store", "join-outer-other-join-store")
_NUMBER_BYTES: Final = 4


def _unique() -> str:
    return f"shared-{secrets.token_hex(4)}"


def _as_json(value: Any) -> Any:
    match value:
        case Windowed():
            windowed = cast("Windowed[str]", value)
            return [windowed.key, windowed.start, windowed.end]
        case bytes():
            return base64.b64encode(value).decode()
        case float() | uuid.UUID():
            return str(value)
        case _:
            return value


def _comparable(name: str, row: Row) -> Row:
    key, value, timestamp = row
    if name == "float64":
        return repr(float(key)), repr(float(value)), timestamp
    return row


@pytest.fixture(scope="module")
def serde_topics(cluster: Cluster) -> dict[str, tuple[str, str]]:
    topics = {name: (f"{_unique()}-theirs", f"{_unique()}-ours") for name in _SERDES}
    cluster.create({topic: 1 for pair in topics.values() for topic in pair})
    return topics


@pytest.mark.parametrize("name", _SERDES)
def test_serdes_have_the_bytes_of_kafka(
    cluster: Cluster,
    java: KafkaStreamsProcess,
    serde_topics: dict[str, tuple[str, str]],
    name: str,
) -> None:
    serde, values = _SERDES[name]
    theirs, ours = serde_topics[name]
    rows = [(_as_json(value), _as_json(value), 1_000 + n) for n, value in enumerate(values)]

    java.write(theirs, name, name, rows)
    cluster.send(
        ours, [(serde.serialize(ours, value), serde.serialize(ours, value)) for value in values]
    )

    read = cluster.read(theirs)
    assert [repr(serde.deserialize(theirs, record.key)) for record in read] == list(
        map(repr, values)
    )
    assert [repr(serde.deserialize(theirs, record.value or b"")) for record in read] == list(
        map(repr, values)
    )
    assert [_comparable(name, row) for row in java.read(ours, name, name)] == [
        _comparable(name, row) for row in rows
    ]


class _Application:
    def __init__(
        self, cluster: Cluster, java: KafkaStreamsProcess, name: str, folder: Path
    ) -> None:
        self.name = name
        self.id = _unique()
        self.inputs = [f"{self.id}-left", f"{self.id}-right"]
        self._cluster = cluster
        self._java = java
        self._folder = folder
        self._store_format: Literal["DEFAULT", "HEADERS"] = (
            "HEADERS" if name == "versions_and_headers" else "DEFAULT"
        )
        self._guarantee: Literal["at_least_once", "exactly_once"] = (
            "at_least_once" if name == "counts" else "exactly_once"
        )
        outputs = [f"{self.id}-{output}" for output in OUTPUTS[name]]
        partitions = 2 if name in TABLES else 1
        cluster.create(dict.fromkeys((*self.inputs, *outputs), partitions))

    def feed(self, rows: Sequence[_Input]) -> None:
        for side in ("left", "right"):
            records = [row[1:] for row in rows if row[0] == side]
            if records:
                self._java.write(f"{self.id}-{side}", "string", "string", records)

    def live(self, who: str, life: int) -> None:
        state_dir = str(self._folder / self.id / str(life))
        if who == "java":
            self.start_java(state_dir)
            self._wait()
            self._java.stop(self.id)
        else:
            self._live_ours(state_dir)

    def start_java(self, state_dir: str) -> None:
        guarantee = "exactly_once_v2" if self._guarantee == "exactly_once" else self._guarantee
        self._java.start(
            self.id,
            self.name,
            prefix=self.id,
            state_dir=state_dir,
            guarantee=guarantee,
            store_format=self._store_format,
        )

    def stop_java(self) -> None:
        self._wait()
        self._java.stop(self.id)

    def _live_ours(self, state_dir: str) -> None:
        config = StreamsConfig(
            application_id=self.id,
            bootstrap_servers=self._cluster.bootstrap_servers,
            state_dir=state_dir,
            processing_guarantee=self._guarantee,
            commit_interval_ms=50,
            emit_interval_ms=0,
            statestore_cache_max_bytes=0,
            topology_optimization="none",
            dsl_store_format=self._store_format,
            accept_offsets=True,  # Kafka Streams commits in between.
        )
        builder = StreamsBuilder()
        TOPOLOGIES[self.name](builder, self.id)
        app = KafkaStreams(builder.build(config), config, options=RunOptions(fixed=True))
        app.start()
        try:
            if app.wait_until_running(PATIENCE_S):
                self._wait()
        finally:
            assert app.close(timeout=int(PATIENCE_S * 1000))
        if app.error is not None:
            raise app.error

    def _wait(self) -> None:
        internal = [
            topic
            for topic in self._cluster.admin.list_topics()
            if topic.startswith(f"{self.id}-") and topic.endswith(("-repartition", "-topic"))
        ]
        used = [topic for topic in self.inputs if topic.endswith("left") or self.name in TWO_SIDED]
        self._cluster.wait_until_consumed(self.id, *used, *internal)

    def state(self) -> dict[str, _State]:
        """Return value, timestamp and headers of the changelogs' live rows.

        Headers only of stores with a processor's headers: rows of the DSL have headers here, but
        none in Kafka Streams.
        """
        return {store: self._live_rows(store) for store in STORES[self.name]}

    def _live_rows(self, store: str) -> _State:
        number_bytes = _NUMBER_BYTES if store in _NUMBERED else 0
        last = {
            (each.partition, each.key): each
            for each in self._cluster.read(f"{self.id}-{store}-changelog")
        }
        return sorted(
            (
                partition,
                key[: len(key) - number_bytes],
                record.value,
                record.timestamp,
                record.headers if store in KEEPING else (),
            )
            for (partition, key), record in last.items()
            if record.value is not None
        )

    def outputs(self) -> dict[str, list[_Output]]:
        """Return all records; of tables that exchange partitions, the last one per key.

        Sessions without headers: Kafka Streams has none.
        """
        return {output: self._output(output) for output in OUTPUTS[self.name]}

    def _output(self, output: str) -> list[_Output]:
        records = [
            (each.key, each.value, each.timestamp, () if output == "sessions" else each.headers)
            for each in self._cluster.read(f"{self.id}-{output}")
        ]
        if self.name in TABLES:
            records = list({record[0]: record for record in records}.values())
        return sorted(records, key=repr)


def _rows(name: str) -> list[_Input]:
    """Three keys, a rarer side, deleted rows, and a jump of time per life."""
    # Changelogs of windows drop rows that are days old.
    begin = SystemClock().now_ms() // 100_000 * 100_000
    rows: list[_Input] = []
    for number in range(len(_LIVES) * _ROWS_PER_LIFE):
        side = "right" if number % 3 == 0 and name in TWO_SIDED else "left"
        key = "abc"[number % 7 % 3]
        value = "abcde"[number * number % 5] + ("" if name == "counts" else str(number))
        deleted = number % 17 == 16 and name == "table_join"
        jumps = (number + _ROWS_PER_LIFE // 2) // _ROWS_PER_LIFE
        time = begin + number * 700 + jumps * 30_000
        headers = (("from", f"ü{number}"), ("from", None)) if number % 4 else ()
        rows.append((side, key, None if deleted else value, time, headers))
    return rows


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_each_application_continues_where_the_other_stopped(
    cluster: Cluster, java: KafkaStreamsProcess, tmp_path: Path, name: str
) -> None:
    """Alternating lives end like Kafka Streams alone: outputs, changelogs, internal topics."""
    rows = _rows(name)
    alone = _Application(cluster, java, name, tmp_path)
    alone.feed(rows)
    alone.start_java(str(tmp_path / "alone"))
    shared = _Application(cluster, java, name, tmp_path)
    for life, who in enumerate(_LIVES):
        begin = life * _ROWS_PER_LIFE
        shared.feed(rows[begin : begin + _ROWS_PER_LIFE])
        shared.live(who, life)
    alone.stop_java()

    assert shared.outputs() == alone.outputs()
    assert shared.state() == alone.state()
    topics = cluster.admin.list_topics()
    internal = [
        {topic.removeprefix(app.id) for topic in topics if topic.startswith(f"{app.id}-")}
        for app in (alone, shared)
    ]
    assert internal[0] == internal[1]
    assert any(alone.outputs().values())


def test_offsets_continue_where_the_other_stopped(
    cluster: Cluster,
    java: KafkaStreamsProcess,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each continues from the other's offsets; live members of Kafka Streams stop us."""
    app = _Application(cluster, java, "stream_join", tmp_path)
    app.feed(_rows("stream_join"))
    app.live("java", 0)
    with caplog.at_level(logging.INFO, "tidewheel.tasks.restore.start_positions"):
        app.live("ours", 1)
    assert f"continuing where Kafka Streams left off, in {app.id}-left-0" in caplog.text

    app.start_java(str(tmp_path / "again"))
    java.stop(app.id, leave_group=False)
    assert "Unsupported offset metadata" in java.log
    with pytest.raises(StreamsError, match=rf"{app.id} has 1 subscribed members.*LEAVE_GROUP"):
        app.live("ours", 2)
