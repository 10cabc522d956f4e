"""Valid snapshots for tests."""

from typing import Any

from hypothesis import strategies as st

from tests.state_stores.bulk_restore.logs import SPECS
from tidewheel.state_stores.bulk_restore.manifest import (
    FORMAT_VERSION,
    ChangelogFacts,
    Layout,
    PartitionRuns,
    Run,
    StoreSnapshot,
)
from tidewheel.state_stores.layout.restore import StoreTime

SPEC = SPECS["key-value"]
TOPIC = "app-store-changelog"
TOPIC_ID = b"the changelog id"
NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000


def run(**changes: Any) -> Run:
    return Run(
        **{
            "partition": 0,
            "from_offset": 0,
            "to_offset": 100,
            "file": f"app/store/runs/0/0-100-{'a' * 16}.sst",
            "rows": 1_000,
            "deletes": 0,
            "file_bytes": 10,
            "sha256": "0" * 64,
            "first_key": b"",
            "last_key": b"\xff",
            **changes,
        }
    )


def partition_runs(**changes: Any) -> PartitionRuns:
    return PartitionRuns(
        **{
            "partition": 0,
            "from_offset": 0,
            "to_offset": 100,
            "log_start": 0,
            "caught_up_at_ms": NOW_MS - 60_000,
            "complete_from_zero": True,
            "runs": (run(),),
            "time": StoreTime(),
            **changes,
        }
    )


def snapshot(**changes: Any) -> StoreSnapshot:
    return StoreSnapshot(
        **{
            "format_version": FORMAT_VERSION,
            "application_id": "app",
            "store": SPEC.name,
            "kind": SPEC.kind.value,
            "layout": Layout.of(SPEC),
            "key_serde": "bytes",
            "value_serde": "bytes",
            "topic": TOPIC,
            "topic_id": TOPIC_ID,
            "partition_count": 2,
            "created_at_ms": NOW_MS,
            "generation": 1,
            "partitions": (partition_runs(),),
            **changes,
        }
    )


def facts(**changes: Any) -> ChangelogFacts:
    return ChangelogFacts(
        **{
            "topic": TOPIC,
            "topic_id": TOPIC_ID,
            "partition_count": 2,
            "partition": 0,
            "log_start": 0,
            "log_end": 120,
            "stable_end": changes.get("log_end", 120),
            "tombstone_retention_ms": DAY_MS,
            "now_ms": NOW_MS,
            **changes,
        }
    )


@st.composite
def snapshots(draw: st.DrawFn) -> StoreSnapshot:
    partitions: list[PartitionRuns] = []
    for number in draw(st.sets(st.integers(0, 5), max_size=3).map(sorted)):
        offsets = sorted(draw(st.lists(st.integers(0, 1 << 62), min_size=2, max_size=8)))
        bounds = list(zip(offsets[::2], offsets[1::2], strict=False))
        files = tuple(
            run(
                partition=number,
                from_offset=start,
                to_offset=stop,
                file=f"app/store/runs/{number}/{start}-{stop}-{draw(st.binary(min_size=8, max_size=8)).hex()}.sst",
                deletes=0 if index == 0 else draw(st.integers(0, 9)),
                first_key=draw(st.binary(max_size=3)),
                last_key=b"\xff" * 4 + draw(st.binary(max_size=3)),
            )
            for index, (start, stop) in enumerate(bounds)
        )
        partitions.append(
            partition_runs(
                partition=number,
                from_offset=offsets[0],
                to_offset=offsets[-1],
                runs=files,
                time=StoreTime((now := draw(st.integers(-1, 1 << 40))), draw(st.integers(0, 9))),
                expired_by_ms=draw(st.none() | st.integers(-1, now)),
            )
        )
    return snapshot(
        partition_count=6,
        generation=draw(st.integers(0, 10**10 - 1)),
        partitions=tuple(partitions),
    )
