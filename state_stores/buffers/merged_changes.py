"""Merge of a store's drained changes into those of one commit. Pure."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.buffers.rows import SortedRows
from tidewheel.state_stores.buffers.timed_buffer import decode_note
from tidewheel.state_stores.layout.headers import Headers


def merge_changes(changes: Sequence[Drained]) -> Drained:
    """Return the changes, in drain order, merged: the last of each key, in key order.

    With `Drained.all_count` all changes stay, in order.
    """
    if len(changes) == 1:
        return changes[0]
    notes: dict[str, bytes] = {}
    for each in changes:
        for name, note in each.notes.items():
            notes[name] = max(notes.get(name, note), note, key=decode_note)
    ranges = [each.delete_range for each in changes if each.delete_range is not None]
    columns = _all_of(changes) if changes[0].all_count else _last_of(changes)
    return Drained(
        *columns,
        disk_rows=_merged_rows(changes),
        delete_range=(min(first for first, _ in ranges), max(end for _, end in ranges))
        if ranges
        else None,
        notes=notes,
        headers=changes[0].headers,
        row_headers=_merged_headers(changes, columns[0]),
        all_count=changes[0].all_count,
    )


def _all_of(
    changes: Sequence[Drained],
) -> tuple[list[bytes], list[bytes | None], list[int]]:
    return (
        list(chain.from_iterable(each.keys for each in changes)),
        list(chain.from_iterable(each.values for each in changes)),
        list(chain.from_iterable(each.timestamps for each in changes)),
    )


def _last_of(
    changes: Iterable[Drained],
) -> tuple[list[bytes], list[bytes | None], list[int]]:
    values: dict[bytes, bytes | None] = {}
    timestamps: dict[bytes, int] = {}
    for each in changes:
        values.update(zip(each.keys, each.values, strict=True))
        timestamps.update(zip(each.keys, each.timestamps, strict=True))
    keys = sorted(values)
    return keys, [*map(values.__getitem__, keys)], [*map(timestamps.__getitem__, keys)]


def _merged_headers(changes: Sequence[Drained], keys: Sequence[bytes]) -> list[Headers] | None:
    if all(each.row_headers is None for each in changes):
        return None
    if changes[0].all_count:
        return [
            headers
            for each in changes
            for headers in each.row_headers or repeat((), len(each.keys))
        ]
    latest: dict[bytes, Headers] = {}
    for each in changes:
        latest.update(zip(each.keys, each.row_headers or repeat(()), strict=False))
    return list(map(latest.__getitem__, keys))


def _merged_rows(changes: Sequence[Drained]) -> SortedRows | None:
    if all(each.disk_rows is None and each.delete_range is None for each in changes):
        return None
    stored: dict[bytes, bytes | None] = {}
    for each in changes:
        if each.delete_range is not None:  # also of rows drained earlier
            first, end = each.delete_range
            for key in [key for key in stored if first <= key < end]:
                del stored[key]
        stored.update(iter(each.stored))
    keys = sorted(stored)
    return SortedRows(keys, [stored[key] for key in keys])
