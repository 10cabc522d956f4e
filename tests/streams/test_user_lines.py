"""Errors of user code name the user's line, at each place that calls user code."""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import pytest

from tests.streams.operators.run import JSON
from tidewheel import (
    ErrorResponse,
    JoinWindows,
    KStream,
    Processor,
    PunctuationType,
    Record,
    RecordFailedError,
    Serde,
    Serdes,
    SessionWindows,
    StreamsBuilder,
    StreamsConfig,
    retrying,
)
from tidewheel.state_stores import user_code
from tidewheel.testing import TopologyTestDriver

FILE = __file__


def pick(*_arguments: object) -> Any:
    raise KeyError("cents")


LINE = pick.__code__.co_firstlineno + 1


def stop(*_arguments: object) -> Any:
    """Stop after an empty line."""

    raise StopIteration


STOP_LINE = stop.__code__.co_firstlineno + 3


async def _awaited(value: object) -> Any:
    await asyncio.sleep(0)
    return pick(value)


async def _grouped(value: object) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_awaited(value))


class _Picks(Processor[Any, Any, Any, Any]):
    def process(self, record: Record[Any, Any]) -> None:
        pick(record.value)


class _PicksLater(Processor[Any, Any, Any, Any]):
    async def process(self, record: Record[Any, Any]) -> None:
        await _awaited(record.value)


class _Scheduled(Processor[Any, Any, Any, Any]):
    def init(self, context: Any) -> None:
        context.schedule(1, PunctuationType.STREAM_TIME, pick)

    def process(self, record: Record[Any, Any]) -> None:
        pass


class _Forwards(Processor[Any, Any, Any, Any]):
    """Calls downstream code, which fails."""

    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record)


@dataclass
class _Order:
    cents: int

    def __post_init__(self) -> None:
        pick(self.cents)


class _Serde(Serde[Any]):
    def __init__(self) -> None:
        super().__init__(pick, pick)

    def serialize(self, _topic: str, value: Any, /) -> Any:
        return pick(value)

    def deserialize(self, _topic: str, data: bytes, /) -> Any:
        return pick(data)


def _serde(**functions: Any) -> Serde[Any]:
    return Serde(**{"serialize": lambda _t, _v: b"1", "deserialize": lambda _t, _d: 1, **functions})


def _grouped_by_key(stream: KStream[Any, Any]) -> Any:
    return stream.group_by_key(key_serde=JSON, value_serde=JSON)


def _windowed(stream: KStream[Any, Any]) -> Any:
    sessions = _grouped_by_key(stream).windowed_by(SessionWindows(10))
    return sessions.aggregate(
        lambda: 0, lambda _key, value, _total: value, merger=pick, value_serde=JSON
    )


def _joined(stream: KStream[Any, Any]) -> Any:
    within = JoinWindows(5)
    return stream.join(
        stream.map_values(lambda value: value),
        pick,
        within=within,
        key_serde=JSON,
        value_serde=JSON,
        other_value_serde=JSON,
    )


def _reduced(stream: KStream[Any, Any]) -> Any:
    return _grouped_by_key(stream).reduce(pick)


def _aggregated(initializer: Any, aggregator: Any) -> Callable[[KStream[Any, Any]], Any]:
    return lambda stream: _grouped_by_key(stream).aggregate(
        initializer, aggregator, value_serde=JSON
    )


def _of_table(use: Callable[[Any], Any]) -> Callable[[KStream[Any, Any]], Any]:
    return lambda stream: use(stream.to_table(key_serde=JSON, value_serde=JSON))


#: What is called -> its use.
PROCESSING: dict[str, Callable[[KStream[Any, Any]], Any]] = {
    "mapper": lambda s: s.map_values(pick),
    "mapper of pairs": lambda s: s.map(pick),
    "lambda": lambda s: s.map_values(lambda value: pick(value) + 1),
    "comprehension": lambda s: s.map_values(lambda value: [pick(part) for part in (value,)]),
    "iterator": lambda s: s.flat_map_values(lambda value: (pick(part) for part in (value,))),
    "predicate": lambda s: s.filter(pick),
    "split": lambda s: s.split({"a": pick})["a"],
    "key": lambda s: s.select_key(pick),
    "peek": lambda s: s.peek(pick),
    "foreach": lambda s: s.foreach(pick),
    "batch mapper": lambda s: s.map_values_batch(lambda values: [pick(v) for v in values]),
    "retries": lambda s: s.map_values(retrying(pick, attempts=2, backoff=1)),
    "coroutine mapper": lambda s: s.map_values(_awaited),
    "coroutines of a group": lambda s: s.map_values(_grouped),
    "coroutine processor": lambda s: s.process(_PicksLater),
    "processor": lambda s: s.process(_Picks),
    "downstream of a processor": lambda s: s.process(_Forwards).map_values(pick),
    "punctuation": lambda s: s.process(_Scheduled),
    "initializer": _aggregated(pick, lambda _key, _value, total: total),
    "aggregator": _aggregated(lambda: 0, lambda _key, value, _total: pick(value)),
    "reducer": _reduced,
    "merger": _windowed,
    "joiner": _joined,
    "table's mapper": _of_table(lambda table: table.map_values(pick)),
    "table's key": _of_table(
        lambda table: table.group_by(pick, key_serde=JSON, value_serde=JSON).count()
    ),
    "topic function": lambda s: s.to(lambda key, _value, _context: pick(key), value_serde=JSON),
}
PRODUCTION: dict[str, Callable[[KStream[Any, Any]], Any]] = {
    "partitioner": lambda s: s.to("out", partitioner=pick, key_serde=JSON, value_serde=JSON),
    "serde that writes": lambda s: s.to("out", key_serde=JSON, value_serde=_serde(serialize=pick)),
    "serde class that writes": lambda s: s.to("out", key_serde=JSON, value_serde=_Serde()),
}
DESERIALIZATION: dict[str, Any] = {
    "serde that reads": _serde(deserialize=pick),
    "serde class that reads": _Serde(),
    "constructor of a typed serde": Serdes.json(_Order),
}
STAGES = {
    **{("processing", kind): use for kind, use in PROCESSING.items()},
    **{("production", kind): use for kind, use in PRODUCTION.items()},
    **{("deserialization", kind): serde for kind, serde in DESERIALIZATION.items()},
}


