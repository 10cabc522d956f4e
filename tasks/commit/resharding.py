"""Change of the number of shards: progress of the new shards, from that of the old ones. Pure.

A new shard begins where the old shards of its hashes were. It reads from the lowest of their
offsets, and its vector skips what the faster ones had finished.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from itertools import groupby
from operator import attrgetter
from typing import Final

from msgspec.structs import replace

from tidewheel.rebalance.model import Shard
from tidewheel.tasks.kafka.ports import CommittedOffset
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector

_UNKNOWN: Final = bytes(8)


class UnlikeProgressError(ValueError):
    """Shards of one partition have progress that can't be joined; the text says why."""


def resharded(
    before: Mapping[Shard, Progress], count: int, transactional_id: str
) -> dict[Shard, Progress]:
    """Return the progress with which `count` shards of one partition begin.

    Args:
        before: Progress of every old shard.
        transactional_id: That of the producer that commits it.

    Raises:
        UnlikeProgressError: The old shards read different topics of one name, or hash otherwise.
        ValueError: An old shard is missing, or `count` is no number of shards.
    """
    if len({(progress.topic_id, progress.key_hash) for progress in before.values()}) > 1:
        raise UnlikeProgressError("its topic was created again while some shards did not run")
    whole = Vector.join(progress.vector for progress in before.values())
    return {
        shard: _progress(
            _merged(whole.restrict(shard.first_hash, shard.end_hash)),
            [progress for old, progress in sorted(before.items()) if _overlap(old, shard)],
            shard,
            transactional_id,
        )
        for shard in Shard.all_of(count)
    }


def committed(progress: Progress) -> CommittedOffset:
    """Return progress as a committed offset; raise ValueError if it is too long for a broker."""
    return CommittedOffset(progress.committed_offset, progress.encode())


def floor_of(progress: Iterable[Progress]) -> Progress:
    """Return the progress of a partition's floor from that of all its shards."""
    lowest = min(progress, key=attrgetter("committed_offset"))
    return replace(lowest, vector=Vector.at(lowest.committed_offset), read_from=None)


def _overlap(one: Shard, other: Shard) -> bool:
    return one.first_hash < other.end_hash and other.first_hash < one.end_hash


def _merged(vector: Vector) -> Vector:
    """Return a vector whose neighbours differ."""
    parts = [next(run) for _, run in groupby(vector.parts, attrgetter("offset"))]
    firsts = tuple(part.first_hash for part in parts)
    return Vector(firsts, tuple(part.offset for part in parts), vector.end_hash)


def _progress(
    vector: Vector, sources: list[Progress], shard: Shard, transactional_id: str
) -> Progress:
    """Return a shard's progress: positions and times are those of its slowest source."""
    slowest = min(sources, key=attrgetter("committed_offset"))
    times, topology_hash = _operator_times(sources)
    start = slowest.committed_offset
    return replace(
        slowest,
        task_epoch=0,
        transactional_id=transactional_id,
        sequence=0,
        vector=vector,
        read_from=start if start < vector.lowest else None,
        shards=shard.of,
        stream_time_ms=min(source.stream_time_ms for source in sources),
        operator_times_ms=times,
        topology_hash=topology_hash,
    )


def _operator_times(sources: list[Progress]) -> tuple[tuple[int, ...], bytes]:
    """Return the least time of each operator, and the topology that it belongs to."""
    hashes = {source.topology_hash for source in sources}
    columns = [source.operator_times_ms for source in sources]
    if len(hashes) > 1 or len({len(column) for column in columns}) > 1:
        return (), _UNKNOWN
    return tuple(reduce(min, column) for column in zip(*columns, strict=True)), hashes.pop()
