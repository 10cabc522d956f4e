"""`Windowed`: a key together with the window its row belongs to."""

from typing import Generic, TypeVar

import msgspec

from tidewheel.state_stores.stores.frozen import settled

K = TypeVar("K")


@settled
class Windowed(msgspec.Struct, Generic[K], frozen=True, order=True):
    """The key of a windowed row (Kafka Streams' `Windowed`): ordered by key, start and end.

    Attributes:
        key: The key of the record.
        start: Begin of the window, ms since the epoch, inclusive.
        end: End of the window, ms since the epoch: exclusive for time windows, the last instant itself for sliding and
            session windows.

    Made once for each row of a windowed result, so it is of a kind that is quickly made.

    >>> Windowed("a", 0, 10)
    Windowed(key='a', start=0, end=10)
    >>> sorted([Windowed("a", 5, 10), Windowed("a", 0, 10)])[0].start
    0
    """

    key: K
    start: int
    end: int
