"""What programs are told of where state is: `HostInfo`, `KeyQueryMetadata`, `StreamsMetadata` (KIP-67, KIP-535)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.processing.api.record import Headers

#: Chooses a partition by the record's headers as well: (topic, key, value, headers, partitions).
PartitionerWithHeaders = Callable[[str, Any, Any, Headers, int], int | Iterable[int] | None]


class HostInfo(NamedTuple):
    """Where a process answers queries: its `application_server`, split.

    >>> HostInfo.of("shop-3:8080")
    HostInfo(host='shop-3', port=8080)
    >>> print(HostInfo.of("[::1]:8080"))
    [::1]:8080
    """

    host: str
    port: int

    @classmethod
    def of(cls, endpoint: str) -> "HostInfo":
        """Return what a checked 'host:port' says; an IPv6 address stands in brackets there, and without them here."""
        host, _, port = endpoint.rpartition(":")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyQueryMetadata:
    """Who has the state of a key; it says nothing about whether the key is there.

    Attributes:
        active_host: Who processes the key and reads its own writes; None while nobody does, or if that process has no
            `application_server`.
        standby_hosts: Who has a copy (a standby or a learner), a little behind: for `store(name, stale=True)`.
        partition: The key's partition; None for a global store, and while the group does not know its tasks yet.

    >>> KeyQueryMetadata(active_host=HostInfo("shop-3", 8080), standby_hosts=frozenset(), partition=2).partition
    2
    """

    active_host: HostInfo | None
    standby_hosts: frozenset[HostInfo]
    partition: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMetadata:
    """What one process of the application has.

    Attributes:
        host_info: Where it answers.
        state_store_names: Stores of the tasks it processes, and the global stores.
        topic_partitions: Input of these tasks.
        standby_state_store_names: Stores it has copies of.
        standby_topic_partitions: Input of the tasks that the copies are of.

    >>> StreamsMetadata(host_info=HostInfo("shop-3", 8080), state_store_names=frozenset({"counts"})).topic_partitions
    frozenset()
    """

    host_info: HostInfo
    state_store_names: frozenset[str] = frozenset()
    topic_partitions: frozenset[TopicPartition] = field(default=frozenset[TopicPartition]())
    standby_state_store_names: frozenset[str] = frozenset()
    standby_topic_partitions: frozenset[TopicPartition] = field(default=frozenset[TopicPartition]())
