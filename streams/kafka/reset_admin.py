"""The admin client of `tidewheel reset`, which alone asks where a moment stands in a topic."""

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka.admin import OffsetSpec

from rebalance.model import TopicPartition
from streams.kafka.admin import KafkaAdmin

_OFFSETS: Final[Any] = OffsetSpec  # its functions have no types


class KafkaResetAdmin(KafkaAdmin):
    """Questions and orders to the cluster, and offsets by time."""

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offset of the first record at or after a time; the end where there is none."""
        found = self._offsets(partitions, _OFFSETS.for_timestamp(timestamp_ms))
        later = [partition for partition, offset in found.items() if offset < 0]
        return found | (self.end_offsets(later) if later else {})
