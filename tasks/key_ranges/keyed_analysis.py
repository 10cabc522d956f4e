"""Keyed analysis: decides if a sub-topology's tasks can have key ranges, and shards. Pure.

A sub-topology is **keyed** if each node uses only rows of the current record's key, and only the
time of the record's position. Otherwise it is **free**, and its tasks stay in one piece. Operators
declare their access (`Operator`), users declare it for processors (`keyed = True`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import structs

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.processing.api.processor import FixedKeyProcessor
from tidewheel.tasks.processing.api.supplied import NOT_KEYED, awaits, is_keyed, makes_a
from tidewheel.tasks.processing.api.timestamps import FailOnInvalidTimestamp
from tidewheel.tasks.processing.api.topology_spec import (
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    SubtopologySpec,
    TimestampExtractor,
)
from tidewheel.tasks.processing.engine.execution import execution_mode, has_ordered_outputs
from tidewheel.tasks.processing.engine.operator import Operator, OperatorSupplier
from tidewheel.tasks.processing.engine.position_clock import Counted

#: Keys of a node's records and rows: the same as in the source topic (`_OWN`), or changed, so
#: possibly of another key range (`_ANY`).
_OWN: Final = "same"
_ANY: Final = "any"


def overlaps_calls(subtopology: SubtopologySpec) -> bool:
    """Return True if coroutine functions may be called for several records of a batch at a time."""
    processors = [node for node in subtopology.nodes if isinstance(node, ProcessorSpec)]
    return (
        execution_mode(subtopology).batch
        and all(node.wrap is None for node in processors)
        and any(
            isinstance(node.supplier, OperatorSupplier) and node.supplier().overlaps_calls()
            for node in processors
        )
    )


def only_awaits(subtopology: SubtopologySpec) -> bool:
    """Return True if there are user functions, and all are coroutine functions."""
    processors = [node for node in subtopology.nodes if isinstance(node, ProcessorSpec)]
    sinks = [node for node in subtopology.nodes if isinstance(node, SinkSpec)]
    return (
        any(_awaits(node) for node in processors)
        and all(node.partitioner is None and isinstance(node.topic, str) for node in sinks)
        and all(node.wrap is None for node in processors)
        and not any(_blocks(node) for node in processors)
    )


def _awaits(node: ProcessorSpec) -> bool:
    supplier = node.supplier
    if isinstance(supplier, OperatorSupplier):
        return supplier().awaits()
    return awaits(supplier)


def _blocks(node: ProcessorSpec) -> bool:
    supplier = node.supplier
    if isinstance(supplier, OperatorSupplier):
        return supplier().blocks()
    return not awaits(supplier)


class Keyedness(msgspec.Struct, frozen=True):
    """First reason against key ranges of a sub-topology; empty if its tasks can have them.

    >>> str(Keyedness()), str(Keyedness("KTABLE-SUPPRESS-4: it holds rows back"))
    ('keyed', 'free: KTABLE-SUPPRESS-4: it holds rows back')
    """

    reason: str = ""

    @property
    def keyed(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return "keyed" if self.keyed else f"free: {self.reason}"


def keyedness(subtopology: SubtopologySpec) -> Keyedness:
    """Return the reason against key ranges. Creates operators and processors, initialises none."""
    flows = _flows(subtopology)
    if (sink := subtopology.external_sink) is not None:
        return Keyedness(f"{sink.name} writes outside Kafka, in batches of the whole task")
    return Keyedness(next(_reasons(subtopology, flows), ""))


def reason_against_shards(
    subtopology: SubtopologySpec,
    partitions: Mapping[str, int] = MappingProxyType({}),
    default_extractor: TimestampExtractor | None = None,
) -> str:
    """Return the first reason against shards of a sub-topology; empty if its tasks can have them.

    `partitions`: partition count by input topic, where known. `default_extractor`: that of sources
    without one of their own.
    """
    analysis = keyedness(subtopology)
    if not analysis.keyed:
        return analysis.reason
    reasons = _against_shards(subtopology, partitions, default_extractor)
    return next(reasons, "")


def with_shards(
    plan: ApplicationPlan, count: int, default_extractor: TimestampExtractor | None = None
) -> ApplicationPlan:
    """Return the plan with `count` shards per partition where the sub-topology can have them."""
    if count == 1:
        return plan
    return structs.replace(
        plan,
        subtopologies={
            number: subtopology
            if reason_against_shards(
                subtopology.spec, subtopology.topic_partitions, default_extractor
            )
            else structs.replace(subtopology, shards=count)
            for number, subtopology in plan.subtopologies.items()
        },
    )


def counted(subtopology: SubtopologySpec) -> Counted | None:
    """Return the rule for records that advance stream time; None if no operator uses it."""
    timed = _timed(_flows(subtopology))
    return _counted(timed[0]) if timed else None


def joint_ranks(subtopology: SubtopologySpec) -> Mapping[str, int] | None:
    """Return the ranks of sources whose records may share a batch; None if they may not.

    In such a batch each node processes all its records before the next node. The results are those
    of single records if no key changes from a source to another of the same or a lower rank.
    """
    # Restores of a table's store from its topic do not matter here.
    stores = tuple(replace(store, source_topic=None) for store in subtopology.stores)
    spec = replace(subtopology, stores=stores)
    users = _users(spec)
    if (
        not execution_mode(spec).batch
        or not has_ordered_outputs(spec)
        or not keyedness(spec).keyed
        # Operators that judge lateness need the stream time at each record.
        or counted(spec) is not None
        # A cache that nodes share flushes its keys in the order of changes.
        or any(sum(name not in node.reads for node in nodes) > 1 for name, nodes in users.items())
    ):
        return None
    return _ranks(spec, users)


def scanned_stores(subtopology: SubtopologySpec) -> dict[str, tuple[str, ...]]:
    """Return key-value stores that user code may scan, with its nodes' names.

    Such a scan sees only the rows of its key range (`OwnKeys`).
    """
    names = {store.name for store in subtopology.stores if not _expires(store)}
    nodes: dict[str, tuple[str, ...]] = {}
    for flow in _flows(subtopology):
        if flow.is_users:
            for store in names.intersection(flow.node.stores):
                nodes[store] = (*nodes.get(store, ()), flow.node.name)
    return nodes


def runs_users_objects(subtopology: SubtopologySpec) -> bool:
    return any(flow.is_users for flow in _flows(subtopology))


class _Flow(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of keys (`_OWN`, "windowed", `_ANY`) and times of a node's input and output.

    Attributes:
        timed_in: True if no parent drops records of its sources or changes their timestamps.
    """

    node: ProcessorSpec
    operator: Operator | None
    sources: frozenset[str]
    keys_in: frozenset[str]
    keys_out: frozenset[str]
    timed_in: bool
    timed_out: bool

    @property
    def is_users(self) -> bool:
        return self.operator is None or self.operator.runs_users_object

    @property
    def rows(self) -> frozenset[str]:
        """Return kinds of keys of store rows: a windowed aggregate's output's, else the input's."""
        windowed = self.operator is not None and self.operator.keys_out == "windowed"
        return self.keys_out if windowed else self.keys_in


