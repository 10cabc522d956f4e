"""Windows, joins and suppression: equal outputs with and without a restart (DESIGN §4)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.loop.bench import APP, Bench
from tidewheel import (
    BufferConfig,
    JoinWindows,
    KStream,
    Materialized,
    Serdes,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    StreamsConfig,
    Suppressed,
    TimeWindows,
    Topology,
)

STRING = Serdes.string()
Streams = tuple[KStream[str, str], KStream[str, str]]


def to_one_key(stream: KStream[Any, Any]) -> KStream[str, str]:
    return stream.map(lambda key, value: ("all", f"{key}={value}"))


def joined(left: str | None, right: str | None) -> str:
    return f"{left}+{right}"


TUMBLING = TimeWindows(10, grace=5)
VERSIONED = Materialized("rows", store_type="versioned", history_retention=20)
UNBOUNDED = BufferConfig.unbounded()

PROGRAMS: dict[str, Callable[[Streams], KStream[Any, Any]]] = {
    "tumbling": lambda s: s[0].group_by_key().windowed_by(TUMBLING).count().to_stream(),
    "hopping": lambda s: s[0].group_by_key().windowed_by(TimeWindows(10, advance=4, grace=3)).count().to_stream(),
    "sliding": lambda s: s[0].group_by_key().windowed_by(SlidingWindows(6, grace=4)).count().to_stream(),
    "session": lambda s: s[0].group_by_key().windowed_by(SessionWindows(4, grace=3)).count().to_stream(),
    "on close": lambda s: s[0].group_by_key().windowed_by(TUMBLING).emit_strategy("on_window_close").count().to_stream(),
    "suppress": lambda s: s[0].group_by_key().windowed_by(TUMBLING).count().suppress(Suppressed.until_window_closes(UNBOUNDED)).to_stream(),
    "time limit": lambda s: s[0].to_table(store="rows").suppress(Suppressed.until_time_limit(7, UNBOUNDED)).to_stream(),
    "inner join": lambda s: s[0].join(s[1], joined, within=JoinWindows(5, grace=3)),
    "left join": lambda s: s[0].left_join(s[1], joined, within=JoinWindows(5, grace=3)),
    "outer join": lambda s: s[0].outer_join(s[1], joined, within=JoinWindows(5, grace=3)),
    "self join": lambda s: s[0].join(s[0], joined, within=JoinWindows(5, grace=3)),
    "grace join": lambda s: s[0].left_join(s[1].to_table(store=VERSIONED), joined, grace=6),
}  # fmt: skip


def program(name: str) -> Topology:
    builder = StreamsBuilder()
    left, right = (
        builder.stream(topic, key_serde=STRING, value_serde=STRING) for topic in ("left", "right")
    )
    to_one_key(PROGRAMS[name]((left, right))).to("out", key_serde=STRING, value_serde=STRING)
    config = StreamsConfig(
        application_id=APP,
        bootstrap_servers="unused:9092",
        default_key_serde=STRING,
        default_value_serde=STRING,
    )
    return builder.build(config)


Row = tuple[str, str, int]


def bench_of(name: str) -> Bench:
    """Return a worker that does not wait for the other input's records."""
    bench = Bench(
        program(name), {"left": 1, "right": 1, "out": 1}, emit_interval_ms=0, max_task_idle_ms=-1
    )
    bench.idle_polls = 3
    return bench


def run_rows(bench: Bench, rows: list[Row], first: int) -> None:
    left = list(enumerate(rows, first))

    def send_next(worker: Any, _source: Any) -> None:
        idle = all(
            task.life.cycle.state == "RUNNING" and not task.group.records
            for task in worker.tasks.values()
        )
        if left and idle:
            number, (topic, key, timestamp) = left.pop(0)
            bench.send(topic, key, str(number), timestamp=timestamp)

    bench.at_poll.append(send_next)
    assert bench.live()
    bench.at_poll.clear()
    assert not left


def outputs(bench: Bench) -> list[str]:
    return [(value or b"").decode() for _, value in bench.outputs("out")]


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["left", "left", "right"]), st.sampled_from("ab"), st.integers(0, 45)
    ),
    min_size=2,
    max_size=14,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=15)
@given(rows=ROWS, cut=st.integers(1, 13), wiped=st.booleans())
def test_a_restart_changes_nothing(name: str, rows: list[Row], cut: int, *, wiped: bool) -> None:
    whole = bench_of(name)
    run_rows(whole, rows, 0)
    parts = bench_of(name)
    run_rows(parts, rows[:cut], 0)
    if wiped:
        parts.disk.versions.clear()
    run_rows(parts, rows[cut:], min(cut, len(rows)))
    assert outputs(parts) == outputs(whole)
