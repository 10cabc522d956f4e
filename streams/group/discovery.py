"""Key discovery: finds the owner of a key in the group log; no I/O.

The rules are those of Kafka Streams' StreamsMetadataState. A process appears under its
`application_server`, or not at all. It has a task until it has released it.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final, cast

from tidewheel.rebalance.model import TaskId, TaskPhase, TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import MemberRecord
from tidewheel.state_stores.layout.headers import as_headers
from tidewheel.state_stores.stores.windowed import Windowed
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.key_metadata import (
    HostInfo,
    KeyQueryMetadata,
    PartitionerWithHeaders,
    StreamsMetadata,
)
from tidewheel.streams.serdes import SerdeLike, as_serde
from tidewheel.streams.serdes.partitioning import WindowedPartitioner, partition_of
from tidewheel.streams.serdes.windowed import is_windowed
from tidewheel.streams.user_functions import accepts
from tidewheel.tasks.kafka.internal_topics import topics_read
from tidewheel.tasks.key_ranges.key_ranges import shard_of
from tidewheel.tasks.processing.api.topology_spec import Partitioner, SubtopologySpec, TopologySpec

_PLAIN_ARGUMENTS: Final = 4
#: Phases in which the owner's store can be read.
_READABLE: Final = (TaskPhase.RUNNING, TaskPhase.REVOKING)


def partitioner_of(serde: SerdeLike[Any]) -> Partitioner:
    """Return Kafka's partitioner for keys of a serde; windowed keys use the inner key."""
    full = as_serde(serde, "key_serde", error=StreamsError)
    if is_windowed(full):
        return WindowedPartitioner(full)

    def choose(topic: str, key: Any, _value: Any, partitions: int) -> int | None:
        data = full.serialize(topic, key)
        return None if data is None else partition_of(data, partitions)

    return choose


def where_is(
    group: Group,
    spec: TopologySpec,
    application_id: str,
    store: str,
    key: object,
    choose: Partitioner,
    here: HostInfo | None,
) -> KeyQueryMetadata:
    """Return the hosts of a key's state.

    Args:
        choose: The partitioner of the store's input topic.
        here: The asking process, preferred for global stores.

    Raises:
        InvalidStateStoreError: There is no such store.
        StreamsError: The key is None, or the partitioner did not choose one partition.
    """
    subtopology = spec.place_of(store)
    if key is None:
        raise StreamsError(f"store {store}: the key is None; give a key that the store could have")
    if subtopology is None:
        hosts = sorted(_hosts(group, group.members))
        return KeyQueryMetadata(
            active_host=here or next(iter(hosts), None), standby_hosts=frozenset(), partition=None
        )
    tasks = [task for task in group.tasks if task.subtopology == subtopology.id]
    count = len({task.partition for task in tasks})
    if not count:
        return KeyQueryMetadata(active_host=None, standby_hosts=frozenset(), partition=None)
    counts = group.about.partitions
    topic = max(_topics(group, subtopology, application_id), key=lambda name: counts.get(name, 0))
    partition = _only(choose(topic, key, None, count), count, store, key)
    task = _task_of(tasks, partition, subtopology, store, key)
    owners = _hosts(group, _owner(group, task))
    copies = _hosts(group, (copy.incarnation for copy in group.step.copies(task)))
    return KeyQueryMetadata(
        active_host=next(iter(owners), None), standby_hosts=copies - owners, partition=partition
    )


def _task_of(
    tasks: Iterable[TaskId], partition: int, subtopology: SubtopologySpec, store: str, key: object
) -> TaskId:
    """Return the task with a key, given its partition."""
    parts = [task for task in tasks if task.partition == partition]
    if len(parts) == 1:
        return parts[0]
    (serde,) = (spec.key_serde for spec in subtopology.stores if spec.name == store)
    inner: Any = cast("Any", key).key if isinstance(key, Windowed) else key
    shard = shard_of(serde.serialize(store, inner) or b"", len(parts))
    return TaskId(subtopology.id, partition, shard)


