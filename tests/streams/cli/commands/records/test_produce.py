"""Records that `tidewheel produce` writes, and its end."""

from collections.abc import Iterator
from typing import Any

from tidewheel.streams.cli.commands.records.produce import _Writer
from tidewheel.streams.cli.commands.records.record_lines import NewRecord


class _Producer:
    def __init__(self) -> None:
        self.staged: list[bytes | None] = []
        self.written: list[bytes | None] = []
        self.is_closed = False

    def produce(self, columns: Any) -> None:
        self.staged += columns.values

    def flush(self) -> list[Any]:
        self.written += self.staged
        self.staged = []
        return []

    def close(self) -> None:
        self.is_closed = True


def _records() -> Iterator[NewRecord]:
    for value in (b"a", b"b"):
        yield NewRecord(key=None, value=value, timestamp=1, headers=())
    raise KeyboardInterrupt


def test_the_records_before_a_ctrl_c_are_written_and_counted() -> None:
    producer: Any = _Producer()
    writer = _Writer(producer, "out", 0, batch=100)
    assert writer.write(_records()) == 2
    assert writer.is_interrupted
    assert producer.written == [b"a", b"b"]
    assert producer.is_closed
