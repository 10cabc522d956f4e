"""Floor of sharded partitions: the offset below which every shard has processed its records.

The owner of a partition's first shard commits it to the application's own group, which lag monitors
and autoscalers read. Repartition topics are purged below it only.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from tidewheel.rebalance.model import Shard, ShardInput, TopicPartition
from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.kafka.ports import Admin, Background, Clock, CommittedOffset
from tidewheel.tasks.kafka.shard_inputs import committed_inputs

_log = logging.getLogger(__name__)

#: Seconds between two readings of the other shards' offsets.
_INTERVAL_S: Final = 5.0


def floors_of(
    inputs: Iterable[TopicPartition], committed: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, int]:
    """Return the floor of each partition whose first shard is among `inputs`.

    None before every shard has committed: the others may still start anywhere.

    >>> first, second = (ShardInput.of(TopicPartition("orders", 0), shard) for shard in Shard.all_of(2))
    >>> floors_of([first], {first: CommittedOffset(7, "")})
    {}
    >>> floors_of([first], {first: CommittedOffset(7, ""), second: CommittedOffset(5, "")})
    {TopicPartition(topic='orders', partition=0): 5}
    """
    floors: dict[TopicPartition, int] = {}
    for at in inputs:
        offsets = [committed.get(shard) for shard in shards_of(at)]
        known = [offset.offset for offset in offsets if offset is not None]
        if len(known) == len(offsets):
            floors[at.whole] = min(known)
    return floors


def shards_of(at: TopicPartition) -> list[TopicPartition]:
    """Return the inputs of all shards of a shard's partition."""
    return [ShardInput.of(at, shard) for shard in Shard.all_of(at.shard.of)]


class ShardFloor:
    """Reads the other shards' offsets; `background` runs the calls that wait for brokers.

    Each shard's group has a client of its own, whose first call takes a tenth of a second.
    """

    def __init__(
        self, application_id: str, admin: Admin, clock: Clock, background: Background
    ) -> None:
        self._application_id = application_id
        self._admin = admin
        self._clock = clock
        self._background = background
        self._next_s = 0.0
        self._reading: Future[dict[TopicPartition, int]] | None = None

    def read(self, inputs: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return new floors that the owner of these inputs commits, every few seconds."""
        first = [at for at in inputs if not at.shard.is_whole and at.shard.number == 0]
        if self._reading is None and first and self._clock.monotonic_s() >= self._next_s:
            self._next_s = self._clock.monotonic_s() + _INTERVAL_S
            self._reading = self._background(partial(self._floors, first))
        if self._reading is None or not self._reading.done():
            return {}
        floors = self._reading.result()
        self._reading = None
        owned = {at.whole for at in first}
        return {at: floor for at, floor in floors.items() if at in owned}

    def _floors(self, first: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        everyone = [shard for at in first for shard in shards_of(at)]
        try:
            committed = committed_inputs(self._admin, self._application_id, everyone, stable=False)
        except StreamsError as error:
            _log.warning("could not read the offsets of other shards: %s", error)
            return {}
        return floors_of(first, committed)
