"""The question of a backfill: only the same program and arguments continue an unfinished run."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tidewheel import Materialized, StreamsBuilder, StreamsConfig, TimeWindows, Topology
from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.streams.bulk.backfill.computation import HistoryFrame, Question

CONFIG = StreamsConfig(application_id="app", bootstrap_servers="unused:9092")
ASKED = Question(outputs="discard", begins={}, until="latest", until_of=None, accept=frozenset())
PRIVATE = "s3a://AKEY:SECRETKEY@bucket/history.parquet?sig=SIGSECRET"


def _topology(
    *,
    function: Callable[[Any], Any] = lambda value: value,
    size_ms: int = 1_000,
    grace_ms: int = 0,
    ttl_ms: int | None = None,
    serde: type = str,
) -> Topology:
    builder = StreamsBuilder()
    mapped = builder.stream("in", key_serde=str, value_serde=serde).map_values(function)
    grouped = mapped.group_by_key(key_serde=str, value_serde=str)
    grouped.windowed_by(TimeWindows(size_ms, grace=grace_ms)).count(store="windows")
    grouped.count(store=Materialized("counts", ttl=ttl_ms))
    return builder.build()


def _differs(
    topology: Topology | None = None, question: Question = ASKED, config: StreamsConfig = CONFIG
) -> list[str]:
    before = ASKED.digests(_topology(), CONFIG, {"in": b"1"})
    now = question.digests(topology or _topology(), config, {"in": b"1"})
    return [name for name in before if before[name] != now[name]]


def test_the_same_program_is_the_same_question() -> None:
    assert _differs() == []


@pytest.mark.parametrize(
    "changed",
    [
        {"function": lambda value: f"fixed {value}"},
        {"size_ms": 60_000},
        {"grace_ms": 60_000},
        {"ttl_ms": 5_000},
        {"serde": bytes},
    ],
)
def test_a_changed_program_is_another_question(changed: dict[str, Any]) -> None:
    assert _differs(_topology(**changed)) == ["program"]


@pytest.mark.parametrize(
    "name",
    [
        "deserialization_exception_handler",
        "processing_exception_handler",
        "production_exception_handler",
    ],
)
def test_other_handlers_are_another_question(name: str) -> None:
    settings: dict[str, Any] = {name: "continue"}
    assert _differs(config=CONFIG.replace(**settings)) == ["program"]


def _asked(**changed: Any) -> Question:
    given: dict[str, Any] = {
        "outputs": "discard", "begins": {}, "until": "latest", "until_of": None, "accept": frozenset(),
    }  # fmt: skip
    return Question(**{**given, **changed})


def _frame(columns: str) -> Any:
    return SimpleNamespace(schema=SimpleNamespace(simpleString=lambda: columns))


def test_arguments_are_named() -> None:
    assert _differs(question=_asked(outputs="topics")) == ["outputs"]
    assert _differs(question=_asked(begins={"in": "timestamp:5"})) == ["from"]
    assert _differs(question=_asked(until="timestamp:5")) == ["until"]
    assert _differs(question=_asked(until_of="old")) == ["until_of"]
    assert _differs(question=_asked(history={"in": HistoryFrame(_frame("a:int"))})) == ["history"]
    assert _differs(question=_asked(accept=frozenset({"gap"}))) == []


def test_frames_of_other_columns_are_another_question() -> None:
    one, other = (
        _asked(history={"in": HistoryFrame(_frame(columns))}).digests(_topology(), CONFIG, {})
        for columns in ("struct<key:string>", "struct<key:string,offset:bigint>")
    )
    assert one["history"] != other["history"]


def test_digests_tell_no_secret() -> None:
    question = _asked(outputs=PRIVATE, history={"in": HistoryFrame(FrameSource(source=PRIVATE))})
    text = str(question.digests(_topology(), CONFIG, {}))
    assert "SECRET" not in text
