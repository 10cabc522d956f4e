"""Outputs and error policies for tests of sinks."""

from collections.abc import Callable
from typing import Any

from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.kafka.ports import RecordSource, SinkProducer
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers, ErrorPolicy
from tidewheel.tasks.processing.engine.output import OutputColumns

T = 1_700_000_000_000


class Topics:
    """`TopicInfo` with three partitions per topic."""

    def __init__(self, limits: dict[str, int] | None = None) -> None:
        self.limits = {} if limits is None else limits

    def partition_count(self, topic: str) -> int:
        return 3

    def message_bytes_max(self, topic: str) -> int:
        return self.limits.get(topic, 1_048_588)

    def message_bytes_max_now(self, topic: str) -> int:
        return self.limits.get(topic, 1_048_588)


def collector_of(
    handlers: ErrorHandlers | None = None,
    *,
    sinks: SinkProducer | None = None,
    limits: dict[str, int] | None = None,
    make_input_reader: Callable[[], RecordSource] | None = None,
) -> OutputCollector:
    collector = OutputCollector(Topics(limits), sinks, make_input_reader)
    collector.policy = ErrorPolicy(
        handlers or ErrorHandlers(), lambda columns: collector.add(columns, internal=False)
    )
    return collector


def columns_of(topic: str, *values: bytes | None, **changes: Any) -> OutputColumns:
    """Return outputs of the records at offsets 100, 101, ... of in-0."""
    count = len(values)
    return OutputColumns(
        **{
            "topic": topic,
            "partitions": 0,
            "keys": [b"k%d" % index for index in range(count)],
            "values": list(values),
            "timestamps": [T + index for index in range(count)],
            "node": f"sink-{topic}",
            "task_id": "0_0",
            "source_topic": "in",
            "source_partition": 0,
            "source_offsets": list(range(100, 100 + count)),
            **changes,
        }
    )
