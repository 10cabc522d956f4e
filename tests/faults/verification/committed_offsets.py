"""Every commit of a group, read from Kafka's own topic `__consumer_offsets`."""

import struct
from collections.abc import Iterator

from tests.integration.cluster import Cluster
from tidewheel.rebalance.model import TopicPartition

#: Versions of an offset's key (Kafka's `OffsetCommitKey`); 2 is a group's metadata.
_OFFSET_KEYS = (0, 1)
_WITH_LEADER_EPOCH = 3
_COMPACT = 4


def offset_commits(cluster: Cluster, group: str) -> Iterator[tuple[TopicPartition, int]]:
    """Yield partition and offset of each decided commit of ours, in order; others lack metadata."""
    for record in cluster.read("__consumer_offsets"):
        key = _Reader(record.key)
        if key.number(">h") not in _OFFSET_KEYS or record.value is None:
            continue
        if key.text() == group:
            partition = TopicPartition(key.text(), key.number(">i"))
            value = _Reader(record.value)
            version, offset = value.number(">h"), value.number(">q")
            if version >= _WITH_LEADER_EPOCH:
                value.number(">i")
            # A compact string begins with its length plus one, as a variable-length number.
            if value.number(">B") > 1 if version >= _COMPACT else value.number(">h") > 0:
                yield partition, offset


class _Reader:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self._at = data, at

    def number(self, layout: str) -> int:
        (number,) = struct.unpack_from(layout, self._data, self._at)
        self._at += struct.calcsize(layout)
        return int(number)

    def text(self) -> str:
        size = self.number(">h")
        self._at += size
        return self._data[self._at - size : self._at].decode()
