"""Layers of keys: few long runs instead of many short ones where inputs interleave finely.

Operators of a keyed task use the rows of a record's own key only. So only the order within each
key matters. A slab of records in canonical order is divided into layers: each layer has one run
per input, and a key goes on to the next layer where its next record is from an earlier input.
Outputs are sorted back into the order of their input records.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.key_ranges.keyed_analysis import counted, keyedness
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords
from tidewheel.tasks.task.active_task import ActiveTask

#: Records of a run, on average, from which on runs are processed as they are.
_LONG_RUN: Final = 50


def can_layer(task: ActiveTask) -> bool:
    """Return True if layers change no result of the task and may be faster."""
    graph = task.processing.graph
    # Restores of a table's store from its topic do not matter here.
    stores = tuple(replace(store, source_topic=None) for store in task.plan.spec.stores)
    spec = replace(task.plan.spec, stores=stores)
    topics = [sink.topic for sink in spec.sinks]
    return (
        len(task.inputs) > 1
        and graph.batched
        # Such a graph accepts interleaved inputs in one batch.
        and not graph.takes_joint
        and all(buffer.decode_ahead is None for buffer in task.group.buffers.values())
        # Outputs for a topic are sorted, so they must come from one sink.
        and all(isinstance(topic, str) for topic in topics)
        and len(set(topics)) == len(topics)
        and keyedness(spec).keyed
        # Operators that judge lateness need the stream time at each record.
        and counted(spec) is None
    )


def layers(
    keys: Sequence[Sequence[bytes | None]], places: Sequence[Sequence[int]]
) -> Iterator[tuple[int, list[int]]]:
    """Yield runs: an input's number and its rows.

    `keys` and `places`, each record's place among all, are columns by input.

    >>> list(layers([[b"a", b"b", b"a"], [b"a", b"b"]], [[0, 1, 4], [2, 3]]))
    [(0, [0, 1]), (1, [0, 1]), (0, [2])]
    """
    count = len(keys)
    slots: list[list[int]] = []
    last: dict[bytes | None, int] = {}
    for number, row, key in _in_order(keys, places):
        slot = last.get(key, number)
        step = number - slot % count
        slot += step if step >= 0 else step + count
        last[key] = slot
        while len(slots) <= slot:
            slots.append([])
        slots[slot].append(row)
    for slot, rows in enumerate(slots):
        if rows:
            yield slot % count, rows


def _in_order(
    keys: Sequence[Sequence[bytes | None]], places: Sequence[Sequence[int]]
) -> list[tuple[int, int, bytes | None]]:
    ordered: list[tuple[int, int, bytes | None]] = [(0, 0, None)] * sum(map(len, keys))
    for number, (column, own_places) in enumerate(zip(keys, places, strict=True)):
        for row, (key, place) in enumerate(zip(column, own_places, strict=True)):
            ordered[place] = (number, row, key)
    return ordered


class LayeredRuns:
    """Processes the next records of a task in layers of keys."""

    def __init__(self, task: ActiveTask, collector: OutputCollector) -> None:
        self._task = task
        self._collector = collector

    def process(self, limit: int) -> int:
        slab = self._task.group.pop_joint(limit)
        columns = [places for _, places in slab]
        if len(slab) < 2 or _run_count(columns) * _LONG_RUN < sum(map(len, columns)):  # noqa: PLR2004 - one input
            for number, run in _runs(columns):
                self._task.process_records(slab[number][0].slice(run.start, run.stop))
            return sum(map(len, columns))
        assert not self._collector.staged, "the outputs of earlier records are drained"
        for number, rows in layers([records.raw_keys for records, _ in slab], columns):
            records = slab[number][0]
            self._task.process_records(records if len(rows) == len(records) else records.take(rows))
        for records, _ in slab:
            at = TopicPartition(records.topic, records.partition)
            self._task.next_offsets[at] = records.end_offset
        outputs = self._collector.pop_staged()
        self._collector.staged += in_order_of_input(outputs, slab)
        return sum(map(len, columns))


def _run_count(columns: Sequence[Sequence[int]]) -> int:
    """Return the number of runs of consecutive places."""
    return sum(1 + sum(map(_is_gap, places, places[1:])) for places in columns if len(places))


def _is_gap(place: int, following: int) -> bool:
    return following != place + 1


def _runs(columns: Sequence[Sequence[int]]) -> Iterator[tuple[int, range]]:
    """Yield runs of consecutive places in order: an input's number and its rows."""
    starts: list[tuple[int, int, range]] = []
    for number, places in enumerate(columns):
        begin = 0
        for row in range(1, len(places) + 1):
            if row == len(places) or _is_gap(places[row - 1], places[row]):
                starts.append((places[begin], number, range(begin, row)))
                begin = row
    for _, number, rows in sorted(starts, key=lambda run: run[0]):
        yield number, rows


def in_order_of_input(
    outputs: Sequence[OutputColumns], slab: Sequence[tuple[SourceRecords, Sequence[int]]]
) -> list[OutputColumns]:
    """Return the outputs joined by topic, in the order of their input records."""
    by_topic: dict[str, list[OutputColumns]] = {}
    for columns in outputs:
        by_topic.setdefault(columns.topic, []).append(columns)
    place_of = {
        records.topic: dict(zip(records.offsets, places, strict=True)) for records, places in slab
    }
    return [_sorted(parts, place_of) for parts in by_topic.values()]


def _sorted(parts: list[OutputColumns], place_of: dict[str, dict[int, int]]) -> OutputColumns:
    places: list[int] = []
    for part in parts:
        if part.source_topic is None or part.source_offsets is None:
            # Dead letters: behind the previous output.
            places += [places[-1] if places else 0] * len(part)
        else:
            places += map(place_of[part.source_topic].__getitem__, part.source_offsets)
    order = sorted(range(len(places)), key=places.__getitem__)
    with_headers = any(part.headers is not None for part in parts)
    keys = list(chain.from_iterable(part.keys for part in parts))
    values = list(chain.from_iterable(part.values for part in parts))
    timestamps = list(chain.from_iterable(part.timestamps for part in parts))
    headers = list(chain.from_iterable(part.headers or [()] * len(part) for part in parts))
    partitions = list(
        chain.from_iterable(
            [part.partitions] * len(part) if isinstance(part.partitions, int) else part.partitions
            for part in parts
        )
    )
    return replace(
        parts[0],
        partitions=list(map(partitions.__getitem__, order)),
        keys=list(map(keys.__getitem__, order)),
        values=list(map(values.__getitem__, order)),
        timestamps=list(map(timestamps.__getitem__, order)),
        headers=list(map(headers.__getitem__, order)) if with_headers else None,
        source_topic=None,
        source_partition=None,
        source_offsets=None,
    )
