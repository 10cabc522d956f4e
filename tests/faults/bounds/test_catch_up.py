"""A worker that starts with a long backlog, whose two inputs have very different lengths."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.faults.bounds.conftest import MakeLargeRun
from tests.faults.bounds.large_run import (
    MARKS,
    OVERHEAD_MIB,
    LargeRun,
    budget_mib,
    key_of,
    patience_s,
)
from tests.integration.cluster import Feed, until
from tests.integration.programs.large_jobs import CATCH_UP_WINDOW_MS

_RECORDS: Final = int(os.environ.get("TIDEWHEEL_BOUNDS_BACKLOG", "200000"))
#: The second input has one record in this many, spread over the same time.
_ONE_IN: Final = 50
_KEYS: Final = 20

pytestmark = MARKS


@pytest.mark.fault("BOUNDS")
def test_a_long_backlog_is_processed_in_the_order_of_time(
    make_large: MakeLargeRun, record_property: Callable[..., None]
) -> None:
    run = make_large("catch_up", config={"statestore_cache_max_bytes": 0})
    run.create_topics()
    with run.running():
        pass  # it has committed, and stops
    run.send((key_of(each % _KEYS), b"l") for each in range(_RECORDS))
    _send_second(run)
    with run.running() as watch:
        idle_mib = watch.samples["worker"][0].rss_mib
        until(lambda: 0 < _committed(run) < _RECORDS, "commits while it catches up", 600)
        until(lambda: _committed(run) > _RECORDS / 2, "half is committed", 900)
        seconds = run.until_consumed(run.source, run.second, timeout_s=patience_s(_RECORDS * 500))
    record_property("seconds", seconds)
    record_property("records", _RECORDS + _RECORDS // _ONE_IN)
    record_property("peak_rss_mb", round(watch.peak_mib))
    assert run.results() == Counter(_expected())
    assert watch.peak_mib < idle_mib + budget_mib(2 * run.partitions) + OVERHEAD_MIB


def _seconds_of() -> Iterator[int]:
    return iter(range(0, _RECORDS, _ONE_IN))


def _send_second(run: LargeRun) -> None:
    """Write the second input: each record has the key and the time of one of the first."""
    with Feed(run.cluster, run.second) as feed:
        for each in _seconds_of():
            feed.send([(key_of(each % _KEYS), b"r")], first_timestamp=1_000 + each)


def _committed(run: LargeRun) -> int:
    offsets = run.cluster.committed(run.application_id)
    return sum(offset for each, offset in offsets.items() if each.topic == run.source)


def _expected() -> Iterator[tuple[bytes, int]]:
    windows: Counter[tuple[bytes, int]] = Counter()
    for each in [*range(_RECORDS), *_seconds_of()]:
        window = (1_000 + each) // CATCH_UP_WINDOW_MS * CATCH_UP_WINDOW_MS
        windows[key_of(each % _KEYS), window] += 1
    for (key, window), count in windows.items():
        for number in range(count):
            yield b"%b@%d" % (key, window), number + 1
    for each in _seconds_of():
        yield key_of(each % _KEYS), -1
