"""Bench for one split task in one thread: any interleaving, commits, crashes, new ranges.

Each range has its own graph and stores over the task's one database. The bench compares operators
and stores in ranges with the whole task.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from tests.fakes.clock import FakeClock
from tests.tasks.task.outputs import collector_of
from tidewheel import StreamsConfig, Topology
from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.buffers.commit_buffer import Drained, RestoreExtras, write_rows
from tidewheel.state_stores.buffers.expiry import StoreExpiry
from tidewheel.state_stores.in_memory import InMemoryDatabase
from tidewheel.state_stores.spec import SEGMENTED_KINDS
from tidewheel.state_stores.stores.factory import Store, make_store
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.key_ranges.key_ranges import KeyRanges, key_hash
from tidewheel.tasks.key_ranges.keyed_analysis import counted, keyedness
from tidewheel.tasks.processing.engine.position_clock import NO_TIME, PositionClock
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.processing.engine.source import SourceNode
from tidewheel.tasks.processing.engine.task_processing import TaskProcessing, TaskSetting

APP = "ranges"

#: (topic, key, value, timestamp) of an input record, as bytes.
Row = tuple[str, bytes | None, bytes | None, int]
#: (topic, key, value, timestamp) of an output record.
Out = tuple[str, bytes | None, bytes | None, int]


@dataclass
class Range:
    """One range: its graph, unfinished positions and outputs."""

    processing: TaskProcessing
    stores: dict[str, Store]
    collector: OutputCollector
    queue: deque[tuple[int, SourceRecords]] = field(
        default_factory=deque[tuple[int, SourceRecords]]
    )
    #: Outputs up to the last commit, and how many of those staged are committed.
    out: list[Out] = field(default_factory=list)
    staged: int = 0
    #: First position that no commit contains.
    committed: int = 0


class RangeBench:
    """Sub-topology of the first topic, with inputs in partition 0, split into ranges.

    Args:
        count: Number of ranges; 0 runs without the parts of ranges, as at factor 1.
        cache_bytes: See `statestore_cache_max_bytes`.
    """

    def __init__(
        self, topology: Topology, topics: Sequence[str], count: int, *, cache_bytes: int = 0
    ) -> None:
        self.config = StreamsConfig(
            application_id=APP,
            bootstrap_servers="unused:9092",
            statestore_cache_max_bytes=cache_bytes,
        )
        self.clock = FakeClock()
        self.plan = plan_application(topology.spec(self.config), APP, dict.fromkeys(topics, 1))
        self.spec = next(
            each.spec
            for each in self.plan.subtopologies.values()
            if topics[0] in each.spec.sources[0].topics
        )
        assert keyedness(self.spec).keyed, keyedness(self.spec).reason
        self.database = InMemoryDatabase([store.name for store in self.spec.stores])
        self.sources = {
            topic: SourceNode(source, self._refused, lambda *_: None)
            for source in self.spec.sources
            for topic in source.topics
        }
        self.ranges: list[Range] = []
        self.log: list[tuple[Row, int]] = []
        self._offsets = dict.fromkeys(topics, 0)
        self._lowest_times: tuple[int, ...] = ()
        self._stream_time = NO_TIME
        self.done: list[Out] = []
        self.begin(count)

    def begin(self, count: int) -> None:
        """Start from the committed state and distribute each position as before."""
        self.cut = KeyRanges.even(max(count, 1))
        self.in_ranges = count > 0
        before = [each.committed for each in self.ranges]
        self.ranges = [self._range() for _ in range(len(self.cut))]
        self.expiry = {
            store.name: StoreExpiry(store, self.database)
            for store in self.spec.stores
            if store.kind in SEGMENTED_KINDS
        }
        lowest = min(before, default=0)
        if len(before) != len(self.ranges):
            assert all(position == lowest for position in before), "ranges are cut again when level"
            before = [lowest] * len(self.ranges)
        self.position = lowest
        which = counted(self.spec) if self.in_ranges else None
        started = self.ranges[0].processing.position_time_ms(self._stream_time)
        self.position_clock = None if which is None else PositionClock(which, started)
        self._times = [started]
        self._first = lowest
        for each, position in zip(self.ranges, before, strict=True):
            each.committed = position
        for row, offset in self.log[lowest:]:
            self._hand_out(row, offset)

    def _range(self) -> Range:
        collector = collector_of()
        assert collector.policy is not None
        stores: dict[str, Store] = {}
        processing = TaskProcessing(
            TaskId(self.spec.id, 0),
            self.spec,
            TaskSetting(
                application_id=APP, topic_prefix="", state_dir=Path(), now_ms=self.clock.now_ms
            ),
            stores=stores,
            collector=collector,
            policy=collector.policy,
            figures=dict,
        )
        for spec in self.spec.stores:
            stores[spec.name] = make_store(
                spec,
                self.database,
                topic=spec.name,
                read_cache_bytes=1 << 20,
                now=processing.record_timestamp,
                is_cached=spec.caching and self.config.statestore_cache_max_bytes > 0,
                in_range=self.in_ranges,
            )
        processing.begin(self._stream_time, self._lowest_times)
        return Range(processing, stores, collector)

    @staticmethod
    def _refused(_records: SourceRecords, _row: int, error: Exception) -> None:
        raise error

    # -- input -----------------------------------------------------------------------------------------------------

    def send(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if row[0] not in self.sources:
                continue
            offset = self._offsets[row[0]]
            self._offsets[row[0]] += 1
            self.log.append((row, offset))
            self._hand_out(row, offset)

    def _hand_out(self, row: Row, offset: int) -> None:
        topic, key, value, timestamp = row
        records = SourceRecords(topic, 0, [offset], [key], [value], [timestamp], None)
        if self.position_clock is not None:
            source = self.sources[topic]
            batch = source.decode(records, NO_TIME)
            records.position_times = self.position_clock.times(source.spec.name, records, batch)
            self._times.append(self.position_clock.time_ms)
        owner = self.ranges[self.cut.index_of(key_hash(key, offset))]
        if self.position >= owner.committed:
            owner.queue.append((self.position, records))
        self.position += 1

    # -- work ------------------------------------------------------------------------------------------------------

    def work(self, index: int, records: int) -> None:
        """Process `count` records of a range; one batch per topic."""
        each = self.ranges[index % len(self.ranges)]
        taken = [each.queue.popleft()[1] for _ in range(min(records, len(each.queue)))]
        for topic, runs in groupby(taken, attrgetter("topic")):
            source = self.sources[topic]
            each.processing.graph.run(source.spec.name, source.decode(_joined(list(runs)), NO_TIME))

    def commit(self) -> None:
        changes: dict[str, list[Drained]] = {}
        for each in self.ranges:
            each.processing.graph.flush()
        position = min(map(self._next_of, self.ranges))
        for each in self.ranges:
            for name, store in each.stores.items():
                if store.buffer.has_changes():
                    changes.setdefault(name, []).append(store.buffer.drain())
        lowest = NO_TIME if self.position_clock is None else self._times[position - self._first]
        for name, drained_ones in changes.items():
            for drained in drained_ones:
                self._write(name, drained, lowest)
        for each in self.ranges:
            for store in each.stores.values():
                store.buffer.applied()
            each.out += self._staged(each)[each.staged :]
            each.staged = len(self._staged(each))
            each.committed = self._next_of(each)
        first = self.ranges[0].processing
        self._lowest_times = (
            first.operator_times_at(lowest) if self.in_ranges else first.operator_times_ms()
        )
        stamps = (row[3] for row, _ in self.log[:position])
        self._stream_time = max(stamps, default=NO_TIME)

    def _write(self, name: str, drained: Drained, lowest: int) -> None:
        extra: Drained | RestoreExtras = drained
        if self.in_ranges and name in self.expiry:
            assert drained.delete_range is None, "a range deletes nothing"
            extra = self.expiry[name].extras([drained], lowest)
        write_rows(self.database, {name: drained.stored}, {}, {name: extra})

    def _next_of(self, each: Range) -> int:
        return each.queue[0][0] if each.queue else self.position

    @staticmethod
    def _staged(each: Range) -> list[Out]:
        return [
            (columns.topic, *row)
            for columns in each.collector.staged
            for row in zip(columns.keys, columns.values, columns.timestamps, strict=True)
        ]

    # -- crashes and ends ------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.done += [out for each in self.ranges for out in each.out]
        self.begin(len(self.ranges) if self.in_ranges else 0)

    def finish(self) -> None:
        for index in range(len(self.ranges)):
            self.work(index, len(self.log))
        self.commit()

    def repartition(self, count: int) -> None:
        self.finish()
        self.done += [out for each in self.ranges for out in each.out]
        self.begin(count)

    def outputs(self) -> list[Out]:
        return self.done + [out for each in self.ranges for out in each.out]

    def rows(self) -> dict[str, list[tuple[bytes, bytes]]]:
        return {
            store.name: list(self.database.iterate(store.name, None, None))
            for store in self.spec.stores
        }


def by_key(outputs: Sequence[Out]) -> dict[tuple[str, bytes | None], list[Out]]:
    found: dict[tuple[str, bytes | None], list[Out]] = {}
    for out in outputs:
        found.setdefault(out[:2], []).append(out)
    return found


def _joined(runs: list[SourceRecords]) -> SourceRecords:
    times = [run.position_times[0] for run in runs if run.position_times is not None]
    return SourceRecords(
        runs[0].topic,
        0,
        [run.offsets[0] for run in runs],
        [run.raw_keys[0] for run in runs],
        [run.raw_values[0] for run in runs],
        [run.timestamps[0] for run in runs],
        None,
        position_times=times or None,
    )
