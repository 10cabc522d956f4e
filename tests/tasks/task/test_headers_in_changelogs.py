"""Headers of rows: in changelogs, restores, key ranges, and tables restored from their topic."""

from typing import Any

import pytest

from tests.tasks.loop.bench import Bench
from tidewheel import Materialized, Serdes, StreamsBuilder, StreamsConfig, Topology
from tidewheel.state_stores.layout.envelope import unwrap_with_headers
from tidewheel.state_stores.layout.headers import Headers, split_headers

TRACE: Headers = (("trace", b"1"), ("trace", None))

#: (key, value, headers)
RECORDS: list[tuple[str, bytes | None, Headers]] = [
    ("a", b"1", TRACE),
    ("b", b"1", ()),
    ("a", b"2", (("trace", b"2"),)),
    ("c", b"1", TRACE),
    ("gone", b"1", TRACE),
    ("d", b"1", ()),
]


def table(*, changelog: bool) -> Topology:
    builder = StreamsBuilder()
    store = Materialized("rows", headers=True)
    builder.table("in", key_serde=str, value_serde=str, store=store)
    return builder.build(
        StreamsConfig(
            application_id="app",
            bootstrap_servers="unused:9092",
            topology_optimization="none" if changelog else "all",
        )
    )


def counted() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key_serde=str, value_serde=str).group_by_key()
    grouped.count(store=Materialized("rows", headers=True))
    return builder.build()


def content(bench: Bench) -> dict[str, tuple[bytes, Headers]]:
    rows: dict[str, tuple[bytes, Headers]] = {}
    for key, stored in bench.rows("rows").items():
        headers, value = split_headers(unwrap_with_headers(stored)[0])
        rows[key.decode()] = (value, headers)
    return rows


def fill(bench: Bench, records: Any) -> None:
    for key, value, headers in records:
        bench.broker.send("in", value, key.encode(), timestamp=1_000, headers=headers)
    assert bench.live()


ROWS = {
    "a": (b"2", (("trace", b"2"),)), "b": (b"1", ()), "c": (b"1", TRACE), "d": (b"1", ()),
}  # fmt: skip


@pytest.mark.parametrize("changelog", [True, False], ids=["changelog", "own topic"])
def test_a_lost_disk_is_restored_with_headers(changelog: bool) -> None:
    bench = Bench(table(changelog=changelog), {"in": 1})
    fill(bench, RECORDS)
    fill(bench, [("gone", None, ())])
    assert content(bench) == ROWS
    bench.disk.versions.clear()
    assert bench.live()
    assert bench.events
    assert content(bench) == ROWS


def test_changelog_records_have_headers_and_plain_values() -> None:
    """As in Kafka Streams' stores with headers."""
    bench = Bench(table(changelog=True), {"in": 1})
    fill(bench, RECORDS)
    written = {
        record.key: (record.value, record.headers)
        for record in bench.broker.records("app-rows-changelog")
    }
    assert written == {key.encode(): row for key, row in ROWS.items()} | {b"gone": (b"1", TRACE)}


def test_key_ranges_keep_the_headers_of_each_key() -> None:
    bench = Bench(counted(), {"in": 1}, commit_interval_ms=5)
    bench.idle_polls = 3
    for number in range(40):
        key, headers = b"k%d" % (number % 7), (("n", b"%d" % number),) if number % 3 else ()
        bench.broker.send("in", b"v", key, timestamp=1_000 + number, headers=headers)
    assert bench.live(threads=3)
    rows = content(bench)
    expected: dict[str, tuple[bytes, Headers]] = {}
    for number in range(40):
        name = f"k{number % 7}"
        count = int.from_bytes(expected[name][0]) + 1 if name in expected else 1
        headers = (("n", b"%d" % number),) if number % 3 else ()
        expected[name] = (Serdes.int64().serialize("", count) or b"", headers)
    assert rows == expected
    last = {record.key: record.headers for record in bench.broker.records("app-rows-changelog")}
    assert last == {key.encode(): headers for key, (_, headers) in expected.items()}
