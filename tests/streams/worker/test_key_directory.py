"""Reads of the group log: to the end, then new entries, again after a failure."""

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.clients import FakeChangelogReader
from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import APP, FakeGroup, GroupAdmin
from tests.streams.worker.test_worker_hello import application
from tidewheel import KafkaStreams, RunOptions, StreamsBuilder, StreamsConfig
from tidewheel.rebalance.inspect.describe import LogEntry
from tidewheel.rebalance.protocol.decoding import RejectedRecord
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.group.topics import LogTopic
from tidewheel.streams.worker.key_directory import FollowedLog, GroupDirectory


class _Log:
    """Log that records its calls and can fail."""

    def __init__(self, group: FakeGroup) -> None:
        self._topic = LogTopic(APP, GroupAdmin(group.broker), FakeChangelogReader(group.broker))
        self.asked: list[str] = []
        self.error: StreamsError | None = None

    def to_end(self, *, decided: bool = False) -> list[LogEntry | RejectedRecord]:
        self.asked.append("to_end")
        return self._topic.to_end(decided=decided)

    def fetched(self) -> list[LogEntry | RejectedRecord]:
        self.asked.append("fetched")
        if self.error is not None:
            raise self.error
        return self._topic.fetched()

    def close(self) -> None:
        self.asked.append("close")
        self._topic.close()


def _directory(tmp_path: Path, logs: list[FollowedLog | None]) -> GroupDirectory:
    waiting = iter(logs)
    return GroupDirectory(application(tmp_path), lambda: next(waiting))


def test_the_log_is_read_to_its_end_once_and_followed_from_there(tmp_path: Path) -> None:
    group = FakeGroup()
    book = two_members()
    group.write(book)
    log = _Log(group)
    directory = _directory(tmp_path, [log])
    assert directory.group() == book.group
    assert directory.group() == book.group
    group.write(book.released("0_0"))
    assert directory.group() == book.group
    assert log.asked == ["to_end", "fetched", "fetched"]


def test_a_missing_group_is_searched_again(tmp_path: Path) -> None:
    group = FakeGroup()
    directory = _directory(tmp_path, [None, _Log(group)])
    assert not directory.group().members
    book = two_members()
    group.write(book)
    assert directory.group() == book.group


def test_a_failing_log_is_closed_and_read_again(tmp_path: Path) -> None:
    group, other = FakeGroup(), FakeGroup()
    book = two_members()
    group.write(book)
    failing = _Log(group)
    directory = _directory(tmp_path, [failing, _Log(other)])
    directory.group()
    failing.error = StreamsError("it was deleted")
    with pytest.raises(StreamsError, match="deleted"):
        directory.group()
    assert failing.asked[-1] == "close"
    assert not directory.group().members


def test_a_closed_directory_opens_no_reader(tmp_path: Path) -> None:
    group = FakeGroup()
    log = _Log(group)
    directory = _directory(tmp_path, [log])
    directory.group()
    directory.close()
    directory.close()
    assert log.asked == ["to_end", "close"]
    with pytest.raises(StreamsError, match="is closed"):
        directory.group()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunOptions(), "application shop is CREATED; where keys are is known from start"),
        (RunOptions(fixed=True), "placed by hand"),
    ],
)
def test_queries_without_a_group_are_an_error_with_its_cause(
    options: RunOptions, message: str, tmp_path: Path
) -> None:
    builder = StreamsBuilder()
    builder.table("in", key_serde=str, value_serde=str, store="rows")
    settings: dict[str, Any] = {"application_id": "shop", "state_dir": tmp_path}
    app = KafkaStreams(builder.build(), StreamsConfig(**settings), options=options)
    with pytest.raises(StreamsError, match=message):
        app.query_metadata_for_key("rows", "a", str)
    with pytest.raises(StreamsError, match=message):
        app.metadata_for_all_clients()
