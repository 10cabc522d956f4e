"""Reasons against a backfill, and differences from live workers that the user must accept. Pure."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.bulk.backfill.history import GAP, OVERLAP, TIES
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.operators.aggregate import CountsInPlace, StreamAggregate, StreamReduce
from tidewheel.streams.operators.tables.table import TableSource
from tidewheel.streams.operators.tables.table_groups import TableAggregate
from tidewheel.streams.operators.windows.windowed import WindowedOperator
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, SubtopologyPlan
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SourceSpec
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier

WALL_CLOCK: Final = "wall-clock"
CACHE: Final = "cache"
ORDER: Final = "order"
RETENTION: Final = "retention"
CUT_AT_END: Final = "cut-at-end"

#: What `accept` may name.
REASONS: Final = (WALL_CLOCK, CACHE, ORDER, RETENTION, GAP, OVERLAP, TIES, CUT_AT_END)

#: Their results may depend on the order of a key's records.
_IN_ORDER: Final = (StreamAggregate, StreamReduce, TableAggregate, TableSource, WindowedOperator)

#: They fold each record that they get, also if it only replaces an earlier one.
_FOLDS: Final = (StreamAggregate, StreamReduce, CountsInPlace, WindowedOperator)

#: Most topics named in a message.
_NAMED: Final = 8


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose results may differ from those of live workers, or a topic.

    Attributes:
        reason: Name by which the user accepts it.
        node: Node, with the user's line, or topic.
    """

    reason: str
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.node}: {self.text}"


def objections_to_topology(plan: ApplicationPlan) -> Iterator[str]:
    """Yield the reasons why a backfill can't hand over this topology's state."""
    read = {topic for planned in plan.subtopologies.values() for topic in planned.topic_partitions}
    read |= {store.topic for store in plan.global_stores}
    for planned in plan.subtopologies.values():
        for store in planned.spec.stores:
            if store.kind is StoreKind.CUSTOM:
                yield f"store {store.name} is of your own class, whose content a backfill can't write; fill it yourself"
            elif not store.logging and store.source_topic is None:
                yield (
                    f"store {store.name} has no changelog (logging=False), from which workers would restore it; turn logging "
                    "on"
                )
        for sink in planned.spec.sinks:
            if not sink.internal and isinstance(sink.topic, str) and sink.topic in read:
                yield (
                    f"{sink.name} writes to {sink.topic}, which the topology also reads: its records would be read twice; "
                    "use repartition() in between, or another topic"
                )


def objections_to_cluster(
    application_id: str,
    committed: Iterable[TopicPartition],
    filled: Iterable[str],
) -> Iterator[str]:
    """Yield the reasons why this application has begun already.

    `committed`: inputs with committed offsets; `filled`: internal topics with records.
    """
    inputs, topics = sorted(committed), sorted(filled)
    reset = f"stop it and run `tidewheel reset {application_id}`, or backfill under another application_id"
    if inputs:
        yield f"{application_id} has committed offsets of {_some(map(str, inputs))}; {reset}"
    if topics:
        yield f"{_some(topics)} of {application_id} {'has' if len(topics) == 1 else 'have'} records; {reset}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + more


def check_accepted(accept: Iterable[str]) -> frozenset[str]:
    """Return the accepted reasons; raise `ConfigError` for an unknown one.

    >>> sorted(check_accepted(["order"]))
    ['order']
    """
    accepted = frozenset(accept)
    unknown = sorted(accepted.difference(REASONS))
    if unknown:
        raise ConfigError(
            f"backfill: accept names {', '.join(unknown)}; it may name {', '.join(REASONS)}"
        )
    return accepted


def differences_of(
    plan: ApplicationPlan, *, has_cache: bool, has_schedule: Callable[[TaskId], bool]
) -> Iterator[Difference]:
    """Yield the nodes whose results may differ from those of live workers.

    `has_schedule`: tells for the first task of a sub-topology if it has wall-clock schedules.
    """
    cached = _below_caches(plan) if has_cache else {}
    for number, planned in sorted(plan.subtopologies.items()):
        users = [node for node in _processors(planned) if _is_users(node)]
        if planned.partitions and users and has_schedule(TaskId(number, 0)):
            yield Difference(
                reason=WALL_CLOCK,
                node=_shown(*users),
                text="punctuates by wall clock; here the clock is the stream time",
            )
        yield from _of_caches(planned, cached.get(number, frozenset()))
        yield from _of_order(plan, planned)


