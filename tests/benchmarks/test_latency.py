"""The suite `latency`: latencies of correct results, from the scheduled moment."""

from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from benchmarks.environment.systems import System
from benchmarks.latency.lines import HEADINGS, latency_lines
from benchmarks.latency.results_read import Arrivals, places_by_key
from benchmarks.latency.suite import (
    CACHES,
    FULL,
    QUICK,
    LatencyRun,
    LatencySetting,
    LatencySize,
    LatencySuite,
)
from benchmarks.report.results import SuiteResult, make_rows

if TYPE_CHECKING:
    from tidewheel.streams.broker import RunningBroker

KEYS = [b"a", b"b", b"a", b"b"]


def all_there(at_s: tuple[float, ...]) -> Arrivals:
    arrivals = Arrivals(places_by_key(KEYS), len(KEYS))
    for key, count, moment_s in zip(KEYS, (1, 1, 2, 2), at_s, strict=True):
        arrivals.add(key, count, moment_s)
    return arrivals


def test_a_stall_counts_for_every_record_that_was_due_during_it() -> None:
    arrivals = all_there((100.5, 100.5, 100.5, 100.5))
    found = arrivals.latencies_ms(begin_s=100.0, records_per_s=10, skipped=0)
    assert found == pytest.approx([200.0, 300.0, 400.0, 500.0])


def test_the_warm_up_is_not_counted() -> None:
    arrivals = all_there((109.0, 109.0, 100.3, 100.4))
    assert arrivals.latencies_ms(100.0, 10, skipped=2) == pytest.approx([100.0, 100.0])


def test_results_in_any_order_find_their_records() -> None:
    arrivals = Arrivals(places_by_key(KEYS), len(KEYS))
    arrivals.add(b"a", 2, 100.7)
    assert list(arrivals.at_s) == [0.0, 0.0, 100.7, 0.0]
    assert arrivals.problems("exactly_once") == ["3 of 4 results never came"]


def test_with_a_cache_a_count_is_the_result_of_all_counts_it_replaces() -> None:
    arrivals = Arrivals(places_by_key([b"a"] * 4 + [b"b"]), 5, held_back=True)
    arrivals.add(b"a", 1, 100.1)
    arrivals.add(b"a", 4, 100.4)
    assert list(arrivals.at_s) == [100.1, 100.4, 100.4, 100.4, 0.0]
    assert arrivals.there == 4
    assert arrivals.problems("exactly_once") == ["1 of 5 results never came"]


def test_with_a_cache_an_older_count_is_a_repetition() -> None:
    arrivals = Arrivals(places_by_key([b"a", b"a"]), 2, held_back=True)
    arrivals.add(b"a", 2, 100.2)
    arrivals.add(b"a", 1, 100.3)
    assert arrivals.problems("exactly_once") == ["1 results came twice"]


def test_a_result_without_a_record_is_wrong() -> None:
    arrivals = all_there((101.0, 101.0, 101.0, 101.0))
    for key, count in ((b"a", 3), (b"a", 0), (b"c", 1)):
        arrivals.add(key, count, 102.0)
    assert arrivals.problems("at_least_once") == ["3 results belong to no record, e.g. b'a' with 3"]


def test_a_repeated_result_is_wrong_only_with_exactly_once() -> None:
    arrivals = all_there((100.1, 100.2, 100.3, 100.4))
    arrivals.add(b"a", 1, 109.0)
    assert arrivals.problems("at_least_once") == []
    assert arrivals.problems("exactly_once") == ["1 results came twice"]
    assert arrivals.at_s[0] == 100.1


def test_lines_are_compared_with_kafka_streams() -> None:
    """Each setting is compared with Kafka Streams, round by round."""
    rows = [
        row
        for system, cache, late_ms in (
            ("tidewheel", 0, [90.0, 400.0, 60.0]),
            ("kafka-streams", 0, [120.0, 400.0, 100.0]),
            ("tidewheel", 10 << 20, [80.0]),
        )
        for row in make_rows(
            {"latency_ms_p50": [60.0] * len(late_ms), "latency_ms_p99": late_ms},
            system=system,
            job="count_by_key",
            guarantee="exactly_once",
            parameters={"commit_interval_ms": 100, "cache_bytes": cache, "longest_ms": [300]},
        )
    ]
    result = SuiteResult(suite="latency", date="d", cpu="c", cores=2, versions={}, rows=tuple(rows))
    lines = latency_lines(result)
    assert [line[HEADINGS.index("cache")] for line in lines] == ["none", "none", "10 MiB"]
    assert [line[HEADINGS.index("p50 ÷ Kafka Streams")] for line in lines] == ["1.00", "1.00", "–"]  # noqa: RUF001 - an en dash
    assert [line[HEADINGS.index("p99 ÷ Kafka Streams")] for line in lines] == ["0.75", "1.00", "–"]  # noqa: RUF001 - the same


def test_the_full_run_is_ten_thousand_a_second_for_minutes() -> None:
    assert FULL.spec.records == 10_000 + (30 + 120) * 10_000


def test_systems_without_a_cache_run_only_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []

    def run(_: LatencySuite, setting: LatencySetting, __: LatencySize) -> LatencyRun:
        ran.append((setting.system, setting.cache_bytes))
        return LatencyRun(
            p50_ms=1.0,
            p99_ms=2.0,
            longest_ms=3.0,
            late_ms_p99=0.0,
            late_ms_max=0.0,
            rss_mib_max=1.0,
        )

    monkeypatch.setattr(LatencySuite, "_run", run)
    monkeypatch.setattr(System, "command", lambda *_: [])
    suite = LatencySuite(
        bootstrap_servers="nowhere:1",
        size=QUICK,
        systems=("tidewheel", "quix"),
        guarantees=("exactly_once",),
        console=Console(quiet=True),
        date="today",
    )
    assert len(list(suite.rows())) == 2
    assert ran == [("tidewheel", 0), ("quix", 0), ("tidewheel", 10 << 20)]


def test_guarantees_and_caches_are_in_a_fixed_order() -> None:
    rows = [
        row
        for guarantee, cache in (
            ("exactly_once", 10 << 20),
            ("at_least_once", 0),
            ("exactly_once", 0),
        )
        for row in make_rows(
            {"latency_ms_p50": [60.0], "latency_ms_p99": [90.0]},
            system="tidewheel",
            job="count_by_key",
            guarantee=guarantee,
            parameters={"commit_interval_ms": 100, "cache_bytes": cache, "longest_ms": [300]},
        )
    ]
    result = SuiteResult(suite="latency", date="d", cpu="c", cores=2, versions={}, rows=tuple(rows))
    assert [line[1:3] for line in latency_lines(result)] == [
        ("at least once", "none"),
        ("exactly once", "none"),
        ("exactly once", "10 MiB"),
    ]


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
def test_a_short_run_has_figures(kafka_broker: "RunningBroker", cache: str) -> None:
    suite = LatencySuite(
        bootstrap_servers=kafka_broker.bootstrap_servers,
        size=LatencySize(seconds=3, warm_up_s=1, pairs=1, primed=1_000),
        systems=("tidewheel",),
        guarantees=("exactly_once",),
        caches=(cache,),
        console=Console(),
        date="today",
    )
    rows = {row.metric: row.value for found in suite.rows() for row in found}
    assert suite.failures == []
    assert 0 < rows["latency_ms_p50"] <= rows["latency_ms_p99"]
