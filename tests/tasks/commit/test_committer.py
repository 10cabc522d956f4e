"""Commits: outputs, changelogs and offsets are atomic, for every answer of the cluster."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from tests.fakes.broker import CommitFate, FakeBroker
from tests.fakes.clients import FakeClients, FakeTransactionalProducer
from tests.fakes.clock import FakeClock
from tests.tasks.task.outputs import collector_of, columns_of
from tidewheel import FencedError, RecordFailedError, StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.tasks.commit.commit_schedule import CommitState
from tidewheel.tasks.commit.committer import (
    Commit,
    Committer,
    RolledBackError,
    changed_offsets,
    run_in_thread,
)
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    Positions,
    TransactionAbortedError,
    UnansweredError,
    UnsettledOffsetsError,
)
from tidewheel.tasks.processing.api.handlers import ErrorResponse
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers

GROUP = "app"
IN = TopicPartition("in", 0)
LOG = TopicPartition("app-counts-changelog", 0)


class Stage:
    def __init__(
        self,
        handlers: ErrorHandlers | None = None,
        *,
        at_least_once: bool = False,
        make: Callable[[FakeBroker], FakeTransactionalProducer] | None = None,
    ) -> None:
        self.broker = FakeBroker()
        for topic in ("in", "out", "app-r", "dead", LOG.topic):
            self.broker.create_topic(topic)
        clients = FakeClients(self.broker)
        self.clock = FakeClock()
        self.began_ms = self.clock.now_ms()
        self.waits = 0
        self.on_wait: Callable[[], None] = lambda: None
        self.sinks = clients.sink_producer() if at_least_once else None
        #: Largest record of each topic, in bytes, by the cluster's settings.
        self.limits: dict[str, int] = {}
        self.collector = collector_of(handlers, sinks=self.sinks, limits=self.limits)
        make_one = make or (lambda broker: clients.transactional_producer("app-1"))
        self.producers: list[FakeTransactionalProducer] = []

        self.before_init: Callable[[], None] = lambda: None

        def make_producer() -> FakeTransactionalProducer:
            self.before_init()
            self.producers.append(make_one(self.broker))
            self.producers[-1].init()
            return self.producers[-1]

        self.committer = Committer(
            group_id=GROUP,
            make_producer=make_producer,
            collector=self.collector,
            admin=clients.admin(),
            clock=self.clock,
            wait=self.wait,
        )

    def wait(self, seconds: float) -> None:
        self.waits += 1
        self.clock.advance(int(seconds * 1000))
        self.on_wait()

    def commit(self, *, sequence: int = 1) -> Commit:
        return Commit(
            outputs=self.collector.pop_staged(),
            changelogs={LOG: [Drained([b"a", b"b"], [b"1", None], [5, 6])]},
            offsets={IN: CommittedOffset(42, f"metadata {sequence}")},
        )

    def carry_out(self, commit: Commit | None = None, **changes: Any) -> Positions:
        self.committer.prepare(self.commit(**changes) if commit is None else commit)
        return self.committer.complete()

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in self.broker.records(topic)]

    @property
    def committed(self) -> CommittedOffset | None:
        return self.broker.groups[GROUP].get(IN)

    def assert_nothing_visible(self) -> None:
        assert (self.values("out"), self.values(LOG.topic), self.committed) == ([], [], None)


class AwayAtFirst:
    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise UnansweredError("no broker is there")

    def put_before(self, admin: Any, name: str) -> None:
        answers = getattr(admin, name)

        def call(*args: Any, **options: Any) -> Any:
            self()
            return answers(*args, **options)

        setattr(admin, name, call)


def staged(stage: Stage, *values: bytes, topic: str = "out", internal: bool = False) -> None:
    stage.collector.add(columns_of(topic, *values), internal=internal)


def test_a_commit_makes_outputs_changelog_and_offsets_visible() -> None:
    stage = Stage()
    staged(stage, b"1", b"2")
    staged(stage, b"3")
    assert stage.carry_out() == {LOG: 2}
    assert stage.values("out") == [b"1", b"2", b"3"]
    rows = [
        (record.key, record.value, record.timestamp) for record in stage.broker.records(LOG.topic)
    ]
    assert rows == [(b"a", b"1", 5), (b"b", None, 6)]
    assert stage.committed == CommittedOffset(42, "metadata 1")
    assert stage.carry_out(sequence=2) == {LOG: 5}


def test_an_aborted_transaction_is_sent_again() -> None:
    stage = Stage()
    stage.broker.commit_fates.extend([CommitFate.ABORTS, CommitFate.ABORTS])
    stage.committer.producer.find_refused = pytest.fail  # type: ignore[method-assign, assignment]
    staged(stage, b"1")
    stage.carry_out()
    assert (stage.values("out"), stage.waits) == ([b"1"], 2)


def test_a_transaction_aborted_repeatedly_is_an_error() -> None:
    stage = Stage()
    stage.broker.commit_fates.extend([CommitFate.ABORTS] * 5_000)
    staged(stage, b"1")
    with pytest.raises(StreamsError, match=r"app-1 was aborted repeatedly for 300 s"):
        stage.carry_out()
    stage.assert_nothing_visible()


def test_a_deleted_changelog_ends_the_retries_immediately() -> None:
    stage = Stage()
    stage.broker.commit_fates.extend([CommitFate.ABORTS] * 5_000)
    stage.committer._admin.describe_topics = lambda *_: {}  # type: ignore[method-assign]
    with pytest.raises(StreamsError, match=f"changelog {LOG.topic} does not exist any more"):
        stage.carry_out()
    assert (stage.waits, stage.committed) == (0, None)


@pytest.mark.parametrize("with_changelog", [True, False])
def test_an_unknown_outcome_that_committed_counts_as_committed(with_changelog: bool) -> None:
    stage = Stage()
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_COMMITTED)
    staged(stage, b"1")
    commit = stage.commit()
    if not with_changelog:
        commit.changelogs.clear()
    positions = stage.carry_out(commit)
    assert positions == ({LOG: 2} if with_changelog else {})
    assert stage.values("out") == [b"1"]
    assert (len(stage.producers), stage.producers[0].closed) == (2, True)
    assert stage.committer.producer is stage.producers[1]
    stage.carry_out(sequence=2)


def test_an_unknown_outcome_that_did_not_commit_rolls_back() -> None:
    stage = Stage()
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
    staged(stage, b"1")
    with pytest.raises(RolledBackError):
        stage.carry_out()
    stage.assert_nothing_visible()
    assert len(stage.producers) == 2


def test_an_unknown_outcome_is_not_confused_with_the_previous_commit() -> None:
    stage = Stage()
    stage.carry_out(sequence=1)
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_OPEN)
    with pytest.raises(RolledBackError):
        stage.carry_out(sequence=2)


def test_an_unknown_outcome_is_queried_until_the_cluster_has_decided() -> None:
    stage = Stage()
    late = stage.broker.open_transaction("somebody slow")
    late.offsets[GROUP] = {IN: CommittedOffset(1, "")}
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_COMMITTED)
    staged(stage, b"1")

    def decide() -> None:
        if stage.waits == 3:
            stage.broker.abort("somebody slow")

    stage.on_wait = decide
    assert stage.carry_out() == {LOG: 2}
    assert (stage.values("out"), stage.waits) == ([b"1"], 3)


def test_an_outcome_that_stays_undecided_is_an_error_with_the_group() -> None:
    stage = Stage()
    late = stage.broker.open_transaction("somebody hung")
    late.offsets[GROUP] = {IN: CommittedOffset(1, "")}
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_COMMITTED)
    with pytest.raises(UnsettledOffsetsError, match=f"group {GROUP}"):
        stage.carry_out()
    assert 300_000 < stage.clock.now_ms() - stage.began_ms < 310_000


@pytest.mark.parametrize("call", ["init", "committed"])
def test_an_unknown_outcome_is_queried_while_no_broker_is_reachable(call: str) -> None:
    stage = Stage()
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_COMMITTED)
    away = AwayAtFirst(3)
    if call == "init":
        stage.before_init = away
    else:
        away.put_before(stage.committer._admin, call)
    staged(stage, b"1")
    assert stage.carry_out() == {LOG: 2}
    assert (stage.values("out"), stage.waits, away.left) == ([b"1"], 3, 0)
    assert stage.committer.producer is stage.producers[-1]


def test_brokers_that_stay_unreachable_are_an_error_after_the_timeout() -> None:
    stage = Stage()
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_COMMITTED)
    stage.before_init = AwayAtFirst(10_000)
    with pytest.raises(UnansweredError, match="no broker is there"):
        stage.carry_out()
    assert 300_000 < stage.clock.now_ms() - stage.began_ms < 310_000


def test_without_offsets_an_unknown_outcome_rolls_back() -> None:
    stage = Stage()
    stage.broker.commit_fates.append(CommitFate.UNKNOWN_COMMITTED)
    commit = stage.commit()
    commit.offsets.clear()
    with pytest.raises(RolledBackError):
        stage.carry_out(commit)


def test_a_fenced_producer_commits_nothing() -> None:
    stage = Stage()
    staged(stage, b"1")
    stage.broker.init_producer("app-1")
    with pytest.raises(FencedError):
        stage.carry_out()
    stage.assert_nothing_visible()
    assert stage.waits == 0


# -- while records are processed ---------------------------------------------------------------------------------------


def begun(stage: Stage, commit: Commit) -> Future[Positions]:
    works: list[Callable[[], Positions]] = []
    answer = Future[Positions]()

    def later(work: Callable[[], Positions]) -> Future[Positions]:
        works.append(work)
        return answer

    stage.committer.prepare(commit, later)
    assert stage.committer.state is not CommitState.ANSWERED
    stage.assert_nothing_visible()
    (work,) = works
    try:
        answer.set_result(work())
    except Exception as error:  # noqa: BLE001 - raised where the commit ends
        answer.set_exception(error)
    return answer


def test_a_commit_is_prepared_and_completed_separately() -> None:
    stage = Stage()
    staged(stage, b"1")
    begun(stage, stage.commit())
    assert stage.committer.state is CommitState.ANSWERED
    assert stage.committer.complete() == {LOG: 2}
    assert stage.committer.state is not CommitState.ANSWERED
    assert (stage.values("out"), stage.committed) == ([b"1"], CommittedOffset(42, "metadata 1"))


def test_records_processed_meanwhile_do_not_join_a_resent_commit() -> None:
    stage = Stage(ErrorHandlers(production="continue", dead_letter_topic="dead"))
    refuse(stage, "out", b"2")
    staged(stage, b"1", b"2")
    begun(stage, stage.commit())
    staged(stage, b"3")
    size = stage.collector.staged_bytes
    stage.committer.complete()
    assert (stage.values("out"), stage.values("dead")) == ([b"1"], [b"2"])
    assert stage.collector.staged_bytes == size
    stage.carry_out(sequence=2)
    assert stage.values("out") == [b"1", b"3"]


@pytest.mark.parametrize(
    ("fate", "committed"),
    [
        (None, True),
        (CommitFate.ABORTS, False),
        (CommitFate.UNKNOWN_COMMITTED, True),
        (CommitFate.UNKNOWN_OPEN, False),
    ],
)
def test_closed_tasks_get_the_outcome_of_their_commit(
    fate: CommitFate | None, *, committed: bool
) -> None:
    stage = Stage()
    if fate is not None:
        stage.broker.commit_fates.append(fate)
    staged(stage, b"1")
    begun(stage, stage.commit())
    assert (stage.committer.abandon(find_out=True) is not None) is committed
    assert stage.values("out") == ([b"1"] if committed else [])
    assert stage.committer.abandon(find_out=True) is None
    stage.committer.use(stage.collector)
    staged(stage, b"2")
    stage.carry_out(sequence=2)
    assert stage.values("out")[-1:] == [b"2"]


@pytest.mark.parametrize("fate", [CommitFate.UNKNOWN_COMMITTED, CommitFate.UNKNOWN_OPEN])
def test_the_outcome_of_an_abandoned_commit_is_not_queried(fate: CommitFate) -> None:
    stage = Stage()
    stage.broker.commit_fates.append(fate)
    begun(stage, stage.commit())
    stage.before_init = pytest.fail
    assert stage.committer.abandon(find_out=False) is None
    assert len(stage.producers) == 1


def test_a_result_that_arrives_at_the_timeout_is_used() -> None:
    stage = Stage()

    class Late(Future[Positions]):
        def result(self, timeout: float | None = None) -> Positions:
            if not self.done():
                self.set_result({LOG: 2})
                raise TimeoutError
            return super().result(timeout)

    stage.committer.prepare(stage.commit(), lambda _: Late())
    assert stage.committer.complete() == {LOG: 2}


def test_a_client_that_is_stuck_in_a_commit_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.tasks.commit.committer._TICK_S", 0.001)
    monkeypatch.setattr("tidewheel.tasks.commit.committer._STUCK_S", 0.02)
    stage = Stage()
    told: list[int] = []
    stage.committer._on_wait = lambda: told.append(1)
    stage.committer.prepare(stage.commit(), lambda _: Future())
    with pytest.raises(RolledBackError, match="app-1 is stuck in the client"):
        stage.committer.complete()
    assert len(told) == 20
    assert (len(stage.producers), stage.producers[0].closed) == (2, True)
    stage.carry_out(sequence=2)


def test_the_wait_for_a_commit_calls_its_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.tasks.commit.committer._TICK_S", 0.001)
    stage = Stage()
    go_on, told = threading.Event(), list[int]()
    stage.committer._on_wait = lambda: (told.append(1), go_on.set())  # type: ignore[assignment,func-returns-value]

    def slow(work: Callable[[], Positions]) -> Future[Positions]:
        return run_in_thread(lambda: work() if go_on.wait(30) else {})

    stage.committer.prepare(stage.commit(), slow)
    assert stage.committer.complete() == {LOG: 2}
    assert told


# -- refused records --------------------------------------------------------------------------------------------------


def refuse(stage: Stage, topic: str, *values: bytes) -> None:
    stage.broker.refuse(topic, lambda record: record.value in values)


def test_a_refused_record_stops_the_worker_by_default() -> None:
    stage = Stage()
    refuse(stage, "out", b"2")
    staged(stage, b"1", b"2", b"3")
    with pytest.raises(RecordFailedError, match="in-0 offset 101"):
        stage.carry_out()
    stage.assert_nothing_visible()


def test_refused_records_are_left_out_if_the_handler_continues() -> None:
    stage = Stage(ErrorHandlers(production="continue", dead_letter_topic="dead"))
    refuse(stage, "out", b"2", b"4", b"6")
    staged(stage, b"1", b"2", b"3")
    staged(stage, b"4", b"5")
    staged(stage, b"6")
    assert stage.carry_out() == {LOG: stage.broker.topics[LOG.topic].logs[0].end - 1}
    assert stage.values("out") == [b"1", b"3", b"5"]
    assert stage.values("dead") == [b"2", b"4", b"6"]
    assert stage.values(LOG.topic) == [b"1", None]
    assert stage.committed is not None


def test_a_refused_dead_letter_goes_to_the_handler_and_is_left_out() -> None:
    stage = Stage(ErrorHandlers(production="continue", dead_letter_topic="dead"))
    refuse(stage, "out", b"2")
    refuse(stage, "dead", b"2")
    staged(stage, b"1", b"2")
    stage.carry_out()
    assert (stage.values("out"), stage.values("dead")) == ([b"1"], [])


def test_a_refused_changelog_row_is_named_with_the_input_of_its_commit() -> None:
    stage = Stage()
    refuse(stage, LOG.topic, b"1")
    staged(stage, b"1")
    with pytest.raises(
        RecordFailedError,
        match=rf"changelog {LOG} refuses a row \(key of 1 bytes, hash sha256:ca978112ca1b.*in-0 offsets 0 to 41",
    ):
        stage.carry_out()


class Searching(FakeTransactionalProducer):
    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker, "app-1")
        self.searched: list[int] = []

    def find_refused(self, columns: Any) -> Any:
        self.searched.append(sum(map(len, columns)))
        return super().find_refused(columns)


def test_a_row_that_is_too_large_is_found_without_a_search_of_all_records() -> None:
    stage = Stage(make=Searching)
    stage.limits[LOG.topic] = 1_000
    refuse(stage, LOG.topic, b"x" * 2_000)
    staged(stage, *[b"1"] * 50)
    commit = stage.commit()
    commit.changelogs[LOG].append(Drained([b"small", b"large"], [b"2", b"x" * 2_000], [5, 6]))
    with pytest.raises(
        RecordFailedError, match=rf"changelog {LOG} refuses a row \(key of 5 bytes.* 1,000 bytes"
    ):
        stage.carry_out(commit)
    (producer,) = stage.producers
    assert isinstance(producer, Searching)
    assert producer.searched == [1]
    stage.assert_nothing_visible()


def test_a_large_row_that_is_accepted_alone_does_not_hide_the_refused_one() -> None:
    """The client may compress it."""
    stage = Stage(make=Searching)
    refuse(stage, LOG.topic, b"1")
    stage.limits[LOG.topic] = 1_000
    commit = stage.commit()
    commit.changelogs[LOG].append(Drained([b"large"], [b"x" * 2_000], [5]))
    with pytest.raises(RecordFailedError, match=r"key of 1 bytes"):
        stage.carry_out(commit)
    (producer,) = stage.producers
    assert isinstance(producer, Searching)
    assert producer.searched == [1, 3]


@pytest.mark.parametrize("topic", ["app-r", LOG.topic])
def test_refused_records_of_the_application_itself_stop_it(topic: str) -> None:
    stage = Stage(ErrorHandlers(production="continue"))
    refuse(stage, topic, b"1")
    staged(stage, b"1", topic="app-r", internal=True)
    with pytest.raises(RecordFailedError, match="the application's own state"):
        stage.carry_out()
    assert stage.committed is None


class Troubled(FakeTransactionalProducer):
    def __init__(self, broker: FakeBroker) -> None:
        super().__init__(broker, "app-1")
        self.search_errors: list[Exception] = []
        self.abort_errors: list[Exception] = []

    def find_refused(self, columns: Any) -> Any:
        if self.search_errors:
            raise self.search_errors.pop(0)
        return super().find_refused(columns)

    def abort(self) -> None:
        if self.abort_errors:
            raise self.abort_errors.pop(0)
        super().abort()


def test_a_search_without_a_result_is_repeated() -> None:
    stage = Stage(ErrorHandlers(production="continue"), make=Troubled)
    refuse(stage, "out", b"2")
    assert isinstance(stage.producers[0], Troubled)
    stage.producers[0].search_errors += [TransactionAbortedError("can't tell now")] * 3
    staged(stage, b"1", b"2")
    stage.carry_out()
    assert (stage.values("out"), stage.waits) == ([b"1"], 3)


def test_a_search_that_fails_for_a_missing_changelog_ends_the_retries() -> None:
    stage = Stage(ErrorHandlers(production="continue"), make=Troubled)
    refuse(stage, "out", b"1")
    assert isinstance(stage.producers[0], Troubled)
    stage.producers[0].search_errors += [TransactionAbortedError("no answer")] * 5_000
    stage.committer._admin.describe_topics = lambda *_: {}  # type: ignore[method-assign]
    staged(stage, b"1")
    with pytest.raises(StreamsError, match=f"changelog {LOG.topic} does not exist any more"):
        stage.carry_out()
    assert (stage.waits, stage.committed) == (0, None)
    assert len(stage.producers[0].search_errors) == 5_000


def test_a_changelog_deleted_during_a_search_ends_the_next_try() -> None:
    stage = Stage(ErrorHandlers(production="continue"), make=Troubled)
    refuse(stage, "out", b"1")
    assert isinstance(stage.producers[0], Troubled)
    stage.producers[0].search_errors += [TransactionAbortedError("no answer")] * 5_000
    there = [stage.committer._admin.describe_topics([LOG.topic])]
    stage.committer._admin.describe_topics = lambda *_: there.pop() if there else {}  # type: ignore[method-assign]
    staged(stage, b"1")
    with pytest.raises(StreamsError, match=f"changelog {LOG.topic} does not exist any more"):
        stage.carry_out()
    assert (stage.waits, stage.committed) == (1, None)


@pytest.mark.parametrize("where", ["search_errors", "abort_errors"])
def test_a_producer_that_ends_while_aborting_is_replaced(where: str) -> None:
    stage = Stage(ErrorHandlers(production="continue"), make=Troubled)
    refuse(stage, "out", b"2")
    getattr(stage.producers[0], where).append(CommitOutcomeUnknownError("lost the coordinator"))
    staged(stage, b"1", b"2")
    with pytest.raises(RolledBackError):
        stage.carry_out()
    stage.assert_nothing_visible()
    assert len(stage.producers) == 2


# -- at_least_once ----------------------------------------------------------------------------------------------------


def noted(stage: Stage) -> list[str]:
    calls: list[str] = []
    sinks, producer = stage.sinks, stage.committer.producer
    assert sinks is not None

    def note(target: Any, name: str) -> None:
        inner = getattr(target, name)

        def called(*given: Any) -> Any:
            calls.append(name)
            return inner(*given)

        setattr(target, name, called)

    note(sinks, "produce")
    note(sinks, "flush")
    note(producer, "commit")
    return calls


def assert_flushed(calls: list[str]) -> None:
    assert calls[-2:] == ["flush", "commit"]
    assert "produce" in calls


def test_sinks_are_flushed_before_the_transaction_starts() -> None:
    stage = Stage(at_least_once=True)
    calls = noted(stage)
    staged(stage, b"1")
    assert stage.values("out") == [b"1"]
    stage.carry_out()
    assert_flushed(calls)


def test_a_sink_record_that_timed_out_is_sent_again_without_asking() -> None:
    stage = Stage(at_least_once=True)
    stage.broker.fail_sends("out", times=4)
    staged(stage, b"1", b"2")
    stage.carry_out()
    assert sorted(value or b"" for value in stage.values("out")) == [b"1", b"2"]
    assert stage.committed is not None


def test_a_sink_record_that_times_out_for_long_goes_to_the_handler() -> None:
    stage = Stage(at_least_once=True)
    stage.broker.fail_sends("out", times=10_000)
    assert stage.sinks is not None
    inner = stage.sinks.flush

    def slow_flush() -> Any:
        stage.clock.advance(30_000)
        return inner()

    stage.sinks.flush = slow_flush  # type: ignore[method-assign]
    staged(stage, b"1")
    with pytest.raises(RecordFailedError, match="in-0 offset 100"):
        stage.carry_out()
    assert stage.committed is None


@pytest.mark.parametrize("setting", ["fail", lambda *_: ErrorResponse(action="retry")])
def test_a_refused_sink_record_stops_the_worker(setting: Any) -> None:
    stage = Stage(ErrorHandlers(production=setting), at_least_once=True)
    refuse(stage, "out", b"1")
    staged(stage, b"1")
    with pytest.raises(RecordFailedError):
        stage.carry_out()
    assert stage.committed is None


def test_dead_letters_of_sinks_are_flushed_before_offsets() -> None:
    stage = Stage(
        ErrorHandlers(production="continue", dead_letter_topic="dead"), at_least_once=True
    )
    calls = noted(stage)
    refuse(stage, "out", b"2")
    staged(stage, b"1", b"2")
    stage.carry_out()
    assert (stage.values("out"), stage.values("dead")) == ([b"1"], [b"2"])
    assert_flushed(calls)


def test_dead_letters_of_refused_outputs_are_flushed_before_offsets() -> None:
    stage = Stage(at_least_once=True)
    calls = noted(stage)
    stage.broker.commit_fates.append(CommitFate.ABORTS)
    inner = stage.committer._after_abort

    def with_dead_letter(commit: Commit, error: TransactionAbortedError) -> None:
        inner(commit, error)
        staged(stage, b"late letter", topic="dead")

    stage.committer._after_abort = with_dead_letter  # type: ignore[method-assign]
    stage.broker.fail_sends("dead")
    stage.carry_out()
    assert stage.values("dead") == [b"late letter"]
    assert_flushed(calls)


def test_only_changed_offsets_are_returned() -> None:
    before = {IN: CommittedOffset(1, "a"), LOG: CommittedOffset(2, "")}
    now = {
        IN: CommittedOffset(1, "b"),
        LOG: CommittedOffset(2, ""),
        TopicPartition("x", 1): CommittedOffset(0, ""),
    }
    assert changed_offsets(before, now) == {
        IN: CommittedOffset(1, "b"),
        TopicPartition("x", 1): CommittedOffset(0, ""),
    }
    assert changed_offsets(now, now) == {}


def test_a_commit_without_content_is_empty() -> None:
    assert Commit(outputs=[], changelogs={}, offsets={}).empty
    assert not Commit(outputs=[], changelogs={}, offsets={IN: CommittedOffset(1, "")}).empty
