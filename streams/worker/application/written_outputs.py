"""Written outputs: the records of a run in the topics of its sinks, for notebooks."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.ports import SerdePort
from tidewheel.streams.definitions.record_table import RecordTable
from tidewheel.streams.errors import StreamsError
from tidewheel.tasks.kafka.ports import Admin, RecordSource
from tidewheel.tasks.processing.api.record import Headers
from tidewheel.tasks.processing.api.topology_spec import SinkSpec, TopologySpec
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_log = logging.getLogger("tidewheel")

_POLL_RECORDS: Final = 10_000
_POLL_S: Final = 0.1
#: Seconds without an answer, or without progress, after which reading fails.
_PATIENCE_S: Final = 30.0
#: Least time to ask for the ends of the output topics.
_LOOK_UP_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRecord:
    """A committed record of an output topic, with key and value read by the sink's serdes.

    >>> OutputRecord(topic="out", partition=0, offset=7, key="a", value=1, timestamp=100).value
    1
    """

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    timestamp: int
    headers: Headers = ()


class WrittenOutputs:
    """Reader of what is written to a topology's output topics between `begin` and `read`.

    It includes the records of other writers. Topics that a function chooses are left out.
    """

    def __init__(
        self,
        spec: TopologySpec,
        *,
        make_admin: Callable[..., Admin],
        make_source: Callable[[], RecordSource],
    ) -> None:
        sinks = [
            node
            for subtopology in spec.subtopologies
            for node in subtopology.nodes
            if isinstance(node, SinkSpec) and not node.internal
        ]
        self._serdes: dict[str, tuple[SerdePort, SerdePort]] = {}
        for sink in sinks:
            if isinstance(sink.topic, str):
                self._serdes.setdefault(sink.topic, (sink.key_serde, sink.value_serde))
            else:
                _log.warning(
                    "outputs of %s are not collected: a function chooses their topics", sink.name
                )
        self._make_source = make_source
        #: Opens an admin client with `timeout_s`.
        self._make_admin = make_admin
        self._starts: Mapping[TopicPartition, int] = {}

    def begin(self, timeout_s: float = _PATIENCE_S) -> None:
        """Store the ends of the topics; raise `UnansweredError` if no broker sends them in time."""
        self._starts = self._ends(min(max(timeout_s, _LOOK_UP_S), _PATIENCE_S))

    def read(self) -> RecordTable[OutputRecord]:
        """Return the committed records since `begin`, by topic, partition and offset.

        Raises `StreamsError` if the brokers do not return them.
        """
        ends = self._ends(_PATIENCE_S)
        positions = {
            partition: self._starts.get(partition, 0)
            for partition, end in ends.items()
            if end > self._starts.get(partition, 0)
        }
        if not positions:
            return RecordTable()
        source = self._make_source()
        try:
            source.assign(positions)
            records = [record for run in self._runs(source, ends, positions) for record in run]
        finally:
            source.close()
        return RecordTable(
            sorted(records, key=lambda record: (record.topic, record.partition, record.offset))
        )

    def _runs(
        self,
        source: RecordSource,
        ends: Mapping[TopicPartition, int],
        positions: dict[TopicPartition, int],
    ) -> Iterator[Iterator[OutputRecord]]:
        until_s = time.monotonic() + _PATIENCE_S
        while any(position < ends[partition] for partition, position in positions.items()):
            runs = source.poll(_POLL_RECORDS, _POLL_S)
            yield from (self._records(run, ends) for run in runs)
            after = {**positions, **source.positions()}
            if after != positions:
                until_s = time.monotonic() + _PATIENCE_S
                positions.update(after)
            elif time.monotonic() > until_s:
                raise StreamsError(
                    f"the outputs could not be read within {_PATIENCE_S:.0f} s; they are committed: read their topics "
                    "with a consumer"
                )

    def _records(
        self, run: SourceRecords, ends: Mapping[TopicPartition, int]
    ) -> Iterator[OutputRecord]:
        key_serde, value_serde = self._serdes[run.topic]
        for index, offset in enumerate(run.offsets):
            if offset >= ends[TopicPartition(run.topic, run.partition)]:
                return
            key, value = run.raw_keys[index], run.raw_values[index]
            yield OutputRecord(
                topic=run.topic,
                partition=run.partition,
                offset=offset,
                key=None if key is None else key_serde.deserialize(run.topic, key),
                value=None if value is None else value_serde.deserialize(run.topic, value),
                timestamp=run.timestamps[index],
                headers=() if run.headers is None else run.headers[index],
            )

    def _ends(self, timeout_s: float) -> dict[TopicPartition, int]:
        with closing(self._make_admin(timeout_s=timeout_s)) as admin:
            topics = admin.list_topics()
            partitions = [
                TopicPartition(topic, number)
                for topic in sorted(self._serdes)
                for number in range(topics.get(topic, 0))
            ]
            return admin.end_offsets(partitions) if partitions else {}
