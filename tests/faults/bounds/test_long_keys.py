"""One key with very many records, or with a very long value."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from tests.faults.bounds.conftest import MakeLargeRun
from tests.faults.bounds.large_run import MARKS, OVERHEAD_MIB, budget_mib, patience_s, payload
from tests.integration.cluster import until

_RECORDS: Final = int(os.environ.get("TIDEWHEEL_BOUNDS_RECORDS", "1000000"))
_ELEMENTS: Final = 200_000
#: Memory of a result of a join until its commit.
_PAIR_BYTES: Final = 400

pytestmark = MARKS


@pytest.mark.fault("BOUNDS")
@pytest.mark.parametrize("job", ["large_table", "large_windows", "large_sessions"])
def test_a_key_with_very_many_values_is_aggregated_in_bounded_memory(
    make_large: MakeLargeRun, job: str, record_property: Callable[..., None]
) -> None:
    run = make_large(job)
    run.create_topics()
    with run.running() as watch:
        idle_mib = watch.peak_mib
        run.send((b"hot", payload(1, 8)) for _ in range(_RECORDS))
        record_property("seconds", run.until_consumed(timeout_s=patience_s(_RECORDS * 100)))
    record_property("records", _RECORDS)
    record_property("peak_rss_mb", round(watch.peak_mib))
    counts = [number for _, number in run.results()]
    assert len(set(counts)) == len(counts)
    assert max(counts) == (_RECORDS if job != "large_sessions" else 1)
    assert watch.peak_mib < idle_mib + budget_mib(run.partitions) + OVERHEAD_MIB


@pytest.mark.fault("BOUNDS")
def test_a_key_with_very_many_partners_costs_memory_for_the_pairs_of_one_batch(
    make_large: MakeLargeRun, record_property: Callable[..., None]
) -> None:
    """A record is joined with all partners at once; these results are in memory together."""
    run = make_large("large_join")
    run.create_topics()
    partners, readers = _RECORDS // 50, 10
    with run.running() as watch:
        idle_mib = watch.peak_mib
        run.send(((b"hot", payload(each, 8)) for each in range(partners)), run.second)
        run.until_consumed(run.second, timeout_s=patience_s(_RECORDS * 100))
        filled_mib = watch.peak_mib
        run.send((b"hot", payload(0, 8)) for _ in range(readers))
        seconds = run.until_consumed(timeout_s=patience_s(partners * readers * 1_000))
    record_property("seconds", seconds)
    record_property("records", partners * readers)
    record_property("peak_rss_mb", round(watch.peak_mib))
    assert run.results() == {(b"hot", each): readers for each in range(partners)}
    bound_mib = idle_mib + budget_mib(run.partitions) + OVERHEAD_MIB
    assert filled_mib < bound_mib
    assert watch.peak_mib < bound_mib + partners * readers * _PAIR_BYTES / 2**20


@pytest.mark.fault("BOUNDS")
def test_a_list_of_very_many_elements_is_updated_and_its_limit_is_named(
    make_large: MakeLargeRun, record_property: Callable[..., None]
) -> None:
    run = make_large("long_list", partitions=1, config={"statestore_cache_max_bytes": 0})
    # A list of 200,000 numbers takes 1.4 MB.
    run.create_topics(max_message_bytes="2000000")
    updates = 200
    with run.running() as watch:
        idle_mib = watch.peak_mib
        run.send((b"key", payload(_ELEMENTS // 100, 8)) for _ in range(100))
        run.until_consumed()
        run.send((b"key", payload(1, 8)) for _ in range(updates))
        seconds = run.until_consumed()
    record_property("seconds", seconds)
    record_property("ms_per_update", round(1_000 * seconds / updates, 1))
    record_property("peak_rss_mb", round(watch.peak_mib))
    lengths = sorted(length for _, length in run.results())
    assert lengths[-updates:] == list(range(_ELEMENTS + 1, _ELEMENTS + updates + 1))
    assert watch.peak_mib < idle_mib + budget_mib(run.partitions) + OVERHEAD_MIB
    worker = run.start()
    run.send([(b"key", payload(_ELEMENTS, 8))])
    until(lambda: worker.has_ended, "a row larger than its changelog accepts ends the worker")
    assert worker.wait() != 0
    error = worker.log
    for name in ("store lists", "hash", "max.message.bytes", f"{run.source}-0 offset 300"):
        assert name in error, f"{name} is missing in: {error[-3_000:]}"
