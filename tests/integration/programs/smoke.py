"""Kafka Streams' SmokeTestClient: windows, suppress, tables, joins and a regrouped table."""

from datetime import timedelta
from typing import Any, Final

from tidewheel import (
    BufferConfig,
    KGroupedStream,
    KTable,
    Materialized,
    Serdes,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
)

INT, LONG, DOUBLE, STRING = Serdes.int32(), Serdes.int64(), Serdes.float64(), Serdes.string()

#: Output topics, after the prefix; the job reads the first four back.
OUTPUTS: Final = (
    "min", "max", "sum", "cnt", "dif", "avg", "tagg", "echo",
    "min-raw", "min-suppressed", "sws-raw", "sws-suppressed",
)  # fmt: skip

#: The run's records are days old. A broker deletes records of a window's changelog that are older
#: than the retention plus a day.
RETENTION: Final = timedelta(days=30)

#: Key of the records that close the windows of all other keys.
FLUSH: Final = "flush"


def smoke(source: str, sink: str) -> StreamsBuilder:
    """Build the job; every output topic begins with `sink`."""
    builder = StreamsBuilder()
    data = builder.stream(source, key_serde=STRING, value_serde=INT)
    data.filter_not(lambda key, value: key == FLUSH).to(f"{sink}-echo")
    grouped = data.group_by_key()
    _minimum(grouped, sink)
    _small_windows(grouped, sink)
    two_days = TimeWindows(timedelta(days=2))
    _unwindowed(
        grouped.windowed_by(two_days).aggregate(
            lambda: -(1 << 31),
            lambda key, value, most: max(value, most),
            store=Materialized("uwin-max", value_serde=INT, retention=RETENTION),
        ),
        f"{sink}-max",
    )
    _unwindowed(
        grouped.windowed_by(two_days).aggregate(
            lambda: 0,
            lambda key, value, total: value + total,
            store=Materialized("win-sum", value_serde=LONG, retention=RETENTION),
        ),
        f"{sink}-sum",
    )
    counts = Materialized("uwin-cnt", retention=RETENTION)
    _unwindowed(grouped.windowed_by(two_days).count(store=counts), f"{sink}-cnt")
    _tables(builder, sink)
    return builder


def _minimum(grouped: KGroupedStream[str, int], sink: str) -> None:
    windows = TimeWindows(timedelta(days=1), grace=timedelta(minutes=1))
    minimum = grouped.windowed_by(windows).aggregate(
        lambda: (1 << 31) - 1,
        lambda key, value, least: min(value, least),
        store=Materialized("uwin-min", value_serde=INT, retention=RETENTION),
    )
    _streamed(minimum, f"{sink}-min-raw")
    closed = Suppressed.until_window_closes(BufferConfig.unbounded())
    _streamed(minimum.suppress(closed), f"{sink}-min-suppressed")
    _unwindowed(minimum, f"{sink}-min")


def _small_windows(grouped: KGroupedStream[str, int], sink: str) -> None:
    windows = TimeWindows(
        timedelta(seconds=2), advance=timedelta(seconds=1), grace=timedelta(seconds=30)
    )
    sums = grouped.windowed_by(windows).reduce(
        lambda total, value: total + value, store=Materialized("sws", retention=RETENTION)
    )
    _streamed(sums, f"{sink}-sws-raw")
    closed = Suppressed.until_window_closes(BufferConfig.unbounded())
    _streamed(sums.suppress(closed), f"{sink}-sws-suppressed")


def _tables(builder: StreamsBuilder, sink: str) -> None:
    def table(name: str, serde: Any, store: str | None) -> KTable[str, Any]:
        return builder.table(f"{sink}-{name}", key_serde=STRING, value_serde=serde, store=store)

    least, most = table("min", INT, "minStoreName"), table("max", INT, "maxStoreName")
    total, count = table("sum", LONG, None), table("cnt", LONG, "cntStoreName")
    difference = most.join(least, lambda high, low: high - low)
    difference.to_stream().to(f"{sink}-dif", key_serde=STRING, value_serde=INT)
    average = total.join(count, lambda sum_, count_: sum_ / count_)
    average.to_stream().to(f"{sink}-avg", key_serde=STRING, value_serde=DOUBLE)
    count.group_by(
        lambda _, number: (str(number), number), key_serde=STRING, value_serde=LONG
    ).aggregate(
        lambda: 0,
        lambda key, value, keys: keys + 1,
        lambda key, value, keys: keys - 1,
        store=Materialized("cntByCnt", store_type="in_memory", value_serde=LONG),
    ).to_stream().to(f"{sink}-tagg", key_serde=STRING, value_serde=LONG)


def _streamed(table: KTable[Windowed[str], int], topic: str) -> None:
    table.to_stream().filter_not(lambda window, _: window.key == FLUSH).map(
        lambda window, value: (f"{window.key}@{window.start}/{window.end}", value)
    ).to(topic, key_serde=STRING, value_serde=INT)


def _unwindowed(table: KTable[Windowed[str], Any], topic: str) -> None:
    table.to_stream(lambda window, _: window.key).filter_not(lambda key, _: key == FLUSH).to(
        topic, key_serde=STRING
    )
