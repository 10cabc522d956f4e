"""The admin client of `tidewheel reset`, which alone asks where a moment stands in a topic."""

from collections.abc import Sequence

from rebalance.model import TopicPartition
from streams.kafka.admin import KafkaAdmin


class KafkaResetAdmin(KafkaAdmin):
    """Questions and orders to the cluster, and offsets by time."""

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time; the end where there is none."""
        return self._offsets_at(dict.fromkeys(partitions, timestamp_ms))
