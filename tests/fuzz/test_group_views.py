"""Views of a group: whatever the decoders accept can be shown, and steers no terminal."""

import json
from dataclasses import asdict
from functools import lru_cache
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.fuzz.extremes import extreme, is_plain, texts_in
from tests.rebalance.leader.group_logs import LogBook, two_members
from tests.streams.group.fake_group import APP
from tidewheel.rebalance.inspect.describe import LogEntry, LogFold, describe_group
from tidewheel.rebalance.inspect.history import Chronicle
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.messages import (
    AnyMessage,
    Beat,
    LeaderBeat,
    Message,
    encode_message,
    read_message,
)
from tidewheel.rebalance.protocol.records import AnyRecord, LeaderClaim, encode_record, read_record
from tidewheel.rebalance.protocol.task_status import TaskStatus
from tidewheel.streams.cli.group_view import (
    SORTS,
    alarm_lines,
    body_lines,
    head_lines,
    range_lines,
    slow_record_lines,
    status_line,
)
from tidewheel.streams.dashboard.metrics import metrics_text
from tidewheel.streams.dashboard.poller import PolledGroup, PollResult
from tidewheel.streams.dashboard.timeline import HistoryEpisode, HistoryTexts
from tidewheel.streams.dashboard.web import event
from tidewheel.streams.group.inbox import InboxFold
from tidewheel.streams.group.status import GroupStatus, group_status
from tidewheel.streams.group.topics import ReceivedMessage


@lru_cache(maxsize=1)
def _book() -> LogBook:
    """Return a group whose member `c` learns 0_1, and whose member `b` has a standby of 0_0."""
    book = two_members().member("c")
    book.target({"0_0": "a", "0_1": "c", "0_2": "a", "0_3": "b"}, "c joined")
    return book.step({"0_1": ("c-1", 7)}, {"0_0": ("b-1", 8)}, parked=("0_3",)).after(1_000)


#: Members with a task, role and epoch of theirs in this group.
_PLACES = st.sampled_from(
    [("a", "0_0", "active", 1), ("b", "0_0", "standby", 8), ("c", "0_1", "learner", 7)]
)


@st.composite
def _messages(draw: st.DrawFn, kind: type[Message]) -> bytes:
    """Draw a message that this group's views use."""
    row: dict[str, Any] = draw(extreme(kind))
    member, task, role, epoch = draw(_PLACES)
    sender = ("p1", "p1") if kind is LeaderBeat else (member, f"{member}-1")
    row |= {"app": APP, "member": sender[0], "incarnation": sender[1], "v": 1}
    if kind is LeaderBeat:
        row["leader_epoch"] = 1
    if kind is Beat:
        place = {"task": task, "role": role, "epoch": epoch}
        tasks = st.lists(extreme(TaskStatus), min_size=1, max_size=3)
        row["tasks"] = [each | place for each in draw(tasks)]
    return json.dumps(row).encode()


def _check_views(status: GroupStatus, history: tuple[HistoryEpisode, ...] = ()) -> None:
    row = orjson.loads(orjson.dumps(status.to_dict()))
    assert all(map(is_plain, texts_in(row)))
    poll = PollResult(number=1, at_s=0.0, polled=PolledGroup(status=status, history=history))
    assert orjson.loads(event(poll, 1.0, 2.0).removeprefix(b"data: "))["status"] == row
    assert [*text_string_to_metric_families(metrics_text(APP, poll).decode())]
    lines = [status_line(status), *slow_record_lines(status), *range_lines(status)]
    for sort in SORTS:
        texts = [*head_lines(status, 80), *alarm_lines(status), *body_lines(status, 80, sort=sort)]
        lines += [text.plain for text in texts]
    assert all(map(is_plain, lines))


@pytest.mark.parametrize("kind", get_args(AnyMessage), ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(st.data())
def test_each_accepted_message_can_be_shown(kind: type[Message], data: st.DataObject) -> None:
    book, inbox, log = _book(), InboxFold(), LogFold()
    for entry in book.entries:
        log.add(entry)
    for _ in range(data.draw(st.integers(1, 3))):
        message = read_message(data.draw(_messages(kind)))
        assert message is not None
        assert not isinstance(message, Rejection) or kind.__name__ in _RELATED
        if not isinstance(message, Rejection):
            assert all(map(is_plain, texts_in(message)))
            encode_message(message)
            inbox.add(ReceivedMessage(book.now_ms, message))
    _check_views(group_status(APP, log, inbox, now_ms=book.now_ms))


@pytest.mark.parametrize("kind", get_args(AnyRecord), ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(st.data())
def test_each_accepted_record_can_be_shown(kind: Any, data: st.DataObject) -> None:
    book, inbox, log, chronicle = _book(), InboxFold(), LogFold(), Chronicle()
    entries = list(book.entries)
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(extreme(kind)) | {"v": 1}
        if kind is not LeaderClaim:
            row["leader_epoch"] = 1
        record = read_record(json.dumps(row).encode())
        assert record is not None
        if not isinstance(record, Rejection):
            assert all(map(is_plain, texts_in(record)))
            encode_record(record)
            entries.append(LogEntry(len(entries), book.now_ms, record))
    for entry in entries:
        log.add(entry)
        chronicle.add(entry)
    episodes = chronicle.episodes()
    history = HistoryTexts(str).read(episodes)
    orjson.dumps([asdict(episode) for episode in episodes])
    assert all(is_plain(line) for each in history for line in each.text.splitlines())
    assert all(map(is_plain, describe_group(log.group, log.phase).splitlines()))
    _check_views(group_status(APP, log, inbox, now_ms=book.now_ms), history)


#: Kinds whose fields must fit each other, so that some drawn messages are rejected.
_RELATED = {"JoinGroup", "TransactionalIdWanted"}
