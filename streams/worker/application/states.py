"""The states of an application and the legal moves between them, as in Kafka Streams' `KafkaStreams.State`.

CREATED -> REBALANCING <-> RUNNING -> PENDING_SHUTDOWN -> NOT_RUNNING
                |             |
                +-------------+--> PENDING_ERROR -> ERROR

NOT_RUNNING and ERROR are final: `close` after an error changes nothing any more.
"""

from enum import StrEnum


class KafkaStreamsState(StrEnum):
    """What an application is doing.

    >>> KafkaStreamsState.RUNNING == "RUNNING"
    True
    """

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"


_S = KafkaStreamsState

MOVES: dict[KafkaStreamsState, frozenset[KafkaStreamsState]] = {
    _S.CREATED: frozenset({_S.REBALANCING, _S.PENDING_SHUTDOWN}),
    _S.REBALANCING: frozenset({_S.RUNNING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.RUNNING: frozenset({_S.REBALANCING, _S.PENDING_SHUTDOWN, _S.PENDING_ERROR}),
    _S.PENDING_SHUTDOWN: frozenset({_S.NOT_RUNNING, _S.PENDING_ERROR}),
    _S.PENDING_ERROR: frozenset({_S.ERROR}),
    _S.ERROR: frozenset(),
    _S.NOT_RUNNING: frozenset(),
}


def legal(state: KafkaStreamsState, to: KafkaStreamsState) -> bool:
    """Return whether an application may go from one state to another.

    >>> legal(KafkaStreamsState.RUNNING, KafkaStreamsState.CREATED)
    False
    """
    return to in MOVES[state]
