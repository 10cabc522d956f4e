"""Sources: deserialisation and timestamps of raw records."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from operator import index as index_of
from typing import Any

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.user_code import located
from tidewheel.tasks.errors import RecordFailedError
from tidewheel.tasks.processing.api.handlers import FAILURES
from tidewheel.tasks.processing.api.record import TIMESTAMP_MAX_MS, ConsumedRecord, RecordMetadata
from tidewheel.tasks.processing.api.timestamps import FailOnInvalidTimestamp
from tidewheel.tasks.processing.api.topology_spec import SourceSpec, TimestampExtractor
from tidewheel.tasks.processing.engine.record_batch import RecordBatch, SourceRecords, has_none

#: (records, row, error): returns to skip the record, raises to stop.
OnCorrupt = Callable[[SourceRecords, int, Exception], None]

#: (node, count, reason, first dropped record)
OnDropped = Callable[[str, int, str, RecordMetadata | None], None]


class InvalidTimestampError(ValueError):
    """An extracted timestamp out of range, for the deserialisation handler."""


class DecodedRecords(SourceRecords):
    """Records decoded early: their extracted timestamps order the inputs.

    Attributes:
        batch: Decoded records; a negative timestamp marks one to drop.
        order_ms: Extracted timestamps, -1 for a failed record.
        failure: A single record's decoding error, or its extractor's `RecordFailedError`.
    """

    __slots__ = ("batch", "failure")

    order_ms: Sequence[int]

    def __init__(
        self,
        records: SourceRecords,
        batch: RecordBatch,
        order_ms: Sequence[int],
        failure: Exception | None = None,
    ) -> None:
        super().__init__(*records.raw, order_ms=order_ms)
        self.batch = batch
        self.failure = failure

    def slice(self, start: int, stop: int) -> "DecodedRecords":
        if start == 0 and stop >= len(self):
            return self
        return DecodedRecords(
            super().slice(start, stop),
            self.batch.take(range(start, min(stop, len(self)))),
            self.order_ms[start:stop],
        )


class SourceNode:
    def __init__(
        self,
        spec: SourceSpec,
        on_corrupt: OnCorrupt,
        on_dropped: OnDropped,
        default_timestamp_extractor: TimestampExtractor | None = None,
        *,
        own_of: Callable[[RecordBatch], RecordBatch] = lambda batch: batch,
    ) -> None:
        """`own_of` selects the records whose drop counts here: other shards see them, too."""
        self.spec = spec
        self._own_of = own_of
        extract = spec.timestamp_extractor or default_timestamp_extractor
        # None for the default extractor: its check runs on whole columns.
        self._extract = None if type(extract) is FailOnInvalidTimestamp else extract
        self._on_corrupt = on_corrupt
        self._on_dropped = on_dropped

    @property
    def extracts(self) -> bool:
        return self._extract is not None

    def decode(self, records: SourceRecords, partition_time_ms: int) -> RecordBatch:
        if isinstance(records, DecodedRecords):
            return self._decoded_before(records)
        failed: set[int] = set()

        def corrupt(row: int, error: Exception) -> None:
            failed.add(row)
            self._on_corrupt(records, row, error)

        batch = self._deserialized(records, failed, corrupt)
        if failed:
            batch = batch.select([row not in failed for row in range(len(records))])
        return self._timestamped(batch, partition_time_ms)

    def decode_ahead(self, records: SourceRecords, partition_time_ms: int) -> list[SourceRecords]:
        """Return the records decoded, in pieces; a failed record is its own piece.

        `decode` calls exception handlers later. If the extractor raises, later records stay raw.
        """
        corrupt: dict[int, Exception] = {}
        batch = self._deserialized(records, corrupt.keys(), corrupt.setdefault)
        count = len(records)
        times: list[int] = []
        for row in range(count):
            time_ms = -1
            if row not in corrupt:
                try:
                    time_ms = self._extracted(batch, row, partition_time_ms)
                except InvalidTimestampError as error:
                    corrupt[row] = error
                except RecordFailedError as error:
                    corrupt = {
                        corrupt_row: corrupt[corrupt_row]
                        for corrupt_row in corrupt
                        if corrupt_row < row
                    }
                    corrupt[row] = error
                    count = row + 1
            times.append(time_ms)
            partition_time_ms = max(partition_time_ms, time_ms)
            if row + 1 == count:
                break
        batch.timestamps = times + batch.timestamps[count:]
        pieces: list[SourceRecords] = []
        begin = 0
        for row in [*sorted(corrupt), count]:
            if begin < row:
                pieces.append(self._piece(records, batch, begin, row, None))
            if row < count:
                pieces.append(self._piece(records, batch, row, row + 1, corrupt[row]))
            begin = row + 1
        if count < len(records):
            pieces.append(records.slice(count, len(records)))
        return pieces

    @staticmethod
    def _piece(
        records: SourceRecords, batch: RecordBatch, start: int, stop: int, failure: Exception | None
    ) -> DecodedRecords:
        rows = batch.take(() if failure is not None else range(start, stop))
        return DecodedRecords(
            records.slice(start, stop), rows, batch.timestamps[start:stop], failure
        )

    def _decoded_before(self, records: DecodedRecords) -> RecordBatch:
        if isinstance(records.failure, RecordFailedError):
            raise records.failure
        if records.failure is not None:
            self._on_corrupt(records, 0, records.failure)
        return self._without_negative(records.batch)

    def _deserialized(
        self,
        records: SourceRecords,
        failed: Collection[int],
        on_corrupt: Callable[[int, Exception], object],
    ) -> RecordBatch:
        """Return a row per record; failed rows have no key or value."""
        keys = self._column(self.spec.key_serde, records, records.raw_keys, failed, on_corrupt)
        values = self._column(
            self.spec.value_serde, records, records.raw_values, failed, on_corrupt
        )
        canonical = self.spec.key_serde.canonical
        return RecordBatch(
            keys,
            values,
            list(records.timestamps),
            None if records.headers is None else list(records.headers),
            range(len(records)),
            records,
            key_bytes=list(records.raw_keys) if canonical else None,
            key_serde=self.spec.key_serde if canonical else None,
        )

    def _column(
        self,
        serde: SerdePort,
        records: SourceRecords,
        raw: Sequence[bytes | None],
        failed: Collection[int],
        on_corrupt: Callable[[int, Exception], object],
    ) -> list[Any]:
        if has_none(raw):
            present = [row for row, data in enumerate(raw) if data is not None]
            column: list[Any] = [None] * len(raw)
        else:
            present = None
            column = []
        data: Any = raw if present is None else [raw[row] for row in present]
        decoded: list[Any] = []
        with suppress(*FAILURES):
            decoded = serde.deserialize_batch(records.topic, data)
        if len(decoded) != len(data):  # it failed, or StopIteration has ended it unnoticed
            decoded = self._decode_singly(serde, records.topic, data, present, failed, on_corrupt)
        if present is None:
            return decoded
        for row, value in zip(present, decoded, strict=True):
            column[row] = value
        return column

    def _decode_singly(
        self,
        serde: SerdePort,
        topic: str,
        data: Sequence[bytes],
        rows: list[int] | None,
        failed: Collection[int],
        on_corrupt: Callable[[int, Exception], object],
    ) -> list[Any]:
        decoded: list[Any] = []
        for index, item in enumerate(data):
            row = index if rows is None else rows[index]
            try:
                decoded.append(None if row in failed else serde.deserialize(topic, item))
            except FAILURES as error:
                decoded.append(None)
                on_corrupt(row, error)
        return decoded

    def _timestamped(self, batch: RecordBatch, partition_time_ms: int) -> RecordBatch:
        timestamps = batch.timestamps
        if self._extract is None:
            if timestamps and min(timestamps) < 0:
                self._refuse(
                    batch, next(i for i, timestamp in enumerate(timestamps) if timestamp < 0)
                )
            return batch
        extracted: list[int] = []
        invalid: dict[int, Exception] = {}
        for index in range(len(batch)):
            try:
                extracted.append(self._extracted(batch, index, partition_time_ms))
            except InvalidTimestampError as error:
                invalid[index] = error
                extracted.append(-1)
            partition_time_ms = max(partition_time_ms, extracted[-1])
        batch.timestamps = extracted
        if invalid:
            assert batch.source is not None, "a source batch has a source"
            for index, failure in invalid.items():
                self._on_corrupt(batch.source, batch.rows[index], failure)
            batch = batch.select([index not in invalid for index in range(len(batch))])
        return self._without_negative(batch)

    def _extracted(self, batch: RecordBatch, index: int, partition_time_ms: int) -> int:
        metadata = batch.metadata_of(index)
        assert metadata is not None, "a source batch has a source"
        assert self._extract is not None, "asked only where there is an extractor"
        record = ConsumedRecord(
            *metadata,
            batch.keys[index],
            batch.values[index],
            batch.timestamps[index],
            batch.headers_of(index),
        )
        try:
            extracted = self._extract(record, partition_time_ms)
            try:
                timestamp = index_of(extracted)
            except TypeError:
                raise TypeError(
                    f"it returned {type(extracted).__name__}; return int milliseconds since the epoch"
                ) from None
        except FAILURES as error:
            raise RecordFailedError(
                f"the timestamp extractor of {self.spec.name} failed on {metadata.topic}-{metadata.partition} "
                f"at offset {metadata.offset}: {located(error)}; make it return a negative number to drop the record",
                **metadata._asdict(),
            ) from error
        if timestamp > TIMESTAMP_MAX_MS:
            raise InvalidTimestampError(
                f"the timestamp extractor of {self.spec.name} returned {timestamp}; Kafka keeps milliseconds since the "
                "epoch up to 2**63 - 1, so it may have returned another unit"
            )
        return timestamp

    def _without_negative(self, batch: RecordBatch) -> RecordBatch:
        if not batch.timestamps or min(batch.timestamps) >= 0:
            return batch
        dropped = self._own_of(batch.select([timestamp < 0 for timestamp in batch.timestamps]))
        if len(dropped):
            self._on_dropped(
                self.spec.name, len(dropped), "negative timestamp", dropped.metadata_of(0)
            )
        return batch.select([timestamp >= 0 for timestamp in batch.timestamps])

    def _refuse(self, batch: RecordBatch, index: int) -> None:
        metadata = batch.metadata_of(index)
        assert metadata is not None, "a source batch has a source"
        raise RecordFailedError(
            f"{metadata.topic}-{metadata.partition} offset {metadata.offset} has no valid timestamp "
            f"({batch.timestamps[index]}); give {self.spec.name} a timestamp_extractor that returns one",
            **metadata._asdict(),
        )
