"""Errors for refused changelog rows: finds the store, its writers and the input record.

A row does not store its origin. So the input of the commit is read again for the last record with
the row's key.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.layout.stored_values import key_hash
from tidewheel.tasks.errors import RecordFailedError
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, changelog_topic
from tidewheel.tasks.kafka.ports import FailedDelivery
from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec

#: Possible bytes behind the record's key in a row key: none, windows' times, sessions' times.
_SUFFIX_BYTES = (0, 12, 16)


class RowOrigin(NamedTuple):
    """Possible origins of the rows of one changelog partition."""

    store: str
    writers: tuple[str, ...]
    inputs: frozenset[TopicPartition]


class KeyFinder(Protocol):
    def find_last(
        self, partition: TopicPartition, keys: Collection[bytes], start: int, end: int
    ) -> int | None: ...


def origin_of(
    plan: ApplicationPlan, application_id: str, changelog: TopicPartition
) -> RowOrigin | None:
    for subtopology in plan.subtopologies.values():
        for store in subtopology.spec.stores:
            if changelog_topic(application_id, store.name) == changelog.topic:
                writers = tuple(
                    _named(node)
                    for node in subtopology.spec.nodes
                    if isinstance(node, ProcessorSpec)
                    and store.name in node.stores
                    and store.name not in node.reads
                )
                return RowOrigin(store.name, writers, subtopology.inputs(changelog.partition))
    return None


def _named(node: ProcessorSpec) -> str:
    return f"{node.name} ({node.location})" if node.location else node.name


def record_keys(row_key: bytes) -> frozenset[bytes]:
    r"""Return possible keys of the record that wrote a row.

    >>> sorted(record_keys(b"a" + bytes(12)))
    [b'a', b'a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00']
    """
    return frozenset(
        row_key[: len(row_key) - suffix] for suffix in _SUFFIX_BYTES if len(row_key) > suffix
    )


def refused_row(
    changelog: TopicPartition,
    failure: FailedDelivery,
    origin: RowOrigin | None,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    finder: KeyFinder,
) -> RecordFailedError:
    """Return the error for a row that its changelog refuses.

    `ranges` has the input offsets of its commit, ends excluded.
    """
    columns, index = failure.columns, failure.index
    key, value = columns.keys[index] or b"", columns.values[index] or b""
    places = _only(ranges) or _last_inputs(record_keys(key), ranges, finder)
    place = places[0] if len(places) == 1 else None
    store, writers = ("", ()) if origin is None else (f" of store {origin.store}", origin.writers)
    wrote = f", written by {' or '.join(writers)}" if writers else ""
    return RecordFailedError(
        f"changelog {changelog.whole} refuses a row{store} (key of {len(key)} bytes, hash {key_hash(key)}; value of "
        f"{len(value)} bytes){wrote} {_cause(places, ranges)}: {failure.error}. It belongs to the application's own state "
        "and is never skipped: raise the topic's limits, or make the row smaller",
        topic=None if place is None else place[0].topic,
        partition=None if place is None else place[0].partition,
        offset=None if place is None else place[1],
    )


def _only(ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[tuple[TopicPartition, int]]:
    alone = [(partition, start) for partition, (start, end) in ranges.items() if end == start + 1]
    return alone if len(ranges) == 1 else []


def _last_inputs(
    keys: Collection[bytes], ranges: Mapping[TopicPartition, tuple[int, int]], finder: KeyFinder
) -> list[tuple[TopicPartition, int]]:
    offsets = {
        partition: finder.find_last(partition, keys, start, end)
        for partition, (start, end) in ranges.items()
    }
    return [(partition, offset) for partition, offset in offsets.items() if offset is not None]


def _cause(
    places: Sequence[tuple[TopicPartition, int]],
    ranges: Mapping[TopicPartition, tuple[int, int]],
) -> str:
    if places:
        return "at input " + " or ".join(
            f"{partition} offset {offset}" for partition, offset in places
        )
    if not ranges:
        return "without input: in a scheduled callback"
    read = ", ".join(
        f"{partition} offset {start}"
        if end == start + 1
        else f"{partition} offsets {start} to {end - 1}"
        for partition, (start, end) in ranges.items()
    )
    return f"in a scheduled callback or for a record with another key, among {read}"
