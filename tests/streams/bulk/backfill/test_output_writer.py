"""Outputs of a backfill are written exactly once: kills at any step, other jobs, other writers."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.broker import CommitFate, FakeBroker
from tests.fakes.clients import FakeAdmin
from tests.streams.bulk.backfill.outputs import (
    Output,
    backfilled_group,
    outputs_of,
    runs_of,
    small_transactions,
)
from tests.streams.bulk.local_job import FakeWriterPorts, Kill, Killed, KilledProducer
from tests.streams.group.fake_group import APP
from tidewheel import StreamsError
from tidewheel.rebalance.model import TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.streams.bulk import bounded_transactions
from tidewheel.streams.bulk.backfill.output_writer import OutputOrder, OutputReport, write_output
from tidewheel.streams.bulk.bootstrap.writer import SupersededError
from tidewheel.streams.errors import FencedError
from tidewheel.tasks.kafka.ports import (
    CommitOutcomeUnknownError,
    CommittedOffset,
    TransactionAbortedError,
)
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

AT = TopicPartition("alerts", 1)
WRITER = f"{APP}-backfill-out-alerts-1"
GROUP = f"{APP}:backfill"
OUTPUTS = outputs_of(40)
OTHER = b"other"
JOB = OutputOrder(application_id=APP, job="job-1", attempt="b1")


@pytest.fixture(autouse=True, scope="module")
def _small_transactions() -> Iterator[None]:
    with small_transactions():
        yield


class Sink:
    """Sink topic on a fake cluster, and the attempts that write its partition 1."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.broker.create_topic(AT.topic, 2)
        self.group = backfilled_group("b1")
        self.counted = 0
        self.others = 0

    def ports(self, kill: Callable[[str], None] | None = None) -> FakeWriterPorts:
        return FakeWriterPorts(self.broker, lambda: self.group, kill or Kill())

    def write(
        self,
        outputs: Sequence[Output] = OUTPUTS,
        *,
        order: OutputOrder = JOB,
        sizes: Sequence[int] = (7, 1, 3),
        kill: Callable[[str], None] | None = None,
    ) -> OutputReport:
        self.counted = 0
        return write_output(order, AT, runs_of(AT, outputs, sizes), self.ports(kill), self._count)

    def write_from_elsewhere(self) -> None:
        self.others += 1
        self.broker.send(AT.topic, b"%d" % self.others, OTHER, partition=AT.partition)

    def written(self) -> list[Output]:
        return [
            Output(*record[2:]) for record in self.broker.records(AT.topic) if record.key != OTHER
        ]

    @property
    def number(self) -> CommittedOffset | None:
        return FakeAdmin(self.broker).committed(GROUP, [AT], stable=False).get(AT)

    def _count(self, records: int) -> None:
        self.counted += records


def effects() -> int:
    kill = Kill()
    with small_transactions():
        Sink().write(kill=kill)
    return kill.count


def test_records_are_written_in_order_with_times_headers_and_without_keys() -> None:
    sink = Sink()
    report = sink.write()
    assert sink.written() == OUTPUTS
    assert {record.partition for record in sink.broker.records(AT.topic)} == {1}
    assert report == OutputReport(topic="alerts", partition=1, records=40, written=40)
    assert sink.counted == 40
    assert sink.number == CommittedOffset(40, "job-1")


def test_a_partition_without_records_is_written() -> None:
    report = Sink().write([])
    assert (report.records, report.written) == (0, 0)


def test_another_attempt_writes_nothing_again() -> None:
    sink = Sink()
    sink.write()
    report = sink.write(sizes=[11])
    assert sink.written() == OUTPUTS
    assert (report.records, report.written, sink.counted) == (40, 0, 40)


