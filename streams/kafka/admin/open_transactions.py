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


class BrokerAddress(NamedTuple):
    host: str
    port: int


def with_producers(
    transactions: Mapping[TopicPartition, OpenTransaction],
    leaders: Mapping[TopicPartition, BrokerAddress],
    addresses: Iterable[BrokerAddress],
    config: Mapping[str, Any],
) -> dict[TopicPartition, OpenTransaction]:
    """Return open transactions with the producer ids and states that brokers report.

    `leaders` are the partitions' leaders; any of `addresses` may be a transaction coordinator.
    """
    described: dict[TopicPartition, OpenTransaction] = {
        partition: replace(transaction, unknown="the partition has no leader")
        for partition, transaction in transactions.items()
    }
    partitions_by_leader: defaultdict[BrokerAddress, defaultdict[str, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for partition in transactions:
        if partition in leaders:
            partitions_by_leader[leaders[partition]][partition.topic].append(partition.partition)
    for address, topics in partitions_by_leader.items():
        try:
            with BrokerConnection(*address, config, _ASK_S) as broker:
                for topic, numbers in topics.items():
                    for number, states in broker.open_producers(topic, numbers).items():
                        partition = TopicPartition(topic, number)
                        described[partition] = _described(transactions[partition], states)
        except NotAskedError as error:
            for topic, numbers in topics.items():
                for number in numbers:
                    partition = TopicPartition(topic, number)
                    if described[partition].producer_id < 0:
                        described[partition] = replace(described[partition], unknown=str(error))
    producers = {
        transaction.producer_id
        for transaction in described.values()
        if transaction.producer_id >= 0
    }
    coordinators = _coordinators(producers, addresses, config) if producers else {}
    return {
        partition: _coordinated(transaction, coordinators)
        for partition, transaction in described.items()
    }


def _described(transaction: OpenTransaction, states: Iterable[ProducerState]) -> OpenTransaction:
    for state in states:
        if state.start_offset == transaction.start:
            return replace(
                transaction,
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                since_ms=state.last_timestamp_ms,
                unknown="",
            )
    return replace(transaction, unknown="it was decided just now")


def _coordinators(
    producers: Iterable[int], nodes: Iterable[BrokerAddress], config: Mapping[str, Any]
) -> dict[int, CoordinatorState] | None:
    """Return transactional id and state by producer id; None unless all brokers answered."""
    coordinators: dict[int, CoordinatorState] = {}
    pending = list(producers)
    for node in nodes:
        try:
            with BrokerConnection(*node, config, _ASK_S) as broker:
                coordinators |= broker.transactions_of(pending)
        except NotAskedError:
            return None
    return coordinators


def _coordinated(
    transaction: OpenTransaction, coordinators: Mapping[int, CoordinatorState] | None
) -> OpenTransaction:
    if transaction.producer_id < 0 or coordinators is None:
        return transaction
    coordinator = coordinators.get(transaction.producer_id)
    if coordinator is None:
        return transaction  # The coordinator forgot it, or this principal may not describe it.
    name, state = coordinator
    return replace(transaction, transactional_id=name, state=state)