def _flows(subtopology: SubtopologySpec) -> list[_Flow]:
    flows: dict[str, _Flow] = {}
    sources = {source.name for source in subtopology.sources}
    for node in subtopology.nodes:
        if not isinstance(node, ProcessorSpec):
            continue
        above = [flows[parent] for parent in node.parents if parent in flows]
        read = sources.intersection(node.parents)
        keys_in = frozenset({_OWN} if read else ()).union(*(flow.keys_out for flow in above))
        timed_in = all(flow.timed_out for flow in above)
        operator = node.supplier() if isinstance(node.supplier, OperatorSupplier) else None
        flows[node.name] = _Flow(
            node=node,
            operator=operator,
            sources=frozenset(read).union(*(flow.sources for flow in above)),
            keys_in=keys_in,
            keys_out=_keys_out(node, operator, keys_in),
            timed_in=timed_in,
            timed_out=timed_in and operator is not None and operator.keeps_times,
        )
    return list(flows.values())


def _keys_out(
    node: ProcessorSpec, operator: Operator | None, keys_in: frozenset[str]
) -> frozenset[str]:
    if operator is None:
        return keys_in if makes_a(FixedKeyProcessor, node.supplier) else frozenset((_ANY,))
    if operator.keys_out == _OWN:
        return keys_in
    # Windowed keys are safe for ranges only if made from the records' own keys.
    return frozenset((operator.keys_out,)) if keys_in == frozenset((_OWN,)) else frozenset((_ANY,))


