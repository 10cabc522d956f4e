"""Runs of a job by shards under kills, next to a run of whole partitions without any.

Outputs and state of both must equal a computation in plain Python.
"""

import random
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.integration.cluster import PATIENCE_S, Cluster, SteadyFeed, until
from tests.integration.conftest import StartWorker
from tests.integration.outcome import number_of
from tests.integration.processes import WorkerProcess
from tests.integration.programs.shard_jobs import GAP_MS, GRACE_MS, STORE, WINDOW_MS
from tidewheel.rebalance.model import Shard, TopicPartition
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources
from tidewheel.state_stores.rocksdb.task_database import TaskDatabase
from tidewheel.tasks.kafka.internal_topics import offsets_group

SHARDS: Final = 4
WORKERS: Final = 2
_KEYS: Final = 60
_RECORDS_PER_S: Final = 300
#: Event time between two records.
_STEP_MS: Final = 10
#: One record of so many is late for every window.
_LATE_EVERY: Final = 30
_LATE_MS: Final = 5_000

Records = list[tuple[bytes, bytes]]
#: Outputs by key, in order, and the last value by changelog key.
Results = tuple[dict[str, list[Any]], dict[bytes, Any]]


def record_of(number: int, begin_ms: int) -> tuple[bytes, bytes]:
    """Return the n-th record: a key, and an event time that is somewhat out of order."""
    chance = random.Random(number)
    late_ms = _LATE_MS if number % _LATE_EVERY == _LATE_EVERY - 1 else 0
    time_ms = begin_ms + number * _STEP_MS - chance.randrange(GRACE_MS) - late_ms
    return b"key %d" % chance.randrange(_KEYS), b"%d" % time_ms


# -- computations in plain Python ------------------------------------------------------------------


def _counts(records: Records) -> Results:
    outputs = defaultdict[str, list[Any]](list)
    state: dict[bytes, int] = {}
    for key, _ in records:
        state[key] = state.get(key, 0) + 1
        outputs[key.decode()].append(state[key])
    return outputs, state


def _windows(records: Records) -> Results:
    outputs = defaultdict[str, list[Any]](list)
    state: dict[bytes, int] = {}
    stream_time_ms = -1
    for key, value in records:
        time_ms = int(value)
        stream_time_ms = max(stream_time_ms, time_ms)
        start = time_ms - time_ms % WINDOW_MS
        if start + WINDOW_MS + GRACE_MS <= stream_time_ms:
            continue
        row = key + struct.pack(">QI", start, 0)
        state[row] = state.get(row, 0) + 1
        outputs[f"{key.decode()}@{start}"].append(state[row])
    return outputs, state


def _sessions(records: Records) -> Results:
    outputs = defaultdict[str, list[Any]](list)
    by_key = defaultdict[bytes, dict[tuple[int, int], int]](dict)
    stream_time_ms = -1
    for key, value in records:
        time_ms = int(value)
        stream_time_ms = max(stream_time_ms, time_ms)
        sessions = by_key[key]
        near = [
            (start, end)
            for start, end in sorted(sessions)
            if start - GAP_MS <= time_ms <= end + GAP_MS
        ]
        merged = (
            min(time_ms, *(start for start, _ in near)) if near else time_ms,
            max(time_ms, *(end for _, end in near)) if near else time_ms,
        )
        if merged[1] + GAP_MS + GRACE_MS < stream_time_ms:
            continue
        count = 1 + sum(sessions.pop(session) for session in near)
        for start, end in near if merged[0] < merged[1] else ():
            outputs[f"{key.decode()}@{start}-{end}"].append(None)  # a merged session is replaced
        sessions[merged] = count
        outputs[f"{key.decode()}@{merged[0]}-{merged[1]}"].append(count)
    state = {
        key + struct.pack(">QQ", end, start): count
        for key, sessions in by_key.items()
        for (start, end), count in sessions.items()
    }
    return outputs, state


class _Join:
    """Join of a stream with a table, which are fed in turns."""

    def __init__(self) -> None:
        self._table: dict[bytes, bytes] = {}
        self._outputs = defaultdict[str, list[Any]](list)

    def add(self, records: Records, *, table: bool) -> None:
        for key, value in records:
            if table:
                self._table[key] = value
            elif key in self._table:
                text = f"{value.decode()}+{self._table[key].decode()}"
                self._outputs[key.decode()].append(text)

    @property
    def results(self) -> Results:
        return self._outputs, dict(self._table)


COMPUTED: Final[Mapping[str, Callable[[Records], Results]]] = {
    "shard_counts": _counts,
    "shard_windows": _windows,
    "shard_sessions": _sessions,
}
JOBS: Final = (*COMPUTED, "shard_join")
#: Jobs whose databases have exactly the rows of the changelog: rows of windows expire by shard.
_KEY_VALUES: Final = ("shard_counts", "shard_join")


# -- the run ---------------------------------------------------------------------------------------


