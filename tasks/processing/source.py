"""From raw records to a batch: deserialisation and timestamps, poison records found one by one."""

from collections.abc import Callable, Sequence
from operator import index as index_of
from typing import Any

from state_stores.ports import SerdePort
from tasks.errors import RecordFailedError
from tasks.processing.record import ConsumedRecord
from tasks.processing.record_batch import RecordBatch, SourceRecords, has_none
from tasks.processing.topology_spec import SourceSpec, TimestampExtractor

#: Told of a record that does not deserialise: (records, row, error). Returns to skip it, raises to stop.
OnCorrupt = Callable[[SourceRecords, int, Exception], None]

#: Told how many records were dropped, and why.
OnDropped = Callable[[int, str], None]


class SourceNode:
    """Decodes the records of one source node for one task."""

    def __init__(
        self,
        spec: SourceSpec,
        on_corrupt: OnCorrupt,
        on_dropped: OnDropped,
        default_timestamp_extractor: TimestampExtractor | None = None,
    ) -> None:
        self.spec = spec
        self._extract = spec.timestamp_extractor or default_timestamp_extractor
        self._on_corrupt = on_corrupt
        self._on_dropped = on_dropped

    def decode(self, records: SourceRecords, partition_time_ms: int) -> RecordBatch:
        """Return the records that deserialise and have a timestamp; `partition_time_ms` is the largest one so far."""
        failed: set[int] = set()
        keys = self._column(self.spec.key_serde, records, records.raw_keys, failed)
        values = self._column(self.spec.value_serde, records, records.raw_values, failed)
        canonical = self.spec.key_serde.canonical
        batch = RecordBatch(
            keys,
            values,
            list(records.timestamps),
            None if records.headers is None else list(records.headers),
            range(len(records)),
            records,
            key_bytes=list(records.raw_keys) if canonical else None,
            key_serde=self.spec.key_serde if canonical else None,
        )
        if failed:
            batch = batch.select([row not in failed for row in range(len(records))])
        return self._timestamped(batch, partition_time_ms)

    def _column(
        self,
        serde: SerdePort,
        records: SourceRecords,
        raw: Sequence[bytes | None],
        failed: set[int],
    ) -> list[Any]:
        """Return the decoded column; rows that fail go to the handler once and into `failed`."""
        if has_none(raw):
            present = [row for row, data in enumerate(raw) if data is not None]
            column: list[Any] = [None] * len(raw)
        else:
            present = None
            column = []
        data: Any = raw if present is None else [raw[row] for row in present]
        try:
            decoded = serde.deserialize_batch(records.topic, data)
        except Exception:  # noqa: BLE001 - whatever a serde raises, the record behind it is found one by one
            decoded = self._one_by_one(serde, records, data, present, failed)
        if present is None:
            return decoded
        for row, value in zip(present, decoded, strict=True):
            column[row] = value
        return column

    def _one_by_one(
        self,
        serde: SerdePort,
        records: SourceRecords,
        data: Sequence[bytes],
        rows: list[int] | None,
        failed: set[int],
    ) -> list[Any]:
        decoded: list[Any] = []
        for index, item in enumerate(data):
            row = index if rows is None else rows[index]
            try:
                decoded.append(None if row in failed else serde.deserialize(records.topic, item))
            except Exception as error:  # noqa: BLE001 - the deserialisation handler decides
                decoded.append(None)
                failed.add(row)
                self._on_corrupt(records, row, error)
        return decoded

    def _timestamped(self, batch: RecordBatch, partition_time_ms: int) -> RecordBatch:
        extract = self._extract
        timestamps = batch.timestamps
        if extract is None:
            if timestamps and min(timestamps) < 0:
                self._refuse(
                    batch, next(i for i, timestamp in enumerate(timestamps) if timestamp < 0)
                )
            return batch
        extracted: list[int] = []
        for index, (key, value, timestamp) in enumerate(
            zip(batch.keys, batch.values, timestamps, strict=True)
        ):
            metadata = batch.metadata_of(index)
            assert metadata is not None, "a source batch has a source"
            record = ConsumedRecord(*metadata, key, value, timestamp, batch.headers_of(index))
            try:
                result = index_of(extract(record, partition_time_ms))
            except Exception as error:
                raise RecordFailedError(
                    f"the timestamp extractor of {self.spec.name} failed on {metadata.topic}-{metadata.partition} "
                    f"at offset {metadata.offset}: {error!r}; make it return a negative number to drop the record",
                    **metadata._asdict(),
                ) from error
            extracted.append(result)
            partition_time_ms = max(partition_time_ms, result)
        batch.timestamps = extracted
        if extracted and min(extracted) < 0:
            kept = batch.select([timestamp >= 0 for timestamp in extracted])
            self._on_dropped(len(batch) - len(kept), "negative timestamp")
            return kept
        return batch

    def _refuse(self, batch: RecordBatch, index: int) -> None:
        metadata = batch.metadata_of(index)
        assert metadata is not None, "a source batch has a source"
        raise RecordFailedError(
            f"{metadata.topic}-{metadata.partition} offset {metadata.offset} has no valid timestamp "
            f"({batch.timestamps[index]}); give {self.spec.name} a timestamp_extractor that returns one",
            **metadata._asdict(),
        )
