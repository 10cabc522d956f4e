"""Call watch: its reports and its log."""

import logging
import threading

import pytest

from tidewheel.rebalance.protocol.messages import Beat, decode_message, encode_message
from tidewheel.rebalance.protocol.orders import AnyReport, WorkerInCall
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.tasks.calls.call_watch import CallWatch, Limits
from tidewheel.tasks.calls.long_calls import UserCall
from tidewheel.tasks.processing.api.record import RecordMetadata

S = 1_000_000_000
ME = threading.get_ident()
OTHER = ME + 1


def _call(offset: int) -> UserCall:
    record = RecordMetadata("orders", 0, offset)
    return UserCall("enrich (app.py:3)", "map", "0_0", record, None, (offset,))


class Stage:
    def __init__(self, hang_s: float = 10.0, call_s: float | None = 60.0) -> None:
        self.turns = 0
        self.calls: dict[int, UserCall] = {}
        self.others: list[int] = []
        self.shown: list[int] = []
        self.reported: list[RunningCall | None] = []
        self.elsewhere: RunningCall | None = None
        self.watch = CallWatch(
            lambda: self.turns,
            range_threads=lambda: self.others,
            receiver=self,
            limits=Limits(hang_s, call_s),
            elsewhere=lambda: self.elsewhere,
            find=self.calls.get,
        )
        self.watch._checked_ns = 0
        self.now_s = 0.0

    def show_call(self, since_ns: int) -> None:
        self.shown.append(since_ns)

    def send(self, report: AnyReport) -> None:
        assert isinstance(report, WorkerInCall)
        self.reported.append(report.call)

    def look(self, seconds: float, step_s: float = 1.0) -> None:
        """Check once a second."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += step_s
            self.watch.check(int(self.now_s * S))


def test_a_call_is_shown_while_the_loop_does_not_turn() -> None:
    stage = Stage()
    stage.turns = 1
    stage.look(1)
    stage.calls[ME] = _call(5)
    stage.look(3)
    assert stage.shown == [0, S, S, S]
    stage.turns = 2
    stage.look(1)
    assert stage.shown[-1] == 0


def test_many_calls_are_not_one_long_call() -> None:
    stage = Stage()
    for offset in range(5):
        stage.calls[ME] = _call(offset)
        stage.look(3)
    assert stage.shown[-1] >= 12 * S


def test_the_loop_without_a_call_reports_none() -> None:
    stage = Stage()
    stage.look(5)
    assert set(stage.shown) == {0}


def test_long_calls_are_logged_with_their_record(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stage = Stage()
    stage.calls[ME] = _call(5)
    stage.look(9)
    assert caplog.records == []
    stage.look(3)
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    stage.look(60)
    error = caplog.records[-1]
    assert error.levelno == logging.ERROR
    for word in ("enrich (app.py:3)", "orders-0 offset 5", "max_call_ms"):
        assert word in error.getMessage()
    assert len(caplog.records) == 2
    stage.calls.clear()
    stage.turns += 1
    stage.look(1)
    assert "has ended" in caplog.records[-1].getMessage()


def test_a_call_that_kept_the_interpreter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    stage = Stage()
    stage.look(1)
    stage.turns += 1
    stage.calls[ME] = _call(5)
    stage.look(45, step_s=45.0)
    (warning,) = caplog.records
    assert "orders-0 offset 5" in warning.getMessage()
    stage.look(45, step_s=1.0)
    assert "orders-0 offset 5 has run" in caplog.text, "and still runs, giving the lock away"


def test_calls_of_key_ranges_do_not_count_against_the_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage(call_s=None)
    bounded = Stage(call_s=30.0)
    for each in (stage, bounded):
        each.others = [OTHER]
        each.calls[OTHER] = _call(7)
        for _ in range(40):
            each.turns += 1
            each.look(1)
        assert set(each.shown) == {0}
    assert [each.levelno for each in caplog.records] == [
        logging.WARNING,
        logging.WARNING,
        logging.ERROR,
    ]


def test_the_longest_call_is_measured_and_reported_while_it_runs() -> None:
    stage = Stage()
    stage.look(3)
    assert stage.watch.call is None
    assert stage.reported == []
    stage.calls[ME] = _call(5)
    stage.look(10)
    call = stage.watch.call
    assert call is not None
    assert call == stage.reported[-1]
    assert (call.ms, call.is_long) == (10_000, False)
    for word in ("enrich (app.py:3)", "orders-0 offset 5", "map", "0_0"):
        assert word in call.text
    stage.others, stage.calls[OTHER] = [OTHER], _call(9)
    stage.look(21)
    call = stage.watch.call
    assert call is not None
    assert (call.ms, call.is_long) == (31_000, True)
    assert "offset 5" in call.text
    stage.calls.clear()
    stage.others = []
    stage.look(2)
    assert stage.watch.call is None
    assert stage.reported[-1] is None
    said = len(stage.reported)
    stage.look(1)
    assert len(stage.reported) == said


def test_a_call_without_a_bound_is_long_after_the_hang_time_out() -> None:
    stage = Stage(hang_s=10.0, call_s=None)
    stage.calls[ME] = _call(5)
    stage.look(9)
    assert stage.watch.call is not None
    assert not stage.watch.call.is_long
    stage.look(2)
    assert stage.watch.call.is_long


def test_the_longer_call_of_another_watch_is_reported() -> None:
    stage = Stage()
    stage.elsewhere = RunningCall(text="fill (app.py:9)", ms=4_000)
    stage.look(1)
    assert stage.reported == [stage.elsewhere]
    stage.calls[ME] = _call(5)
    stage.look(6)
    assert stage.reported[-1] == stage.watch.call


def test_a_reported_call_fits_into_a_record_of_the_group() -> None:
    stage = Stage()
    stage.calls[ME] = _call(5)._replace(function="f\n\x1b[31m" + "x" * 5_000)
    stage.look(2)
    (call,) = [each for each in stage.reported[-1:] if each is not None]
    beat = Beat(app="app", member="m", incarnation="m.1", seq=1, call=call)
    assert decode_message(encode_message(beat)) == beat
