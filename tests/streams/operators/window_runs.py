"""Runs a windowed count or list over rows."""

from collections.abc import Sequence
from typing import Any

from tests.streams.operators.run import JSON, Row, driver_of, outputs
from tidewheel import KStream, Materialized
from tidewheel.streams.windows import EmitStrategy, FixedWindows, SessionWindows, SlidingWindows
from tidewheel.testing import TopologyTestDriver

AnyWindows = FixedWindows | SlidingWindows | SessionWindows
KEYED: dict[str, Any] = {"key_serde": JSON, "value_serde": JSON}

#: (key, start, end, value, timestamp) of a result.
Result = tuple[Any, int, int, Any, int]


def append(_key: Any, value: Any, seen: list[Any]) -> list[Any]:
    seen.append(value)
    return seen


def join(_key: Any, one: list[Any], two: list[Any]) -> list[Any]:
    one.extend(two)
    return one


def windowed(
    stream: KStream[Any, Any],
    windows: AnyWindows,
    *,
    emit: EmitStrategy = "on_window_update",
    counts: bool = False,
    **store: Any,
) -> Any:
    cut = stream.group_by_key(**KEYED).windowed_by(windows).emit_strategy(emit)
    kept = Materialized("store", key_serde=JSON, **store)
    if counts:
        return cut.count(store=kept)
    merger: Any = join if isinstance(windows, SessionWindows) else None
    return cut.aggregate(list, append, merger=merger, store=kept, value_serde=JSON)


def driver_for(windows: AnyWindows, **options: Any) -> TopologyTestDriver:
    settings = {
        name: options.pop(name)
        for name in ("statestore_cache_max_bytes", "record_by_record", "emit_interval_ms")
        if name in options
    }

    def use(stream: KStream[Any, Any]) -> Any:
        return windowed(stream, windows, **options).to_stream(flat_key)

    return driver_of(use, **settings)


def flat_key(key: Any, _value: Any) -> list[Any]:
    return [key.key, key.start, key.end]


def results(driver: TopologyTestDriver) -> list[Result]:
    return [(*key, value, timestamp) for key, value, timestamp in outputs(driver)]


def run_batches(
    batches: Sequence[Sequence[Row]], windows: AnyWindows, **options: Any
) -> list[list[Result]]:
    with driver_for(windows, **options) as driver:
        source = driver.create_input_topic("in", key_serde=JSON, value_serde=JSON)
        found: list[list[Result]] = []
        for batch in batches:
            source.pipe_batch(batch)
            found.append(results(driver))
        return found


def run_each(rows: Sequence[Row], windows: AnyWindows, **options: Any) -> list[list[Result]]:
    return run_batches([[row] for row in rows], windows, **options)
