import pytest

from tidewheel import StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.kafka.client.settings import ClientSettings
from tidewheel.streams.kafka.consumers.changelog import read_range
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

_PART = TopicPartition("app-counts-changelog", 1)
_SETTINGS = ClientSettings(bootstrap_servers="nobody:1", application_id="app")


class _Reader:
    def __init__(self, offsets: list[int], end: int | None) -> None:
        self._left = offsets
        self._end = end
        self._position = 0
        self.closed = False

    def assign(self, positions: dict[TopicPartition, int]) -> None:
        self._position = positions[_PART]
        self._left = [each for each in self._left if each >= self._position]

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        batch, self._left = self._left[:3], self._left[3:]
        if not batch:
            self._position = self._end or self._position
            return []
        self._position = batch[-1] + 1
        raw = [b"%d" % offset for offset in batch]
        return [SourceRecords(*_PART, batch, raw, raw, batch, None)]

    def positions(self) -> dict[TopicPartition, int]:
        return {_PART: self._position}

    def close(self) -> None:
        self.closed = True


def _read(reader: _Reader, first: int, end: int, *, stall_s: float = 60.0) -> list[int]:
    runs = read_range(
        _SETTINGS,
        _PART,
        first,
        end,
        stall_s=stall_s,
        make_reader=lambda: reader,  # type: ignore[arg-type,return-value] # as much of one as is used
    )
    return [offset for run in runs for offset in run.offsets]


def test_a_range_ends_at_the_given_offset() -> None:
    reader = _Reader(list(range(20)), None)
    assert _read(reader, 4, 11) == list(range(4, 11))
    assert reader.closed


def test_gaps_and_a_tail_of_markers_are_skipped() -> None:
    assert _read(_Reader([0, 5, 6, 30], 34), 0, 33) == [0, 5, 6, 30]
    assert _read(_Reader([0, 5, 6, 30], 34), 0, 20) == [0, 5, 6]


def test_an_empty_range_makes_no_client() -> None:
    reader = _Reader([], None)
    assert _read(reader, 7, 7) == []
    assert not reader.closed


def test_a_reader_without_progress_fails() -> None:
    reader = _Reader([0, 1], None)
    with pytest.raises(StreamsError, match=r"app-counts-changelog-1: .* at offset 2, .* at 9"):
        _read(reader, 0, 9, stall_s=0.0)
    assert reader.closed
