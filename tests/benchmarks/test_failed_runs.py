"""A failed run loses its own figure only, not the hours of other runs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Never

import pytest
from confluent_kafka import KafkaException
from rich.console import Console

from benchmarks import run, throughput
from benchmarks.environment.peer_process import RunFailedError, Usage
from benchmarks.environment.systems import SYSTEMS
from benchmarks.jobs.checks import tally_for
from benchmarks.run import RunRequest, WrongResultError, run_once
from benchmarks.throughput import QUICK, Selection, ThroughputSuite, settings
from benchmarks.topics import input_topic, outputs
from benchmarks.topics.generator import InputSpec

REQUEST = RunRequest(
    system=SYSTEMS["quix"],
    job="throughput",
    run_name="bench-test",
    guarantee="exactly_once",
    commit_interval_ms=100,
    cache_bytes=0,
    threads=None,
    source=InputSpec(records=10),
    untimed_records=2,
)


class Written:
    def __init__(self, value: bytes) -> None:
        self._value = value

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return self._value


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end immediately, without a broker."""
    monkeypatch.setattr(input_topic, "quiet_admin", lambda *_: None)
    monkeypatch.setattr(input_topic, "create_topic", lambda *_: None)
    monkeypatch.setattr(run, "delete_run_topics", lambda *_: None)
    monkeypatch.setattr(run, "_run_process", lambda *_: Usage())
    monkeypatch.setattr(outputs, "partition_count", lambda *_: 1)


def writes(monkeypatch: pytest.MonkeyPatch, *values: bytes) -> None:
    def batches(*_: object) -> Iterator[list[Written]]:
        yield [Written(value) for value in values]

    monkeypatch.setattr(outputs, "read_to_end", batches)


def raises(error: Exception) -> Callable[..., Never]:
    def ask(*_: object) -> Never:
        raise error

    return ask


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b"{", ValueError),
        (b'{"start":0}', KeyError),
        (b"[]", TypeError),
        (b'{"start":"today","value":1}', Exception),
    ],
)
def test_an_output_that_cannot_be_read_is_a_wrong_result(
    value: bytes, cause: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes(monkeypatch, b'{"start":0,"value":1}', value)
    request = replace(REQUEST, tally=tally_for("windows", "json"))
    with pytest.raises(WrongResultError, match="output 2 of bench-test-out cannot be read") as told:
        run_once("broker.test:9092", request, {})
    unreadable = told.value.__cause__
    assert isinstance(unreadable, outputs.UnreadableOutputError)
    assert isinstance(unreadable.__cause__, cause)


@pytest.mark.parametrize(
    "error", [TimeoutError("no end within 30 s"), KafkaException("no end within 30 s")]
)
def test_a_broker_that_does_not_answer_is_a_failure_of_the_run(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "read_to_end", raises(error))
    with pytest.raises(RunFailedError, match="no end within 30 s") as told:
        run_once("broker.test:9092", REQUEST, {})
    assert not isinstance(told.value, WrongResultError)
    assert told.value.__cause__ is error


def test_a_round_continues_after_a_failed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "right_result", lambda *_: {})
    monkeypatch.setattr(outputs, "read_to_end", raises(TimeoutError("no end within 30 s")))
    selection = Selection(
        size=QUICK, jobs=("count_by_key",), systems=("quix", "raw-client"), caches=("0",)
    )
    suite = ThroughputSuite("broker.test:9092", selection, Console(quiet=True), "today")
    setting: Any = next(settings(selection))
    assert suite._round(setting, list(setting.systems), 0) == {}
    assert [line.split(", ")[4] for line in suite.failures] == ["quix", "raw-client"]
