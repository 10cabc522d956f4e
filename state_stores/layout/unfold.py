"""Changelog records of stored rows: the inverse of `restore.fold`. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, islice
from typing import Final, NamedTuple

from tidewheel.state_stores.layout import versions
from tidewheel.state_stores.layout.envelope import unwrap_batch, unwrap_batch_with_headers
from tidewheel.state_stores.layout.headers import Headers, split_headers
from tidewheel.state_stores.layout.segments import SEGMENT_BYTES
from tidewheel.state_stores.spec import SEGMENTED_KINDS, StoreKind, StoreSpec

_BATCH_RECORDS: Final = 1_000


class ChangelogColumns(NamedTuple):
    """Changelog records, as arguments of `TransactionalProducer.produce_changelog`.

    Attributes:
        timestamps: ms since the epoch.
        headers: Headers of every record.
        row_headers: Headers of each record instead; None if the store keeps none.
    """

    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    headers: Headers = ()
    row_headers: Sequence[Headers] | None = None


def unfold(
    spec: StoreSpec, rows: Iterable[tuple[bytes, bytes]], *, observed_ms: int
) -> Iterator[ChangelogColumns]:
    """Yield the changelog records of rows (disk key, stored bytes), one a row, in their order.

    Give the rows of a versioned store from the last to the first: the changelog must have a key's
    newest version last, because compaction keeps that one.

    Rows that have expired by a TTL at `observed_ms`, the store's time, are left out, as in a
    restore. Expired windows, sessions and versions that are still on disk are kept.

    Raises:
        StoreCorruptedError: A row has no known format.
    """
    iterator = iter(rows)
    while batch := list(islice(iterator, _BATCH_RECORDS)):
        columns = _columns(spec, batch)
        if spec.ttl_ms is not None:
            columns = _alive(columns, observed_ms - spec.ttl_ms)
        if columns.keys:
            yield columns


def _columns(spec: StoreSpec, rows: Sequence[tuple[bytes, bytes]]) -> ChangelogColumns:
    keys = [key for key, _ in rows]
    stored = [data for _, data in rows]
    if spec.kind in SEGMENTED_KINDS:
        keys = [key[SEGMENT_BYTES:] for key in keys]
    elif spec.kind is StoreKind.VERSIONED:
        keys = list(map(versions.key_of_version, keys))
    if spec.keeps_headers:
        payloads, timestamps = unwrap_batch_with_headers(stored)
        parts = list(map(split_headers, payloads))
        return ChangelogColumns(
            keys,
            [value for _, value in parts],
            timestamps,
            row_headers=[headers for headers, _ in parts],
        )
    values, timestamps = unwrap_batch(stored)
    if spec.kind is StoreKind.VERSIONED:
        return ChangelogColumns(keys, list(map(versions.value_of, values)), timestamps)
    return ChangelogColumns(keys, values, timestamps, spec.changelog_headers)


def _alive(columns: ChangelogColumns, ended_at_ms: int) -> ChangelogColumns:
    are_alive = [timestamp > ended_at_ms for timestamp in columns.timestamps]
    return columns._replace(
        keys=list(compress(columns.keys, are_alive)),
        values=list(compress(columns.values, are_alive)),
        timestamps=list(compress(columns.timestamps, are_alive)),
    )
