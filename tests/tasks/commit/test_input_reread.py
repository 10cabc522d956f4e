"""Input records read again: by position, in few reads, with a time limit."""

import logging
from collections.abc import Mapping

import pytest

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeReader
from tests.fakes.clock import FakeClock
from tidewheel import StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.commit.input_reread import InputReread
from tidewheel.tasks.processing.engine.output import OutputColumns
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

IN = TopicPartition("in", 0)


class Readers:
    def __init__(self, count: int = 10) -> None:
        self.broker = FakeBroker()
        self.broker.create_topic("in")
        columns = OutputColumns(
            topic="in",
            partitions=0,
            keys=[b"k%d" % index for index in range(count)],
            values=[b"v%d" % index for index in range(count)],
            timestamps=[0] * count,
            headers=[(("h", b"%d" % index),) for index in range(count)],
        )
        for index in range(count):
            self.broker.append_columns(columns, index, None)
        self.made: list[CountingReader] = []
        self.silent = False

    def __call__(self) -> FakeReader:
        self.made.append(CountingReader(self))
        return self.made[-1]


class CountingReader(FakeReader):
    def __init__(self, readers: Readers) -> None:
        super().__init__(readers.broker)
        self._readers = readers
        self.sent_to: list[int] = []

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        super().assign(positions)
        self.sent_to += positions.values()

    def poll(self, max_records: int, timeout_s: float) -> list[SourceRecords]:
        return [] if self._readers.silent else super().poll(max_records, timeout_s)


def test_a_reread_record_has_its_headers_and_later_ones_need_no_seek() -> None:
    readers = Readers()
    inputs = InputReread(readers)
    assert readers.made == []
    assert inputs.find(IN, 4) == (b"k4", b"v4", (("h", b"4"),))
    assert inputs.find(IN, 7) == (b"k7", b"v7", (("h", b"7"),))
    assert inputs.find(IN, 2) == (b"k2", b"v2", (("h", b"2"),))
    (reader,) = readers.made
    assert reader.sent_to == [4, 2]
    assert reader.positions() == {}, "nothing is fetched ahead"
    inputs.close()
    inputs.close()
    assert reader.closed


def test_a_record_that_retention_has_deleted_is_none(caplog: pytest.LogCaptureFixture) -> None:
    readers = Readers()
    log = readers.broker.log_of(IN)
    assert log is not None
    del log.entries[:5]
    log.start = 5
    inputs = InputReread(readers)
    with caplog.at_level(logging.WARNING):
        assert inputs.find(IN, 4) is None
    assert "in-0 offset 4, can't be read again: it is not in the log any more" in caplog.text
    assert inputs.find(IN, 5) == (b"k5", b"v5", (("h", b"5"),))


def test_a_record_that_compaction_has_removed_is_none() -> None:
    readers = Readers()
    log = readers.broker.log_of(IN)
    assert log is not None
    del log.entries[4]
    assert InputReread(readers).find(IN, 4) is None


def test_a_deleted_topic_is_no_error() -> None:
    readers = Readers()
    readers.broker.delete_topic("in")
    assert InputReread(readers).find(IN, 4) is None
    assert readers.made[0].closed


def test_a_silent_cluster_is_queried_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    readers = Readers()
    readers.silent = True
    clock = FakeClock()
    inputs = InputReread(readers, monotonic_s=clock.monotonic_s)
    with caplog.at_level(logging.WARNING):
        assert inputs.find(IN, 4) is None
    assert "has not given it within 5 s" in caplog.text
    readers.silent = False
    assert inputs.find(IN, 5) is None
    assert len(readers.made) == 1
    clock.advance(60_000)
    assert inputs.find(IN, 5) == (b"k5", b"v5", (("h", b"5"),))


def test_a_client_that_cannot_be_created_is_no_error() -> None:
    def make() -> FakeReader:
        raise StreamsError("no such certificate")

    assert InputReread(make).find(IN, 4) is None