def _processors(planned: SubtopologyPlan) -> list[ProcessorSpec]:
    return [node for node in planned.spec.nodes if isinstance(node, ProcessorSpec)]


def _operator(node: ProcessorSpec) -> Operator | None:
    return node.supplier() if isinstance(node.supplier, OperatorSupplier) else None


def _is_users(node: ProcessorSpec) -> bool:
    operator = _operator(node)
    return operator is None or operator.runs_users_object


def _shown(*nodes: ProcessorSpec) -> str:
    return ", ".join(
        f"{node.name} ({node.location})" if node.location else node.name for node in nodes
    )


def _of_caches(planned: SubtopologyPlan, below: frozenset[str]) -> Iterator[Difference]:
    """Yield nodes with state that see each change of a cached table, where workers forward some.

    `below`: the nodes that get such changes.
    """
    for node in _processors(planned):
        if node.name in below and node.stores and _counts_changes(node):
            yield Difference(
                reason=CACHE,
                node=_shown(node),
                text="sees every change of a table above it; live, the cache forwards only the last of each commit "
                "(statestore_cache_max_bytes)",
            )


def _below_caches(plan: ApplicationPlan) -> dict[int, frozenset[str]]:
    """Return the nodes below cached tables in each sub-topology, also behind repartition topics."""
    topics: set[str] = set()
    while True:
        below = {number: _below(planned, topics) for number, planned in plan.subtopologies.items()}
        written = {
            sink.topic
            for number, planned in plan.subtopologies.items()
            for sink in planned.spec.sinks
            if sink.internal and isinstance(sink.topic, str) and sink.name in below[number]
        }
        if written <= topics:
            return below
        topics |= written


def _below(planned: SubtopologyPlan, topics: AbstractSet[str]) -> frozenset[str]:
    cached = {store.name for store in planned.spec.stores if store.caching}
    senders = {
        source.name
        for source in planned.spec.sources
        if source.internal and not topics.isdisjoint(source.topics)
    }
    below: set[str] = set()
    for node in planned.spec.nodes:
        if isinstance(node, SourceSpec):
            continue
        if not senders.isdisjoint(node.parents):
            below.add(node.name)
        is_below = node.name in below
        if is_below or (isinstance(node, ProcessorSpec) and not cached.isdisjoint(node.stores)):
            senders.add(node.name)
    return frozenset(below)


def _counts_changes(node: ProcessorSpec) -> bool:
    """Return true for state that each change alters, not only the last one of a key."""
    operator = _operator(node)
    return operator is None or operator.runs_users_object or isinstance(operator, _FOLDS)


def _of_order(plan: ApplicationPlan, planned: SubtopologyPlan) -> Iterator[Difference]:
    below = {
        source.name
        for source in planned.spec.sources
        if source.internal and any(_tasks_that_write(plan, topic) > 1 for topic in source.topics)
    }
    for node in _processors(planned):
        if below.isdisjoint(node.parents):
            continue
        below.add(node.name)
        if node.stores and _minds_order(node):
            yield Difference(
                reason=ORDER,
                node=_shown(node),
                text="may depend on the order of records from several partitions; here they come by time, live as they arrive",
            )


def _tasks_that_write(plan: ApplicationPlan, topic: str) -> int:
    return sum(
        planned.partitions
        for planned in plan.subtopologies.values()
        for sink in planned.spec.sinks
        if sink.internal and sink.topic == topic
    )


def _minds_order(node: ProcessorSpec) -> bool:
    """Return true for users' functions of state: reduce, aggregate, and processors."""
    operator = _operator(node)
    return (
        operator is None
        or operator.runs_users_object
        or (isinstance(operator, _IN_ORDER) and not isinstance(operator, CountsInPlace))
    )
