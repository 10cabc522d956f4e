"""Merge of several tasks' outputs into the records of one partition, in canonical order. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tidewheel.tasks.batch.blobs import Blob
from tidewheel.tasks.processing.engine.record_batch import SourceRecords


def merged(streams: Iterable[Iterable[Blob]]) -> Iterator[SourceRecords]:
    """Yield the records of streams for one partition by order time, then stream, then place.

    Each stream has one task's blobs in order. The order of streams is that of their tasks. Reads
    one blob ahead of each stream.

    >>> blobs = [[Blob(topic="t", partition=0, task=(0, task), number=0, orders=orders, keys=[None] * 2,
    ...                values=[b"%d" % task] * 2, timestamps=orders)] for task, orders in enumerate([[1, 5], [1, 3]])]
    >>> [(records.offsets, records.raw_values, records.order_ms) for records in merged(blobs)]
    [(range(0, 3), [b'0', b'1', b'1'], [1, 1, 3]), (range(3, 4), [b'0'], [5])]
    """
    heads = [_Head(iter(blobs)) for blobs in streams]
    first = 0
    while heads := [head for head in heads if head.fill()]:
        # All records up to the last one of the stream that ends first: later blobs come after it.
        last, number = min((head.last, number) for number, head in enumerate(heads))
        parts = [
            part
            for place, head in enumerate(heads)
            if len(part := head.pop(last, inclusive=place <= number))
        ]
        records = _joined(parts, first)
        first += len(records)
        yield records


class _Head:
    def __init__(self, blobs: Iterator[Blob]) -> None:
        self._blobs = blobs
        self._blob: Blob | None = None
        self._start = 0

    def fill(self) -> bool:
        while self._blob is None or self._start == len(self._blob):
            self._blob, self._start = next(self._blobs, None), 0
            if self._blob is None:
                return False
        return True

    @property
    def last(self) -> int:
        assert self._blob is not None
        return self._blob.orders[-1]

    def pop(self, order_ms: int, *, inclusive: bool) -> Blob:
        assert self._blob is not None
        find = bisect_right if inclusive else bisect_left
        start, blob = self._start, self._blob
        self._start = stop = find(blob.orders, order_ms, start)
        return Blob(
            topic=blob.topic,
            partition=blob.partition,
            task=blob.task,
            number=blob.number,
            orders=blob.orders[start:stop],
            keys=blob.keys[start:stop],
            values=blob.values[start:stop],
            timestamps=blob.timestamps[start:stop],
            headers=None if blob.headers is None else blob.headers[start:stop],
        )


def _joined(parts: Sequence[Blob], first: int) -> SourceRecords:
    orders = list(chain.from_iterable(part.orders for part in parts))
    with_headers = any(part.headers is not None for part in parts)
    records = SourceRecords(
        parts[0].topic,
        parts[0].partition,
        range(first, first + len(orders)),
        list(chain.from_iterable(part.keys for part in parts)),
        list(chain.from_iterable(part.values for part in parts)),
        list(chain.from_iterable(part.timestamps for part in parts)),
        list(chain.from_iterable(part.headers or [()] * len(part) for part in parts))
        if with_headers
        else None,
        order_ms=orders,
    )
    if len(parts) == 1:
        return records
    # The sort is stable: equal times keep the order of streams.
    sorted_records = records.take(sorted(range(len(orders)), key=orders.__getitem__))
    sorted_records.offsets = records.offsets
    return sorted_records
