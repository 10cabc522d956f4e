"""What a key range hands over at a cut of its work, and how the seals of all ranges become one commit. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import msgspec

from state_stores.commit_buffer import Drained
from state_stores.headers import Headers
from state_stores.rows import SortedRows
from state_stores.timed_buffer import decode_note
from tasks.processing.output import OutputColumns


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """All that one range has done since its last seal. Nobody changes it.

    Attributes:
        number: Counts the range's seals, from 1.
        rows_done: How many of the rows given to the range are done, since it began.
        outputs: What they put out, in order.
        drained: What they changed, by store.
        operator_times_ms: The stream times of the range's operators and stores.
        size_bytes: About how much memory it takes until it is committed.
    """

    number: int
    rows_done: int
    outputs: Sequence[OutputColumns]
    drained: Mapping[str, Drained]
    operator_times_ms: tuple[int, ...]
    size_bytes: int


def by_store(seals: Iterable[Seal]) -> dict[str, list[Drained]]:
    """Return the changes of some seals by store, in the order of the seals."""
    found: dict[str, list[Drained]] = {}
    for seal in seals:
        for store, drained in seal.drained.items():
            found.setdefault(store, []).append(drained)
    return found


def joined(changes: Sequence[Drained]) -> Drained:
    """Return several changes of one store as those of one commit: the last of each key, in key order.

    Those of one range come in their order; different ranges have different keys.
    """
    if len(changes) == 1:
        return changes[0]
    values: dict[bytes, bytes | None] = {}
    timestamps: dict[bytes, int] = {}
    notes: dict[str, bytes] = {}
    for each in changes:
        values.update(zip(each.keys, each.values, strict=True))
        timestamps.update(zip(each.keys, each.timestamps, strict=True))
        for name, note in each.notes.items():
            notes[name] = max(notes.get(name, note), note, key=decode_note)
    keys = sorted(values)
    ranges = [each.delete_range for each in changes if each.delete_range is not None]
    return Drained(
        keys,
        [*map(values.__getitem__, keys)],
        [*map(timestamps.__getitem__, keys)],
        disk_rows=_joined_rows(changes),
        delete_range=(min(first for first, _ in ranges), max(end for _, end in ranges))
        if ranges
        else None,
        notes=notes,
        headers=changes[0].headers,
        row_headers=_joined_headers(changes, keys),
    )


def _joined_headers(changes: Sequence[Drained], keys: Sequence[bytes]) -> list[Headers] | None:
    """Return the headers of the last change of each key; None if no change has any."""
    if all(each.row_headers is None for each in changes):
        return None
    latest: dict[bytes, Headers] = {}
    for each in changes:
        latest.update(zip(each.keys, each.row_headers or repeat(()), strict=False))
    return list(map(latest.__getitem__, keys))


def _joined_rows(changes: Sequence[Drained]) -> SortedRows | None:
    """Return the rows for the database; None if they are those of the changelog, which `Drained` makes itself."""
    if all(each.disk_rows is None and each.delete_range is None for each in changes):
        return None
    stored: dict[bytes, bytes | None] = {}
    for each in changes:
        if each.delete_range is not None:  # of what the seals before it hold, too
            first, end = each.delete_range
            for key in [key for key in stored if first <= key < end]:
                del stored[key]
        stored.update(iter(each.stored))
    keys = sorted(stored)
    return SortedRows(keys, [stored[key] for key in keys])
