"""Snapshots of changelogs without Spark, of fake and real clusters."""

import tempfile
from bisect import bisect_left
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeChangelogReader
from tests.fakes.clock import FakeClock
from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import (
    FORMAT_VERSION,
    Layout,
    PartitionRuns,
    Run,
    StoreSnapshot,
)
from tidewheel.state_stores.bulk_restore.runs import RunBuilder
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.tasks.kafka.ports import ChangelogReader

_POLL_RECORDS = 20_000
_POLL_S = 0.1


def take_snapshot(
    broker: FakeBroker,
    clock: FakeClock,
    spec: StoreSpec,
    location: Path,
    application_id: str,
    *,
    slowest_ms: int | None = None,
) -> StoreSnapshot:
    topic = broker.topics[f"{application_id}-{spec.name}-changelog"]
    bounds = {
        TopicPartition(f"{application_id}-{spec.name}-changelog", number): (
            log.start,
            log.last_stable_offset,
        )
        for number, log in enumerate(topic.logs)
    }
    return publish_snapshot(
        lambda: FakeChangelogReader(broker),
        spec,
        location,
        application_id,
        topic_id=topic.topic_id,
        bounds=bounds,
        now_ms=clock.now_ms(),
        slowest_ms=slowest_ms,
    )


def publish_snapshot(
    make_reader: Callable[[], ChangelogReader],
    spec: StoreSpec,
    location: Path,
    application_id: str,
    *,
    topic_id: bytes,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    now_ms: int,
    slowest_ms: int | None = None,
) -> StoreSnapshot:
    """Publish a snapshot of a changelog; `bounds` has the start and end of each partition.

    `slowest_ms`: as in `PartitionPlan`.
    """
    place = SnapshotLocation(str(location))
    before = place.newest(application_id, spec.name, topic_id)

    def upload(path: Path, run: Run) -> Run:
        name = place.run_name(application_id, spec.name, run, now_ms=now_ms)
        place.upload(path, name)
        return msgspec.structs.replace(run, file=name)

    partitions = tuple(
        _partition(make_reader, spec, partition, start, end, now_ms, upload, slowest_ms=slowest_ms)
        for partition, (start, end) in sorted(bounds.items())
    )
    snapshot = StoreSnapshot(
        format_version=FORMAT_VERSION,
        application_id=application_id,
        store=spec.name,
        kind=spec.kind,
        layout=Layout.of(spec),
        key_serde="",
        value_serde="",
        topic=f"{application_id}-{spec.name}-changelog",
        topic_id=topic_id,
        partition_count=len(partitions),
        created_at_ms=now_ms,
        generation=1 if before is None else before.generation + 1,
        partitions=partitions,
    )
    place.publish(snapshot)
    return snapshot


def _partition(
    make_reader: Callable[[], ChangelogReader],
    spec: StoreSpec,
    partition: TopicPartition,
    start: int,
    end: int,
    now_ms: int,
    upload: Callable[[Path, Run], Run],
    *,
    slowest_ms: int | None,
) -> PartitionRuns:
    reader = make_reader()
    reader.assign({partition: start})
    with tempfile.TemporaryDirectory() as folder:
        builder = RunBuilder(
            spec,
            Path(folder),
            partition=partition.partition,
            from_offset=start,
            complete_from_zero=True,
            slowest_ms=slowest_ms,
        )
        while reader.positions()[partition] < end:
            for read in reader.poll(_POLL_RECORDS, _POLL_S):
                run = read.slice(0, bisect_left(read.offsets, end))
                if run:
                    builder.add(run.raw_keys, run.raw_values, run.timestamps, run.offsets[-1] + 1)
        built = builder.finish(end)
        runs = tuple(upload(file.path, file.run) for file in built.files)
    reader.close()
    return PartitionRuns(
        partition=partition.partition,
        from_offset=start,
        to_offset=end,
        log_start=start,
        caught_up_at_ms=now_ms,
        complete_from_zero=True,
        runs=runs,
        time=built.time,
        expired_by_ms=slowest_ms,
    )