def owner_of(group: Group, task: TaskId) -> MemberRecord | None:
    """Return the member that runs a task; None while it has none."""
    records = (group.members.get(incarnation) for incarnation in _owner(group, task))
    return next((record for record in records if record is not None), None)


def copy_owners(group: Group, task: TaskId) -> list[MemberRecord]:
    """Return the members with a standby or learner of a task."""
    records = (group.members.get(copy.incarnation) for copy in group.step.copies(task))
    return [record for record in records if record is not None]


def all_clients(group: Group, spec: TopologySpec, application_id: str) -> list[StreamsMetadata]:
    """Return the stores and inputs of each process with an `application_server`."""
    everywhere = frozenset(entry.store.name for entry in spec.global_stores)
    subtopologies = {subtopology.id: subtopology for subtopology in spec.subtopologies}
    tasks = [task for task in sorted(group.tasks) if task.subtopology in subtopologies]
    owned = {task: _hosts(group, _owner(group, task)) for task in tasks}
    copied = {
        task: _hosts(group, (copy.incarnation for copy in group.step.copies(task))) - owned[task]
        for task in tasks
    }

    def stores(host: HostInfo, places: dict[TaskId, frozenset[HostInfo]]) -> frozenset[str]:
        numbers = {task.subtopology for task in tasks if host in places[task]}
        return frozenset(store.name for number in numbers for store in subtopologies[number].stores)

    def inputs(
        host: HostInfo, places: dict[TaskId, frozenset[HostInfo]]
    ) -> frozenset[TopicPartition]:
        return frozenset(
            TopicPartition(topic, task.partition)
            for task in tasks
            if host in places[task]
            for topic in _topics(group, subtopologies[task.subtopology], application_id)
            if task.partition < group.about.partitions.get(topic, 0)
        )

    return [
        StreamsMetadata(
            host_info=host,
            state_store_names=stores(host, owned) | everywhere,
            topic_partitions=inputs(host, owned),
            standby_state_store_names=stores(host, copied),
            standby_topic_partitions=inputs(host, copied),
        )
        for host in sorted(_hosts(group, group.live()))
    ]


def _topics(group: Group, subtopology: SubtopologySpec, application_id: str) -> list[str]:
    read = topics_read(subtopology, application_id, group.about.partitions)
    return sorted({topic for topics in read.values() for topic in topics})


def _owner(group: Group, task: TaskId) -> tuple[str, ...]:
    state = group.states.get(task)
    if state is None or state.owner is None or group.phase_of(task) not in _READABLE:
        return ()
    return (state.owner,)


def _hosts(group: Group, incarnations: Iterable[str]) -> frozenset[HostInfo]:
    records = (group.members.get(incarnation) for incarnation in incarnations)
    return frozenset(
        HostInfo.of(record.endpoint) for record in records if record is not None and record.endpoint
    )


def _only(partitions: Any, count: int, store: str, key: object) -> int:
    chosen: AbstractSet[Any] = (
        frozenset()
        if partitions is None
        else {partitions}
        if isinstance(partitions, int)
        else set(partitions)
    )
    if len(chosen) == 1:
        (partition,) = chosen
        if isinstance(partition, int) and 0 <= partition < count:
            return partition
    raise StreamsError(
        f"store {store}: key {key!r} must be in one partition of 0 to {count - 1}, but its partitioner chose "
        f"{sorted(chosen, key=repr) or 'none'}; give the partitioner that the store's input is written with"
    )


def without_headers(
    partitioner: Partitioner | PartitionerWithHeaders, headers: object
) -> Partitioner:
    """Return a partitioner of four parameters; passes these headers to one of five.

    >>> without_headers(lambda topic, key, value, headers, count: len(headers), (("a", b""),))("in", "k", None, 9)
    1
    """
    if accepts(partitioner, _PLAIN_ARGUMENTS):
        return cast("Partitioner", partitioner)
    try:
        kafka_headers = as_headers(headers)
    except TypeError as error:
        raise StreamsError(f"query_metadata_for_key: {error}") from error
    choose = cast("PartitionerWithHeaders", partitioner)
    return lambda topic, key, value, partitions: choose(
        topic, key, value, kafka_headers, partitions
    )