def _reasons(subtopology: SubtopologySpec, flows: Sequence[_Flow]) -> Iterator[str]:
    stores = {store.name: store for store in subtopology.stores}
    sources = {source.name: source for source in subtopology.sources}
    for flow in flows:
        for reason in _of_node(flow, stores, sources):
            yield f"{flow.node.name}: {reason}"
    yield from _of_times(_timed(flows))
    for name, store in stores.items():
        users = [flow for flow in flows if name in flow.node.stores]
        for reason in _of_store(store, users, sources):
            yield f"store {name} {reason}"


def _of_node(
    flow: _Flow, stores: Mapping[str, StoreSpec], sources: Mapping[str, SourceSpec]
) -> Iterator[str]:
    operator = flow.operator
    used = [
        stores[name]
        for name in flow.node.stores
        if name in stores and stores[name].kind is not StoreKind.CUSTOM
    ]
    if operator is None:
        if not is_keyed(flow.node.supplier):
            yield NOT_KEYED
    elif operator.needs_whole_task:
        yield operator.needs_whole_task
    elif flow.node.wrap is not None:
        yield "processor_wrapper_class has put code around it, which may use any key"
    for store in used if flow.is_users else ():
        if _expires(store):
            yield f"it may read {store.name} at any time, whose rows expire by the time of all keys"
        for name in sorted(flow.sources):
            if store.key_serde is not sources[name].key_serde:
                yield f"its store {store.name} has keys by another serde ({_named(store.key_serde)}) than {name}"
    if used and _ANY in flow.rows:
        yield f"it uses store {used[0].name} by keys that were changed after the records were read"


def _of_store(
    store: StoreSpec, users: Sequence[_Flow], sources: Mapping[str, SourceSpec]
) -> Iterator[str]:
    if store.kind is StoreKind.CUSTOM:
        yield "is a custom one, which may have rows of any key"
    if store.kind is StoreKind.VERSIONED:
        yield "is versioned, and its versions expire by the time of all keys"
    if store.max_entries is not None:
        yield "keeps the keys of the whole task that were used last"
    if store.ttl_ms is not None:
        yield "has a ttl, and one sweep at commits deletes the expired rows of all keys"
    if store.source_topic is not None:
        yield (
            f"is restored from its topic {store.source_topic}, up to one offset for all keys; with a changelog of its own "
            "(topology_optimization without reuse_ktable_source_topics) it may be cut"
        )
    if len(frozenset[str]().union(*(flow.rows for flow in users))) > 1:
        names = " and ".join(flow.node.name for flow in users)
        yield f"is used by different keys: {names}"
    read = sorted(frozenset[str]().union(*(flow.sources for flow in users)))
    yield from _of_serdes([sources[name] for name in read])


def _users(spec: SubtopologySpec) -> dict[str, list[ProcessorSpec]]:
    """Return the nodes of each store."""
    processors = [node for node in spec.nodes if isinstance(node, ProcessorSpec)]
    return {
        store.name: [node for node in processors if store.name in node.stores]
        for store in spec.stores
    }


