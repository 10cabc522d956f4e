"""Metadata of key queries (KIP-67, KIP-535)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.api.record import Headers

#: Parameters: topic, key, value, headers, partition count.
PartitionerWithHeaders = Callable[[str, Any, Any, Headers, int], int | Iterable[int] | None]


class HostInfo(NamedTuple):
    """Host and port of a process: its `application_server`.

    >>> HostInfo.of("shop-3:8080")
    HostInfo(host='shop-3', port=8080)
    >>> print(HostInfo.of("[::1]:8080"))
    [::1]:8080
    """

    host: str
    port: int

    @classmethod
    def of(cls, endpoint: str) -> "HostInfo":
        """Parse a checked 'host:port'; an IPv6 address loses its brackets."""
        host, _, port = endpoint.rpartition(":")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQueryMetadata:
    """Owner of a key's state; the key need not exist.

    Attributes:
        active_host: The process that processes the key; None without an owner or `application_server`.
        standby_hosts: Processes with a copy, which may lag: for `store(name, stale=True)`.
        partition: The key's partition; None for a global store, and before the group knows its tasks.

    >>> KeyQueryMetadata(active_host=HostInfo("shop-3", 8080), standby_hosts=frozenset(), partition=2).partition
    2
    """

    active_host: HostInfo | None
    standby_hosts: frozenset[HostInfo]
    partition: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMetadata:
    """State of one process of the application.

    Attributes:
        state_store_names: Stores of the tasks it processes, and the global stores.
        topic_partitions: Input of these tasks.
        standby_state_store_names: Stores it has copies of.
        standby_topic_partitions: Input of the copied tasks.

    >>> StreamsMetadata(host_info=HostInfo("shop-3", 8080), state_store_names=frozenset({"counts"})).topic_partitions
    frozenset()
    """

    host_info: HostInfo
    state_store_names: frozenset[str] = frozenset()
    topic_partitions: frozenset[TopicPartition] = field(default=frozenset[TopicPartition]())
    standby_state_store_names: frozenset[str] = frozenset()
    standby_topic_partitions: frozenset[TopicPartition] = field(default=frozenset[TopicPartition]())
