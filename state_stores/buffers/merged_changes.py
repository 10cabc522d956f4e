"""Merge of a store's drained changes into those of one commit. Pure."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.buffers.timed_buffer import decode_store_time
from tidewheel.state_stores.layout.headers import Headers


def merge_changes(changes: Sequence[Drained]) -> Drained:
    """Merge changes, given in drain order, into one: the last of each key, in key order.

    With `Drained.all_count` all changes stay, in order.
    """
    if len(changes) == 1:
        return changes[0]
    metadata: dict[str, bytes] = {}
    for change in changes:
        for name, value in change.metadata.items():
            metadata[name] = max(metadata.get(name, value), value, key=decode_store_time)
    ranges = [change.delete_range for change in changes if change.delete_range is not None]
    columns = _all_of(changes) if changes[0].all_count else _last_of(changes)
    return Drained(
        *columns,
        disk_rows=_merged_rows(changes),
        delete_range=(min(first for first, _ in ranges), max(end for _, end in ranges))
        if ranges
        else None,
        metadata=metadata,
        headers=changes[0].headers,
        row_headers=_merged_headers(changes, columns[0]),
        all_count=changes[0].all_count,
    )


def _all_of(
    changes: Sequence[Drained],
) -> tuple[list[bytes], list[bytes | None], list[int]]:
    return (
        list(chain.from_iterable(change.keys for change in changes)),
        list(chain.from_iterable(change.values for change in changes)),
        list(chain.from_iterable(change.timestamps for change in changes)),
    )


def _last_of(
    changes: Iterable[Drained],
) -> tuple[list[bytes], list[bytes | None], list[int]]:
    values: dict[bytes, bytes | None] = {}
    timestamps: dict[bytes, int] = {}
    for change in changes:
        values.update(zip(change.keys, change.values, strict=True))
        timestamps.update(zip(change.keys, change.timestamps, strict=True))
    keys = sorted(values)
    return keys, [*map(values.__getitem__, keys)], [*map(timestamps.__getitem__, keys)]


def _merged_headers(changes: Sequence[Drained], keys: Sequence[bytes]) -> list[Headers] | None:
    if all(change.row_headers is None for change in changes):
        return None
    if changes[0].all_count:
        return [
            headers
            for change in changes
            for headers in change.row_headers or repeat((), len(change.keys))
        ]
    latest: dict[bytes, Headers] = {}
    for change in changes:
        latest.update(zip(change.keys, change.row_headers or repeat(()), strict=False))
    return list(map(latest.__getitem__, keys))


def _merged_rows(changes: Sequence[Drained]) -> SortedRows | None:
    if all(change.disk_rows is None and change.delete_range is None for change in changes):
        return None
    stored: dict[bytes, bytes | None] = {}
    for change in changes:
        if change.delete_range is not None:  # it also covers rows drained earlier
            first, end = change.delete_range
            for key in [key for key in stored if first <= key < end]:
                del stored[key]
        stored.update(iter(change.stored))
    keys = sorted(stored)
    return SortedRows(keys, [stored[key] for key in keys])