def _ranks(spec: SubtopologySpec, users: Mapping[str, Sequence[ProcessorSpec]]) -> dict[str, int]:
    """Return ranks with which, for all stores, nodes below lower ranks run first; else equal ones."""
    positions = {node.name: position for position, node in enumerate(spec.nodes)}
    sources_of = {flow.node.name: flow.sources for flow in _flows(spec)}
    # By source and store, the positions of its nodes in the order of processing.
    used: dict[str, dict[str, list[int]]] = {source.name: {} for source in spec.sources}
    for store, nodes in users.items():
        for node in nodes:
            for source in sources_of[node.name] if len(nodes) > 1 else ():
                used[source].setdefault(store, []).append(positions[node.name])
    order = sorted(used, key=lambda source: max(chain((-1,), *used[source].values())))
    is_ordered = all(
        max(used[earlier][store]) <= min(used[later][store])
        for earlier, later in combinations(order, 2)
        for store in used[earlier].keys() & used[later].keys()
    )
    return {source: rank if is_ordered else 0 for rank, source in enumerate(order)}


def _timed(flows: Sequence[_Flow]) -> list[_Flow]:
    return [flow for flow in flows if flow.operator is not None and flow.operator.observes_time]


def _counted(flow: _Flow) -> Counted:
    assert flow.operator is not None, "DSL nodes have operators"
    return Counted(flow.sources, null_values=flow.operator.times_null_values)


def _of_times(timed: Sequence[_Flow]) -> Iterator[str]:
    for flow in timed:
        name = flow.node.name
        if not flow.timed_in:
            yield f"{name}: it uses the times of the records that reach it, and operators above it may drop some"
        if _counted(flow) != _counted(timed[0]):
            yield f"{name}: it uses the times of other records than {timed[0].node.name}"


def _of_serdes(read: Sequence[SourceSpec]) -> Iterator[str]:
    for source in read:
        if not source.key_serde.canonical:
            yield f"has keys whose bytes in {source.name} may differ for equal keys ({_named(source.key_serde)})"
        if source.key_serde is not read[0].key_serde:
            yield (
                f"has keys by different serdes: {_named(read[0].key_serde)} in {read[0].name}, "
                f"{_named(source.key_serde)} in {source.name}"
            )


def _against_shards(
    subtopology: SubtopologySpec,
    partitions: Mapping[str, int],
    default_extractor: TimestampExtractor | None,
) -> Iterator[str]:
    sources = {source.name: source for source in subtopology.sources}
    for source in sources.values():
        # A new topic with another partition count would change the tiling of running tasks.
        if source.pattern is not None:
            yield f"{source.name}: its topics may change, because a pattern selects them"
    topics = {topic for source in sources.values() for topic in source.topics}
    if len(topics) > 1:
        yield from _of_inputs(subtopology, topics, partitions, default_extractor)
    flows = _flows(subtopology)
    for store in subtopology.stores:
        if not store.logging:
            yield f"store {store.name} has no changelog (logging=False), from which its shards are restored"
        users = [flow for flow in flows if store.name in flow.node.stores]
        for name in sorted(frozenset[str]().union(*(flow.sources for flow in users))):
            # The shard of a changelog row follows from the key's bytes in it.
            if store.key_serde is not sources[name].key_serde:
                yield f"store {store.name} has keys by another serde ({_named(store.key_serde)}) than {name}"


def _of_inputs(
    subtopology: SubtopologySpec,
    topics: set[str],
    partitions: Mapping[str, int],
    default_extractor: TimestampExtractor | None,
) -> Iterator[str]:
    """Yield reasons against shards of tasks with several inputs, which are merged by time."""
    for source in subtopology.sources:
        extractor = source.timestamp_extractor or default_extractor
        if extractor is not None and not isinstance(extractor, FailOnInvalidTimestamp):
            yield (
                f"{source.name}: it has several inputs, and their records of other shards would need the timestamp extractor, "
                "too"
            )
    if len(set(partitions.values())) > 1:
        counts = ", ".join(f"{topic} {count}" for topic, count in sorted(partitions.items()))
        yield f"its inputs have different partition counts: {counts}"
    is_fixed = bool(subtopology.stores) or any(
        topics <= group for group in subtopology.copartition_groups
    )
    if not is_fixed:
        yield f"its inputs {', '.join(sorted(topics))} may grow to different partition counts, because no store or join needs equal ones"


def _expires(store: StoreSpec) -> bool:
    return store.kind in SEGMENTED_KINDS or store.ttl_ms is not None


def _named(serde: SerdePort) -> str:
    return str(getattr(serde, "name", serde))
