"""Open commits: later work joins them or waits; half a commit is never committed."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.fakes.broker import CommitFate
from tests.fakes.clients import FakeTransactionalProducer
from tests.tasks.commit.test_committer import LOG, Stage, refuse, staged
from tidewheel import FencedError
from tidewheel.tasks.commit.commit_schedule import CommitState
from tidewheel.tasks.commit.committer import RolledBackError, run_in_thread
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    Positions,
    TransactionAbortedError,
)
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers
from tidewheel.tasks.processing.engine.output import OutputColumns


class Opened:
    def __init__(self, stage: Stage, *values: bytes) -> None:
        self.stage = stage
        self.began, self.answers = threading.Event(), list[Future[Positions]]()
        self.commits = 0
        commit = stage.broker.commit

        def counted(*args: Any) -> CommitFate:
            self.commits += 1
            return commit(*args)

        vars(stage.broker)["commit"] = counted
        staged(stage, *values)
        stage.committer.prepare(stage.commit(), self._in_thread, opens=True)
        assert self.began.wait(30)

    def _in_thread(self, work: Callable[[], Positions]) -> Future[Positions]:
        def begin() -> Positions:
            self.began.set()
            return work()

        self.answers.append(run_in_thread(begin))
        return self.answers[0]

    def extend(self, *values: bytes) -> bool:
        staged(self.stage, *values)
        return self.stage.committer.extend(self.stage.commit(sequence=2))


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.tasks.commit.committer._OPEN_S", 60.0)


@pytest.mark.usefixtures("patience")
def test_later_records_may_join_an_open_commit() -> None:
    stage = Stage()
    opened = Opened(stage, b"1")
    assert stage.committer.state is not CommitState.ANSWERED
    stage.assert_nothing_visible()
    assert opened.extend(b"2")
    assert stage.committer.complete() == {LOG: 4}
    assert (stage.values("out"), stage.committed) == (
        [b"1", b"2"],
        CommittedOffset(42, "metadata 2"),
    )
    assert opened.commits == 1


def test_an_open_commit_without_a_second_part_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.tasks.commit.committer._OPEN_S", 0.001)
    stage = Stage()
    opened = Opened(stage, b"1")
    opened.answers[0].result(30)
    assert (stage.values("out"), stage.committed) == ([b"1"], CommittedOffset(42, "metadata 1"))
    staged(stage, b"2")
    late = stage.commit(sequence=2)
    assert not stage.committer.extend(late)
    assert stage.committer.complete() == {LOG: 2}
    assert stage.carry_out(late) == {LOG: 5}  # behind a marker
    assert (stage.values("out"), stage.committed) == (
        [b"1", b"2"],
        CommittedOffset(42, "metadata 2"),
    )


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("ends", ["complete", "abandon"])
def test_ending_an_open_commit_waits_for_no_second_part(ends: str) -> None:
    stage = Stage()
    Opened(stage, b"1")
    committer = stage.committer
    assert (committer.complete() if ends == "complete" else committer.abandon(find_out=True)) == {
        LOG: 2
    }
    assert (stage.values("out"), stage.committed) == ([b"1"], CommittedOffset(42, "metadata 1"))


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("bad", [b"1", b"2"])
def test_both_parts_are_sent_again_if_a_record_is_refused(bad: bytes) -> None:
    stage = Stage(ErrorHandlers(production="continue", dead_letter_topic="dead"))
    refuse(stage, "out", bad)
    opened = Opened(stage, b"1", b"0")
    assert opened.extend(b"2", b"3")
    stage.committer.complete()
    rest = [each for each in (b"1", b"0", b"2", b"3") if each != bad]
    assert (stage.values("out"), stage.values("dead")) == (rest, [bad])
    assert (len(stage.values(LOG.topic)), opened.commits) == (4, 1)


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("error", "is_raised"),
    [
        (TransactionAbortedError("half"), False),
        (CommitOutcomeUnknownError("half"), False),
        (FencedError("half"), True),
    ],
)
def test_half_of_a_commit_is_never_committed(error: Exception, *, is_raised: bool) -> None:
    stage = Stage()
    opened = Opened(stage, b"1")
    producer, produce = stage.committer.producer, stage.committer.producer.produce

    def fail(columns: OutputColumns) -> None:
        producer.produce = produce  # type: ignore[method-assign]
        if not is_raised:
            producer.abort()  # as the client does
        raise error

    producer.produce = fail  # type: ignore[method-assign]
    if is_raised:
        with pytest.raises(FencedError):
            opened.extend(b"2")
        with pytest.raises(FencedError):
            stage.committer.abandon(find_out=True)
        stage.assert_nothing_visible()
        return
    assert opened.extend(b"2")
    if isinstance(error, TransactionAbortedError):
        assert stage.committer.complete() == {LOG: 7}  # behind what was aborted, and its marker
        assert stage.values("out") == [b"1", b"2"]
    else:
        with pytest.raises(RolledBackError):
            stage.committer.complete()
        stage.assert_nothing_visible()


@pytest.mark.usefixtures("patience")
def test_the_offsets_of_an_open_commit_are_sent_before_its_second_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[CommittedOffset] = []
    told = threading.Event()

    def send(self: FakeTransactionalProducer, group: str, offsets: Any) -> None:
        send_offsets(self, group, offsets)
        sent.extend(offsets.values())
        told.set()

    send_offsets = FakeTransactionalProducer.send_offsets
    monkeypatch.setattr(FakeTransactionalProducer, "send_offsets", send)
    stage = Stage()
    opened = Opened(stage, b"1")
    assert told.wait(30)
    stage.assert_nothing_visible()
    assert opened.extend(b"2")
    stage.committer.complete()
    assert (sent, stage.committed) == (
        [CommittedOffset(42, "metadata 1")],
        CommittedOffset(42, "metadata 2"),
    )


@pytest.mark.usefixtures("patience")
def test_an_open_commit_shows_that_its_offsets_are_unanswered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sending, answered = threading.Event(), threading.Event()

    def send(self: FakeTransactionalProducer, group: str, offsets: Any) -> None:
        sending.set()
        assert answered.wait(30)
        send_offsets(self, group, offsets)

    send_offsets = FakeTransactionalProducer.send_offsets
    monkeypatch.setattr(FakeTransactionalProducer, "send_offsets", send)
    stage = Stage()
    Opened(stage, b"1")
    assert sending.wait(30)
    staged(stage, b"2")
    late = stage.commit(sequence=2)
    assert stage.committer.state.name == "OPENING"
    assert not stage.committer.extend(late)
    answered.set()
    assert stage.committer.complete() == {LOG: 2}
    assert stage.values("out") == [b"1"]
    assert stage.committer.state is CommitState.NONE
    stage.carry_out(late)
    assert (stage.values("out"), stage.committed) == (
        [b"1", b"2"],
        CommittedOffset(42, "metadata 2"),
    )


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (TransactionAbortedError("offsets"), None),
        (CommitOutcomeUnknownError("offsets"), RolledBackError),
        (FencedError("offsets"), FencedError),
    ],
)
def test_a_commit_with_failed_offsets_accepts_no_second_part(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception] | None
) -> None:
    def fail(self: FakeTransactionalProducer, _group: str, _offsets: Any) -> None:
        self.abort()  # as the client does, or a new producer does for it
        raise error

    monkeypatch.setattr(FakeTransactionalProducer, "send_offsets", fail)
    stage = Stage()
    opened = Opened(stage, b"1")
    with pytest.raises(type(error)):
        opened.answers[0].result(30)
    staged(stage, b"2")
    assert not stage.committer.extend(stage.commit(sequence=2))
    if raised is None:
        assert stage.committer.complete() == {LOG: 5}  # behind what was aborted, and its marker
        assert stage.values("out") == [b"1"]
        return
    with pytest.raises(raised):
        stage.committer.complete()
    stage.assert_nothing_visible()