@pytest.mark.parametrize("at", range(1, effects() + 1))
def test_a_kill_at_any_step_loses_and_repeats_nothing(at: int) -> None:
    sink = Sink()
    with pytest.raises(Killed):
        sink.write(kill=Kill(at))
    sink.write_from_elsewhere()
    report = sink.write(sizes=[5])
    assert sink.written() == OUTPUTS
    assert (report.records, sink.counted) == (40, 40)
    assert sink.number == CommittedOffset(40, "job-1")


_FATES = st.sampled_from(CommitFate)
_SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=4)


@given(
    lives=st.lists(st.tuples(st.integers(1, 25), _SIZES, st.lists(_FATES, max_size=4)), max_size=8),
    count=st.integers(0, 60),
)
def test_no_schedule_of_kills_and_lost_answers_loses_or_repeats_a_record(
    lives: list[tuple[int, list[int], list[CommitFate]]], count: int
) -> None:
    sink, outputs = Sink(), outputs_of(count)
    for at, sizes, fates in lives:
        sink.broker.commit_fates.extend(fates)
        sink.write_from_elsewhere()
        try:
            sink.write(outputs, sizes=sizes, kill=Kill(at))
        except (Killed, TransactionAbortedError, CommitOutcomeUnknownError):
            assert sink.written() == outputs[: len(sink.written())]
        sink.broker.commit_fates.clear()
    sink.write(outputs)
    assert sink.written() == outputs
    others = [record.value for record in sink.broker.records(AT.topic) if record.key == OTHER]
    assert others == [b"%d" % number for number in range(1, sink.others + 1)]


def test_an_attempt_that_was_paused_while_writing_is_fenced() -> None:
    sink, pauses = Sink(), list[int]()

    def pause(effect: str) -> None:
        if effect == f"commit {WRITER}" and sink.number and sink.number.offset and not pauses:
            pauses.append(sink.number.offset)
            sink.write()

    with pytest.raises(FencedError):
        sink.write(kill=pause)
    assert 0 < pauses[0] < 40
    assert sink.written() == OUTPUTS


@pytest.mark.parametrize("group", [backfilled_group("b2"), Group()], ids=["later run", "over"])
def test_an_attempt_of_an_earlier_run_writes_nothing_and_counts_nothing(group: Group) -> None:
    sink = Sink()
    sink.write(order=OutputOrder(application_id=APP, job="job-2", attempt="b1"))
    sink.group = group
    with pytest.raises(SupersededError, match=f"{AT.topic}-{AT.partition}"):
        sink.write()
    assert sink.written() == OUTPUTS
    assert sink.number == CommittedOffset(40, "job-2")


def test_the_number_of_another_job_does_not_count() -> None:
    sink = Sink()
    sink.write()
    sink.group = backfilled_group("b2")
    report = sink.write(OUTPUTS[:5], order=OutputOrder(application_id=APP, job="2", attempt="b2"))
    assert sink.written() == [*OUTPUTS, *OUTPUTS[:5]]
    assert (report.records, report.written) == (5, 5)


def test_another_run_of_the_job_continues() -> None:
    sink = Sink()
    with pytest.raises(Killed):
        sink.write(kill=Kill(effects() - 2))
    sink.group = backfilled_group("b2")
    report = sink.write(order=OutputOrder(application_id=APP, job="job-1", attempt="b2"))
    assert sink.written() == OUTPUTS
    assert 0 < report.written < 40


def test_a_writer_is_in_the_group_before_its_first_record() -> None:
    sink = Sink()

    def look(effect: str) -> None:
        if effect.startswith("produce"):
            assert sink.number == CommittedOffset(0, "job-1")
            raise Killed(effect)

    with pytest.raises(Killed):
        sink.write(kill=look)


def test_files_of_another_run_are_found_by_their_length() -> None:
    sink = Sink()
    sink.write()
    with pytest.raises(
        StreamsError, match="already written 40 records, but its files have only 39"
    ):
        sink.write(OUTPUTS[:39])
    assert sink.written() == OUTPUTS