class KillRun(msgspec.Struct, eq=False):
    """Two workers with the shards of one partition, and one worker with the whole partition."""

    cluster: Cluster
    config: dict[str, Any]
    unique: str
    start_worker: StartWorker
    job: str
    seed: int = 81
    kills: int = 0
    records: int = 0
    seconds: float = 0.0
    #: Event times begin now: brokers delete old rows of window changelogs.
    begin_ms: int = msgspec.field(default_factory=lambda: time.time_ns() // 1_000_000)
    _lives: int = 0
    _workers: list[WorkerProcess] = msgspec.field(default_factory=list[WorkerProcess])

    def run(self, kills: int) -> None:
        """Feed the job while workers are killed, and compare all results."""
        # A table restored from its topic can't be divided.
        self.config["topology_optimization"] = "none"
        began_s = time.monotonic()
        join = self.job == "shard_join"
        topics = {self.source: 1, self.sink: 1, self.whole_sink: 1} | (
            {f"{self.source}-2": 1} if join else {}
        )
        self.cluster.create(topics)
        chance = random.Random(self.seed)
        self._workers = [self._started(slot) for slot in range(WORKERS)]
        whole = self.start_worker("whole")
        whole.go(
            self.job,
            self.source,
            self.whole_sink,
            self.config | {"application_id": self.whole_app},
            slot=0,
        )
        expected = self._join(chance, kills) if join else self._single(chance, kills)
        for topic in topics.keys() - {self.sink, self.whole_sink}:
            at = TopicPartition(topic, 0)
            end = self.cluster.ends(topic)[at]
            until(partial(self._has_read, self.app, at, end), f"the floor of {at} follows")
        assert [worker.stop() for worker in (*self._workers, whole)] == [0] * (WORKERS + 1)
        outputs, state = expected
        for app, sink in ((self.app, self.sink), (self.whole_app, self.whole_sink)):
            assert self._outputs(sink) == outputs, app
            rows = self.cluster.folded(f"{app}-{STORE}-changelog")
            assert {key: self._value(value) for key, (value, _) in rows.items()} == state, app
        if self.job in _KEY_VALUES:
            assert self._rows_on_disk() == state.keys()
        assert self.kills == kills
        self.seconds = time.monotonic() - began_s

    @property
    def app(self) -> str:
        return str(self.config["application_id"])

    @property
    def whole_app(self) -> str:
        return f"{self.app}-whole"

    @property
    def source(self) -> str:
        return f"in-{self.unique}"

    @property
    def sink(self) -> str:
        return f"out-{self.unique}"

    @property
    def whole_sink(self) -> str:
        return f"whole-{self.unique}"

    def _single(self, chance: random.Random, kills: int) -> Results:
        return COMPUTED[self.job](self._feed(chance, self.source, kills))

    def _join(self, chance: random.Random, kills: int) -> Results:
        """Feed the table and the stream in turns: the order of two topics is not defined."""
        join = _Join()
        turns = [False, True, False, True]
        for turn, stream in enumerate(turns):
            topic = self.source if stream else f"{self.source}-2"
            of_turn = kills * (turn + 1) // len(turns) - kills * turn // len(turns)
            join.add(self._feed(chance, topic, of_turn), table=not stream)
        return join.results

    def _feed(self, chance: random.Random, topic: str, kills: int) -> Records:
        """Write records and kill workers; return the records once all tasks have read them."""
        first = self.cluster.ends(topic)[TopicPartition(topic, 0)]
        feed = SteadyFeed(
            self.cluster,
            topic,
            lambda number: record_of(first + number, self.begin_ms),
            rate=_RECORDS_PER_S,
        )
        feed.start()
        at = TopicPartition(topic, 0)
        for _ in range(kills):
            slot = chance.randrange(WORKERS)  # slot n runs the shards with that remainder
            wanted = self._committed(at, slot) + chance.randrange(1, 2 * _RECORDS_PER_S)
            until(partial(self._reaches, at, slot, wanted), "the worker commits")
            self._workers[slot].kill()
            self._workers[slot] = self._started(slot)
            self.kills += 1
        until(lambda: len(feed.records) > _RECORDS_PER_S, "enough is written")
        feed.stop()
        self.records += len(feed.records)
        end = first + len(feed.records)
        until(
            lambda: all(self._committed(at, number) >= end for number in range(SHARDS)),
            "all shards have read all",
            3 * PATIENCE_S,
        )
        until(
            partial(self._has_read, self.whole_app, at, end), "the whole application has read all"
        )
        return feed.records

    def _has_read(self, app: str, at: TopicPartition, end: int) -> bool:
        return self.cluster.committed(app).get(at, 0) >= end

    def _committed(self, at: TopicPartition, number: int) -> int:
        return self.cluster.committed(offsets_group(self.app, Shard(number, SHARDS))).get(at, 0)

    def _reaches(self, at: TopicPartition, number: int, offset: int) -> bool:
        return self._committed(at, number) >= offset

    def _started(self, slot: int) -> WorkerProcess:
        self._lives += 1
        worker = self.start_worker(f"worker{slot}-{self._lives}")
        sharded = self.config | {"partition_shards": SHARDS}
        worker.go(self.job, self.source, self.sink, sharded, slot=slot, workers=WORKERS)
        return worker

    def _value(self, data: bytes) -> Any:
        return data if self.job == "shard_join" else number_of(data)

    def _outputs(self, sink: str) -> dict[str, list[Any]]:
        decode: Callable[[bytes], Any] = bytes.decode if self.job == "shard_join" else number_of
        return {
            key.decode(): [None if value is None else decode(value) for value in values]
            for key, values in self.cluster.values_by_key(sink).items()
        }

    def _rows_on_disk(self) -> set[bytes]:
        options = RocksDBOptions()
        resources = SharedResources.create(options)
        rows: list[bytes] = []
        for path in Path(self.config["state_dir"], self.app).glob("*/0_0-*of*"):
            database = TaskDatabase.open(path, [STORE], options, resources)
            try:
                rows += (key for key, _ in database.iterate(STORE, None, None))
            finally:
                database.close()
        assert len(rows) == len(set(rows)), "a row is in one shard only"
        return set(rows)