def _run(stage: str, use: Any, **options: Any) -> None:
    """Process two records of a key, whose sessions merge."""
    builder = StreamsBuilder()
    if stage == "deserialization":
        builder.stream("in", key_serde=JSON, value_serde=use).foreach(lambda _value: None)
    else:
        result = use(builder.stream("in", key_serde=JSON, value_serde=JSON))
        if isinstance(result, KStream):
            result.foreach(lambda _value: None)
    config = StreamsConfig(application_id="lines", bootstrap_servers="unused:9092", **options)
    with TopologyTestDriver(builder.build(), config) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        source.pipe_batch([("a", {"cents": 1}, 20), ("a", {"cents": 2}, 29)])


@pytest.mark.parametrize(("stage", "kind"), STAGES)
def test_a_failed_record_leads_to_the_users_line(stage: str, kind: str) -> None:
    with pytest.raises(RecordFailedError) as caught:
        _run(stage, STAGES[stage, kind])
    assert f"in pick() ({user_code.shown_path(FILE)}:{LINE})" in str(caught.value)
    assert f"failed in {stage}" in str(caught.value)


@pytest.mark.parametrize(("stage", "kind"), STAGES)
def test_stop_iteration_leads_to_the_users_line(
    stage: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iterations in C end at a `StopIteration`, and drop it."""
    if kind == "iterator":
        return  # a generator turns it into a RuntimeError itself
    monkeypatch.setattr(pick, "__code__", stop.__code__)
    with pytest.raises(RecordFailedError) as caught:
        _run(stage, STAGES[stage, kind])
    # That of a function below the mapper is lost.
    line = r"\d+" if kind in ("lambda", "comprehension") else STOP_LINE
    place = rf"in (stop\(\)|a lambda) \({user_code.shown_path(FILE)}:{line}\)"
    assert re.search(place, str(caught.value))
    assert "StopIteration" in str(caught.value)


@pytest.mark.parametrize(("stage", "kind"), STAGES)
def test_a_skipped_record_logs_the_users_frames_once(
    stage: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tidewheel"):
        _run(stage, STAGES[stage, kind], **{f"{stage}_exception_handler": "continue"})
    skips = [record for record in caplog.records if "skipped in" in record.message]
    assert skips
    for record in skips:
        assert f"in pick() ({user_code.shown_path(FILE)}:{LINE})" in record.message
    assert [record.exc_info for record in skips[1:]] == [None] * (len(skips) - 1)
    if kind == "constructor of a typed serde":
        assert skips[0].exc_info is None  # its error has no cause, which might quote the record
        return
    assert skips[0].exc_info
    trace = logging.Formatter().formatException(skips[0].exc_info)
    assert f'{FILE}", line {LINE}, in pick' in trace
    assert "KeyError" in trace.splitlines()[-1]
    assert ("KeyError: 'cents'" in trace) is not kind.startswith("serde that")
    assert user_code._PACKAGE not in trace


@pytest.mark.parametrize("stage", ["deserialization", "processing", "production"])
def test_a_failed_handler_is_named_by_its_line(stage: str) -> None:
    uses = {
        "deserialization": Serdes.int64(),
        "processing": lambda s: s.map_values(len).map_values(int.bit_count),
        "production": lambda s: s.to("out", key_serde=JSON, value_serde=Serdes.int64()),
    }

    def handler(*_arguments: object) -> ErrorResponse:
        pick()
        raise AssertionError

    def fails(_value: object) -> NoReturn:
        raise ValueError

    uses["processing"] = lambda s: s.map_values(fails)
    with pytest.raises(RecordFailedError, match="handler failed on it: KeyError: 'cents'") as error:
        _run(stage, uses[stage], **{f"{stage}_exception_handler": handler})
    assert f"in pick() ({user_code.shown_path(FILE)}:{LINE})" in str(error.value)


def test_an_error_without_a_text_gives_its_type() -> None:
    def fails(_value: object) -> NoReturn:
        raise TimeoutError

    with pytest.raises(
        RecordFailedError, match=r": TimeoutError, in fails\(\) \(\S+\.py:\d+\)\. To"
    ):
        _run("processing", lambda s: s.map_values(fails))


@pytest.mark.parametrize(
    ("stage", "use"),
    [("processing", lambda s: s.map_values(int)), ("deserialization", Serdes.int64())],
    ids=["function written in C", "serde of Tidewheel"],
)
def test_without_a_line_of_user_code_the_nodes_definition_is_named(stage: str, use: Any) -> None:
    place = rf"defined at {user_code.shown_path(FILE)}:\d+\)"
    with pytest.raises(RecordFailedError, match=place):
        _run(stage, use)


def test_a_timestamp_extractor_is_named_by_its_line() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=JSON, value_serde=JSON, timestamp_extractor=pick).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        with pytest.raises(RecordFailedError, match=rf"'cents', in pick\(\) \(\S+:{LINE}\)"):
            source.pipe_input("a", 1)
