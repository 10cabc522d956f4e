"""Producers whose open transactions block readers, from partition leaders and coordinators."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.kafka.admin.transaction_requests import (
    BrokerConnection,
    CoordinatorState,
    NotAskedError,
    ProducerState,
)
from tidewheel.tasks.kafka.open_transactions import OpenTransaction

_ASK_S: Final = 5.0


class Node(NamedTuple):
    host: str
    port: int


def with_producers(
    found: Mapping[TopicPartition, OpenTransaction],
    leaders: Mapping[TopicPartition, Node],
    nodes: Iterable[Node],
    config: Mapping[str, Any],
) -> dict[TopicPartition, OpenTransaction]:
    """Return the open transactions `found`, with the producer ids and states that brokers report.

    `leaders` are the partitions' leaders; any of `nodes` may be a transaction coordinator.
    """
    made: dict[TopicPartition, OpenTransaction] = {
        each: replace(one, unknown="the partition has no leader") for each, one in found.items()
    }
    wanted: defaultdict[Node, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in found:
        if each in leaders:
            wanted[leaders[each]][each.topic].append(each.partition)
    for node, topics in wanted.items():
        try:
            with BrokerConnection(*node, config, _ASK_S) as broker:
                for topic, numbers in topics.items():
                    for number, states in broker.open_producers(topic, numbers).items():
                        each = TopicPartition(topic, number)
                        made[each] = _described(found[each], states)
        except NotAskedError as error:
            for topic, numbers in topics.items():
                for number in numbers:
                    each = TopicPartition(topic, number)
                    if made[each].producer_id < 0:
                        made[each] = replace(made[each], unknown=str(error))
    producers = {one.producer_id for one in made.values() if one.producer_id >= 0}
    known = _coordinators(producers, nodes, config) if producers else {}
    return {each: _coordinated(one, known) for each, one in made.items()}


def _described(one: OpenTransaction, states: Iterable[ProducerState]) -> OpenTransaction:
    for state in states:
        if state.start_offset == one.start:
            return replace(
                one,
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                since_ms=state.last_timestamp_ms,
                unknown="",
            )
    return replace(one, unknown="it was decided just now")


def _coordinators(
    producers: Iterable[int], nodes: Iterable[Node], config: Mapping[str, Any]
) -> dict[int, CoordinatorState] | None:
    """Return transactional id and state by producer id; None unless all brokers answered."""
    known: dict[int, CoordinatorState] = {}
    wanted = list(producers)
    for node in nodes:
        try:
            with BrokerConnection(*node, config, _ASK_S) as broker:
                known |= broker.transactions_of(wanted)
        except NotAskedError:
            return None
    return known


def _coordinated(
    one: OpenTransaction, known: Mapping[int, CoordinatorState] | None
) -> OpenTransaction:
    if one.producer_id < 0 or known is None:
        return one
    coordinator = known.get(one.producer_id)
    if coordinator is None:
        return one  # The coordinator forgot it, or this principal may not describe it.
    name, state = coordinator
    return replace(one, transactional_id=name, state=state)
