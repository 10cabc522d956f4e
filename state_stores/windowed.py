"""`Windowed`: a key together with the window its row belongs to."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from state_stores.frozen import settled

K = TypeVar("K")


@settled
@dataclass(frozen=True, slots=True, order=True)
class Windowed(Generic[K]):
    """The key of a windowed row (Kafka Streams' `Windowed`): ordered by key, start and end.

    Attributes:
        key: The key of the record.
        start: Begin of the window, ms since the epoch, inclusive.
        end: End of the window, ms since the epoch: exclusive for time windows, the last instant itself for sliding and
            session windows.

    >>> Windowed("a", 0, 10)
    Windowed(key='a', start=0, end=10)
    >>> sorted([Windowed("a", 5, 10), Windowed("a", 0, 10)])[0].start
    0
    """

    key: K
    start: int
    end: int
