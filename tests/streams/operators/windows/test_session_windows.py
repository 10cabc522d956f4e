"""Sessions: the fast path equals the general one."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.operators.run import JSON, driver_of, outputs
from tests.streams.operators.window_runs import KEYED, flat_key
from tidewheel import KStream, Materialized
from tidewheel.streams.operators.windows.session_windows import SessionWindowAggregate
from tidewheel.streams.windows import SessionWindows
from tidewheel.testing import TopologyTestDriver

#: (key, value, timestamp); 13 fails in the fold, 7 in a merge, 5 in the serde.
Record = tuple[str | None, int, int]

TIMES = st.one_of(st.integers(0, 40), st.integers(0, 40), st.integers(100, 140))
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["a", "a", "b", None]),
        st.sampled_from([1, 2, 3, 5, 7, 13]),
        TIMES,
    ),
    min_size=1,
    max_size=12,
)
BATCHES = st.lists(RECORDS, max_size=4)
SESSIONS = st.builds(SessionWindows, st.sampled_from([1, 4, 10]), st.sampled_from([0, 3, 1_000]))


def add(_key: str, value: int, total: Any) -> Any:
    if value == 13:
        raise ValueError("no 13")
    return object() if value == 5 else (total or 0) + value


def merge(_key: str, one: Any, two: Any) -> Any:
    if two == 7:
        raise ValueError("no 7")
    return (one or 0) + two


def everything(
    batches: Sequence[Sequence[Record]], windows: SessionWindows, *, longer: int, counts: bool
) -> list[Any]:
    def use(stream: KStream[Any, Any]) -> Any:
        cut = stream.group_by_key(**KEYED).windowed_by(windows)
        kept = Materialized("store", key_serde=JSON, retention=windows.retention_ms + longer)
        table = (
            cut.count(store=kept)
            if counts
            else cut.aggregate(lambda: None, add, merger=merge, store=kept, value_serde=JSON)
        )
        return table.to_stream(flat_key)

    found: list[Any] = []
    with driver_of(use, processing_exception_handler="continue") as driver:
        output = driver.create_output_topic("out", key_serde=JSON, value_serde=JSON)
        for batch in batches:
            pipe(driver, batch)
            stored = list(driver.get_state_store("store").fetch_range(None, None))
            found.append((output.read_records(), stored))
        found.append(
            {
                group: {name: value for name, value in metrics.items() if "dropped" in name}
                for group, metrics in driver.metrics().items()
            }
        )
    return found


def pipe(driver: TopologyTestDriver, batch: Sequence[Record]) -> None:
    driver.create_input_topic("in", key_serde=JSON, value_serde=JSON).pipe_batch(batch)


def never(_self: SessionWindowAggregate) -> bool:
    return False


@pytest.mark.slow
@given(BATCHES, SESSIONS, st.sampled_from([0, 20]), st.booleans())
@settings(max_examples=60)
def test_the_fast_path_has_the_results_of_the_general_path(
    batches: Sequence[Sequence[Record]], windows: SessionWindows, longer: int, counts: bool
) -> None:
    quick = everything(batches, windows, longer=longer, counts=counts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionWindowAggregate, "is_plain", never)
        assert everything(batches, windows, longer=longer, counts=counts) == quick


@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
@pytest.mark.parametrize("is_quick", [True, False])
@pytest.mark.parametrize("earlier", [2, "a text that the buffer keeps only as bytes" * 100])
def test_a_session_stays_if_its_successor_does_not_serialise(
    monkeypatch: pytest.MonkeyPatch, earlier: Any, store_format: str, *, is_quick: bool
) -> None:
    """The record is skipped; the sessions that it would have merged are still there."""
    if not is_quick:
        monkeypatch.setattr(SessionWindowAggregate, "is_plain", never)

    def use(stream: KStream[Any, Any]) -> Any:
        cut = stream.group_by_key(**KEYED).windowed_by(SessionWindows(10))
        return cut.aggregate(
            lambda: None,
            lambda _, value, total: object() if value == 5 else earlier if total is None else value,
            merger=lambda _, one, two: two,
            store=Materialized("store", key_serde=JSON, retention=1_000),
            value_serde=JSON,
        ).to_stream(flat_key)

    with driver_of(
        use, processing_exception_handler="continue", dsl_store_format=store_format
    ) as driver:
        pipe(driver, [("a", 1, 0), ("a", 1, 20), ("a", 5, 10), ("a", 1, 100)])
        stored = [each for _, each in driver.get_state_store("store").fetch_range(None, None)]
    if store_format == "HEADERS":
        stored = [each.aggregation for each in stored]
    assert stored == [earlier] * 3


def test_results_on_update_use_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    general, quick = SessionWindowAggregate.apply_records, SessionWindowAggregate.updated

    def note_general(self: Any, *arguments: Any) -> Any:
        ways.append("general")
        return general(self, *arguments)

    def note_quick(self: Any, *arguments: Any) -> Any:
        ways.append("quick")
        return quick(self, *arguments)

    monkeypatch.setattr(SessionWindowAggregate, "apply_records", note_general)
    monkeypatch.setattr(SessionWindowAggregate, "updated", note_quick)

    def use(stream: KStream[Any, Any]) -> Any:
        return (
            stream.group_by_key(**KEYED).windowed_by(SessionWindows(10)).count().to_stream(flat_key)
        )

    for cache_bytes in (0, 1 << 20):
        with driver_of(use, statestore_cache_max_bytes=cache_bytes) as driver:
            pipe(driver, [("a", 1, 1)])
    assert ways == ["quick", "general"]


@pytest.mark.parametrize(
    ("store_type", "expected"),
    [
        ("rocksdb", [("c", 6), ("b", 8), ("a", 10), ("d", 10)]),
        ("in_memory", [("a", 10), ("b", 8), ("c", 6), ("d", 10)]),
    ],
)
def test_sessions_that_close_together_are_emitted_in_the_order_of_kafka_streams(
    store_type: Any, expected: list[Any]
) -> None:
    rows = [("b", 8), ("a", 10), ("b", 10), ("c", 6), ("c", 10), ("d", 10), ("z", 100)]
    with driver_of(
        lambda stream: (
            stream.group_by_key(key_serde=JSON, value_serde=JSON)
            .windowed_by(SessionWindows(5))
            .emit_strategy("on_window_close")
            .count(store=Materialized(store_type=store_type, key_serde=JSON))
            .to_stream(lambda key, _: [key.key, key.start, key.end])
        )
    ) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        for key, time in rows:
            source.pipe_input(key, "x", time)
        assert [(key[0], key[1]) for key, _, _ in outputs(driver)] == expected
