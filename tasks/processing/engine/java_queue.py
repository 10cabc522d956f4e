"""A queue that orders equal elements like Java's `PriorityQueue`."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class JavaQueue(Generic[T]):
    """A binary heap that sifts like Java's, so equal ranks leave in Kafka Streams' order.

    >>> queue = JavaQueue(lambda name: 0)
    >>> for name in "abc":
    ...     queue.offer(name)
    >>> queue.poll(), queue.poll(), queue.poll()
    ('a', 'c', 'b')
    """

    def __init__(self, rank: Callable[[T], int]) -> None:
        self._rank = rank
        self._heap: list[T] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[T]:
        return iter(self._heap)

    def peek(self) -> T:
        return self._heap[0]

    def offer(self, item: T) -> None:
        heap, rank = self._heap, self._rank(item)
        heap.append(item)
        place = len(heap) - 1
        while place and rank < self._rank(heap[above := (place - 1) // 2]):
            heap[place], place = heap[above], above
        heap[place] = item

    def poll(self) -> T:
        heap = self._heap
        first, item = heap[0], heap.pop()
        if heap:
            self._sift_down(item)
        return first

    def _sift_down(self, item: T) -> None:
        heap, rank, place = self._heap, self._rank(item), 0
        while place < len(heap) // 2:
            child = 2 * place + 1
            if child + 1 < len(heap) and self._rank(heap[child]) > self._rank(heap[child + 1]):
                child += 1
            if rank <= self._rank(heap[child]):
                break
            heap[place], place = heap[child], child
        heap[place] = item
