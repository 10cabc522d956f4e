"""A partition with nearly all of the traffic, next to quiet ones."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from tests.faults.bounds.conftest import MakeLargeRun
from tests.faults.bounds.large_run import (
    MARKS,
    OVERHEAD_MIB,
    budget_mib,
    key_of,
    patience_s,
    payload,
)
from tests.integration.cluster import Feed, until
from tidewheel.rebalance.model import TopicPartition

_RECORDS: Final = int(os.environ.get("TIDEWHEEL_BOUNDS_RECORDS", "150000"))
_PARTITIONS: Final = 8
_QUIET: Final = 200

pytestmark = MARKS


@pytest.mark.fault("BOUNDS")
@pytest.mark.parametrize(
    ("job", "factor", "hot"),
    [
        ("large_table", 1, _RECORDS),
        ("large_table", 4, _RECORDS),
        # Its buffered records take seconds: the client would queue others behind them.
        ("slow_table", 1, _RECORDS // 5),
        ("slow_table", 4, _RECORDS // 5),
    ],
)
def test_a_hot_partition_does_not_delay_the_others(
    make_large: MakeLargeRun, job: str, factor: int, hot: int, record_property: Callable[..., None]
) -> None:
    run = make_large(
        job,
        partitions=_PARTITIONS,
        config={"parallelising_factor": factor, "statestore_cache_max_bytes": 0},
    )
    run.create_topics()
    run.send(((key_of(each % 5_000), payload(0, 100)) for each in range(hot)), partition=0)

    def committed() -> list[int]:
        offsets = run.cluster.committed(run.application_id)
        return [offsets.get(TopicPartition(run.source, each), 0) for each in range(_PARTITIONS)]

    hot_left = hot

    def are_quiet_read() -> bool:
        nonlocal hot_left
        hot_read, *quiet_read = committed()
        hot_left = hot - hot_read
        return min(quiet_read) == _QUIET

    quiet = range(1, _PARTITIONS)
    with run.running() as watch, Feed(run.cluster, run.source) as feed:
        until(
            lambda: committed()[0] > hot * 0.05, "the hot partition is read", patience_s(hot * 100)
        )
        idle_mib = watch.samples["worker"][0].rss_mib
        for partition in quiet:
            rows = [(b"quiet-%d" % partition, payload(0, 100))] * _QUIET
            feed.send(rows, partition=partition, first_timestamp=1_000)
        until(are_quiet_read, "quiet partitions are read", patience_s(hot * 100))
        seconds = run.until_consumed(timeout_s=patience_s(hot * 1_000))
    record_property("seconds", seconds)
    record_property("records", hot)
    record_property("hot_lag_when_quiet_were_done", hot_left)
    record_property("peak_rss_mb", round(watch.peak_mib))
    assert hot_left > hot / 2, "quiet partitions waited for the hot one"
    counts = run.results()
    expected = {(b"quiet-%d" % each, n + 1): 1 for each in quiet for n in range(_QUIET)}
    expected |= {
        (key_of(key), n + 1): 1 for key in range(5_000) for n in range(len(range(key, hot, 5_000)))
    }
    assert counts == expected
    assert watch.peak_mib < idle_mib + budget_mib(run.partitions) + OVERHEAD_MIB
