"""Memory of a worker whose stores and buffers are ten times as large as its memory settings."""

import os
from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.faults.bounds.conftest import MakeLargeRun
from tests.faults.bounds.large_run import (
    MARKS,
    OVERHEAD_MIB,
    LargeRun,
    budget_mib,
    key_of,
    patience_s,
    payload,
)
from tests.faults.bounds.resources import MIB
from tests.integration.cluster import until

#: Times the budget that each store has at least.
_TIMES: Final = float(os.environ.get("TIDEWHEEL_BOUNDS_TIMES", "10"))
_VALUE_BYTES: Final = 4_000
#: Event time that closes all windows.
_CLOSING_MS: Final = 3 * 86_400_000
_CLOSING: Final = ("large_suppressed", "large_final_windows", "large_outer_join")
#: Bytes besides the row's for each result of closed windows (docs/state.md, "Limits").
_RESULT_BYTES: Final = 800

pytestmark = MARKS


def _records(run: LargeRun) -> int:
    return int(budget_mib(run.partitions) * _TIMES * MIB / _VALUE_BYTES)


def _large(records: int) -> Any:
    return ((key_of(number), payload(number, _VALUE_BYTES)) for number in range(records))


def _small(records: int) -> Any:
    return ((key_of(number), payload(number, 8)) for number in range(records))


def _check(run: LargeRun, idle_mib: float, peak_mib: float, results: int = 0) -> None:
    """Compare with the documented bound; one record may write `results` closed windows."""
    bound_mib = idle_mib + budget_mib(run.partitions) + OVERHEAD_MIB
    bound_mib += results * (_VALUE_BYTES + _RESULT_BYTES) / MIB
    assert peak_mib < bound_mib, f"{run.job}: {peak_mib:.0f} of at most {bound_mib:.0f} MiB"


@pytest.mark.fault("BOUNDS")
@pytest.mark.parametrize(
    ("job", "caching"),
    [
        ("large_table", False),
        ("large_table", True),
        ("large_windows", False),
        ("large_sessions", False),
        ("large_versioned", False),
        ("large_foreign_key_join", False),
        ("large_suppressed", False),
        ("large_final_windows", False),
        ("large_join", False),
        ("large_outer_join", False),
        ("large_global_table", False),
    ],
)
def test_memory_is_bounded_under_a_store_ten_times_as_large(
    make_large: MakeLargeRun, job: str, caching: bool, record_property: Callable[..., None]
) -> None:
    run = make_large(job, config={} if caching else {"statestore_cache_max_bytes": 0})
    run.create_topics()
    records = _records(run)
    patience = patience_s(records * _VALUE_BYTES)
    is_global = job == "large_global_table"
    if is_global:  # it is read before the stream, which is then joined
        run.send(_large(records), run.second)
    with run.running() as watch:
        idle_mib = watch.samples["worker"][0].rss_mib if is_global else watch.peak_mib
        run.send(_small(records) if is_global else _large(records))
        topics = (run.source, run.second) if job == "large_join" else (run.source,)
        if job == "large_join":
            run.send(_small(records), run.second)
        if job in _CLOSING:
            end = [(key_of(records + each), payload(0, 8)) for each in range(64)]
            run.until_consumed(timeout_s=patience)
            record_property("peak_before_closing_mb", round(watch.peak_mib))
            _check(run, idle_mib, watch.peak_mib)
            run.send(end, first_timestamp=_CLOSING_MS)
        seconds = run.until_consumed(*topics, timeout_s=patience)
        if job == "large_foreign_key_join":  # its internal topics follow
            until(lambda: run.results().total() >= records, "all pairs are joined", patience)
        record_property("seconds", round(seconds))
    record_property("records", records)
    record_property("state_mb", round(run.state_mib()))
    record_property("idle_rss_mb", round(idle_mib))
    record_property("peak_rss_mb", round(watch.peak_mib))
    assert run.results() == _expected(job, records)
    _check(run, idle_mib, watch.peak_mib, records if job in _CLOSING else 0)
    run.lose_state()
    for name, runs_from in (("record_by_record", None), ("in_runs", 1_000)):
        with run.running(runs_from=runs_from) as watch:
            pass
        record_property(f"peak_rss_mb_restored_{name}", round(watch.peak_mib))
        for role, samples in watch.samples.items():
            peak = max(sample.rss_mib for sample in samples)
            record_property(f"peak_{role}_{name}", round(peak))
        _check(run, idle_mib, watch.peak_mib)
        run.lose_state()


def _expected(job: str, records: int) -> dict[tuple[bytes, int], int]:
    if job in ("large_join", "large_global_table"):
        return {(key_of(number), 2 * number): 1 for number in range(records)}
    if job in ("large_versioned", "large_foreign_key_join", "large_outer_join"):
        return {(key_of(number), number): 1 for number in range(records)}
    return {(key_of(number), 1): 1 for number in range(records)}