def test_transactions_are_bounded_by_records() -> None:
    sink, numbers = Sink(), list[int]()

    def look(effect: str) -> None:
        if effect.startswith("commit"):
            numbers.append(0 if sink.number is None else sink.number.offset)

    sink.write(sizes=[40], kill=look)
    assert numbers == [0, 0, 12, 24, 36], "nine or more records, in produce calls of four"


def test_transactions_are_bounded_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_transactions, "TRANSACTION_BYTES", 12)
    sink, kill = Sink(), Kill()
    sink.write(kill=kill, sizes=[4])
    assert kill.last.startswith("commit")
    many = kill.count
    monkeypatch.setattr(bounded_transactions, "TRANSACTION_BYTES", 1 << 30)
    kill = Kill()
    Sink().write(kill=kill, sizes=[4])
    assert kill.count < many


def test_a_refused_record_is_reported_with_its_partition() -> None:
    sink = Sink()
    sink.broker.refuse(AT.topic, lambda record: record.value == b"v20")
    with pytest.raises(
        StreamsError, match=r"alerts-1: the cluster refuses an output.*max\.message\.bytes"
    ):
        sink.write()
    assert sink.written() == OUTPUTS[: len(sink.written())]
    assert len(sink.written()) < 20


class AbortingProducer(KilledProducer):
    """Producer whose transactions are aborted a number of times, without a refused record."""

    aborts = 0
    step = ""

    def __init__(self, broker: FakeBroker, transactional_id: str) -> None:
        self.step_aborts = {self.step: self.aborts}
        super().__init__(broker, transactional_id, self._abort)

    def _abort(self, effect: str) -> None:
        step, _, _ = effect.partition(" ")
        transaction = self._transaction
        if transaction and transaction.partitions and self.step_aborts.get(step, 0):
            self.step_aborts[step] -= 1
            self.abort()
            raise TransactionAbortedError(
                "too large", record_refused=self.step_aborts[step] % 2 == 0
            )


class AbortingPorts(FakeWriterPorts):
    def producer(self, transactional_id: str) -> AbortingProducer:
        return AbortingProducer(self._broker, transactional_id)


@pytest.mark.parametrize("step", ["produce", "commit"])
def test_an_aborted_transaction_is_sent_again_if_no_record_is_refused(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AbortingProducer, "step", step)
    monkeypatch.setattr(AbortingProducer, "aborts", 8)
    sink = Sink()
    ports = AbortingPorts(sink.broker, lambda: sink.group, lambda _: None)
    report = write_output(JOB, AT, runs_of(AT, OUTPUTS, [6]), ports, lambda _: None)
    assert sink.written() == OUTPUTS
    assert report.written == 40


@pytest.mark.parametrize("step", ["produce", "commit"])
def test_a_transaction_that_is_aborted_each_time_ends_the_attempt(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AbortingProducer, "step", step)
    monkeypatch.setattr(AbortingProducer, "aborts", 9)
    sink = Sink()
    ports = AbortingPorts(sink.broker, lambda: sink.group, lambda _: None)
    with pytest.raises(StreamsError, match=r"alerts-1: the cluster refuses .*too large"):
        write_output(JOB, AT, runs_of(AT, OUTPUTS, [6]), ports, lambda _: None)
    assert sink.written() == []
    sink.write()
    assert sink.written() == OUTPUTS


def test_records_that_cannot_be_read_leave_no_open_transaction() -> None:
    sink = Sink()

    def damaged() -> Iterator[SourceRecords]:
        yield from runs_of(AT, OUTPUTS[:5], [5])
        raise StreamsError("a file is damaged")

    with pytest.raises(StreamsError, match="damaged"):
        write_output(JOB, AT, damaged(), sink.ports(), lambda _: None)
    log = sink.broker.topics[AT.topic].logs[AT.partition]
    assert log.last_stable_offset == log.end > 0
    assert sink.written() == []
