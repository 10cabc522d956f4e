"""Snapshot creation: executors read changelogs and upload runs; manifests are published last."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.expiry import slowest_time
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import (
    FORMAT_VERSION,
    Layout,
    Manifest,
    PartitionRuns,
    Run,
    StoreSnapshot,
    read_too_slowly,
    validate,
)
from tidewheel.state_stores.layout.restore import StoreTime
from tidewheel.streams.bulk.driver import (
    BulkDriver,
    OnProgress,
    bulk_driver,
    newest_snapshot,
    now_ms,
    reached,
    stores_by_name,
)
from tidewheel.streams.bulk.executors import (
    ExecutorWork,
    RangeToBuild,
    RunsToMerge,
    UploadedRuns,
    build_range,
    merge_into_one,
)
from tidewheel.streams.bulk.snapshot_plan import (
    RECORDS_PER_TASK,
    PartitionPlan,
    plan_partition,
    to_merge,
)
from tidewheel.streams.bulk.stores import (
    BulkStore,
    changelog_facts,
    check_no_headers,
    check_same_topics,
    slowest_of,
    slowest_positions,
)
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.topology.topology import Topology

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import SparkSession

_log = logging.getLogger("tidewheel")

_WHY_IN_FULL: Final = "a full one was asked for"

#: Store and partition.
_Which = tuple[str, int]


def snapshot(
    topology: Topology,
    config: StreamsConfig,
    *,
    stores: Sequence[str] | None = None,
    spark: "SparkSession | None" = None,
    master: str | None = None,
    full: bool = False,
    records_per_task: int = RECORDS_PER_TASK,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Make snapshots of an application's stores at `config.snapshot_location`; it may be running.

    Extends each store's newest valid snapshot, else reads the full changelog. A killed job
    publishes nothing: run it again.

    Args:
        stores: Store names; None for all with a changelog.
        spark: Spark session; None for a temporary one at `master` (`local[*]` by default).
        full: Read whole changelogs and ignore existing snapshots.
        records_per_task: Approximate offsets per Spark task.

    Raises:
        ConfigError: `snapshot_location`, PySpark or a store is missing.
        StreamsError: The cluster, the location or Spark failed; nothing was published.
    """
    if config.snapshot_location is None:
        raise ConfigError(
            "snapshot_location is not set: give the directory or fsspec URL that snapshots are kept in, such as "
            "snapshot_location='s3://bucket/snapshots'"
        )
    with bulk_driver(
        config, spark, what="snapshot", master=master, on_progress=on_progress
    ) as driver:
        chosen = stores_by_name(topology, driver, stores)
        check_no_headers(chosen.values(), "a snapshot")
        return make_snapshots(
            driver,
            chosen,
            str(config.snapshot_location),
            full=full,
            records_per_task=records_per_task,
        )


def make_snapshots(
    driver: BulkDriver,
    stores: Mapping[str, BulkStore],
    url: str,
    *,
    full: bool = False,
    records_per_task: int = RECORDS_PER_TASK,
) -> Manifest:
    began_ms = now_ms()
    positions = slowest_positions(stores.values(), driver.admin, driver.config.application_id)
    facts = changelog_facts(list(stores.values()), driver.admin, began_ms)
    place = SnapshotLocation(url)
    application_id = driver.config.application_id
    before = {
        name: newest_snapshot(
            place, application_id, name, facts[TopicPartition(store.topic, 0)].topic_id
        )
        for name, store in stores.items()
    }
    plans: dict[_Which, PartitionPlan] = {}
    for name, store in stores.items():
        for number in range(store.partitions):
            about = facts[TopicPartition(store.topic, number)]
            old = before[name]
            refused = None if old is None else validate(old, store.spec, about)
            plans[name, number] = plan_partition(
                about,
                None if old is None else old.partition(number),
                _WHY_IN_FULL if full else refused,
                records_per_task=records_per_task,
                slowest_ms=slowest_time(store.spec, slowest_of(positions, store.tasks(number))),
            )
    work = driver.work(list(stores.values()), url)
    partitions = _built_partitions(driver, work, plans)
    check_same_topics(facts.values(), driver.admin)
    for plan in plans.values():
        slow = read_too_slowly(began_ms, now_ms(), plan.facts.tombstone_retention_ms)
        if slow is not None:
            raise StreamsError(f"no snapshot of {plan.facts.topic} was published: {slow}")
    manifest = Manifest(application_id, {})
    for name, store in stores.items():
        parts = tuple(partitions[name, number] for number in range(store.partitions))
        manifest.stores[name] = _published(
            place, _Described(application_id, store, before[name], plans[name, 0]), parts
        )
    return manifest


def _built_partitions(
    driver: BulkDriver, work: ExecutorWork, plans: Mapping[_Which, PartitionPlan]
) -> dict[_Which, PartitionRuns]:
    """Return each partition's runs; rebuild a partition whose previous runs are broken."""
    partitions, broken = _merged(driver, work, _built(driver, work, plans))
    again: dict[_Which, PartitionPlan] = {}
    for which, refused in broken.items():
        if plans[which].reused is None:
            raise StreamsError(f"{refused}; it was uploaded just now, is the location sound?")
        _log.warning("%s; the changelog is read in full instead", refused)
        again[which] = plan_partition(
            plans[which].facts, None, refused, slowest_ms=plans[which].slowest_ms
        )
    return partitions | _built_partitions(driver, work, again) if again else partitions


def _built(
    driver: BulkDriver, work: ExecutorWork, plans: Mapping[_Which, PartitionPlan]
) -> dict[_Which, PartitionRuns]:
    tasks = [
        RangeToBuild(
            store=store,
            partition=number,
            from_offset=first,
            to_offset=end,
            complete_from_zero=plan.has_no_reused_runs and first == plan.ranges[0][0],
            may_begin_later=plan.reused is None,
            slowest_ms=plan.slowest_ms,
        )
        for (store, number), plan in plans.items()
        for first, end in plan.ranges
    ]
    total = sum(plan.offsets for plan in plans.values())
    results: defaultdict[_Which, list[UploadedRuns]] = defaultdict(list)
    for result in driver.run(build_range, work, tasks, step="reading changelogs", total=total):
        results[result.store, result.partition].append(result)
    return {which: _on_top(plan, results[which]) for which, plan in plans.items()}


def _on_top(plan: PartitionPlan, results: Sequence[UploadedRuns]) -> PartitionRuns:
    previous = plan.reused
    time = StoreTime() if previous is None else previous.time
    old: tuple[Run, ...] = () if previous is None else previous.runs
    time = reduce(StoreTime.later, (result.time for result in results), time)
    return PartitionRuns(
        partition=plan.facts.partition,
        from_offset=plan.from_offset,
        to_offset=plan.to_offset,
        log_start=plan.facts.log_start,
        caught_up_at_ms=plan.facts.now_ms,
        complete_from_zero=True,
        runs=old + tuple(run for result in results for run in result.runs),
        time=time,
        expired_by_ms=plan.expired_by_ms(time.observed_ms),
    )


def _merged(
    driver: BulkDriver, work: ExecutorWork, partitions: Mapping[_Which, PartitionRuns]
) -> tuple[dict[_Which, PartitionRuns], dict[_Which, str]]:
    """Merge partitions with too many runs; also return reasons of partitions with broken runs."""
    tasks = [
        RunsToMerge(
            store=store,
            partition=number,
            runs=partition.runs,
            complete_from_zero=partition.complete_from_zero,
        )
        for (store, number), partition in partitions.items()
        if to_merge(partition.runs)
    ]
    total = sum(task.rows for task in tasks)
    results = driver.run(merge_into_one, work, tasks, step="merging runs", total=total)
    merged = {(result.store, result.partition): result for result in results}
    broken = {
        which: result.refused for which, result in merged.items() if result.refused is not None
    }
    return {
        which: msgspec.structs.replace(partition, runs=merged[which].runs)
        if which in merged
        else partition
        for which, partition in partitions.items()
    }, broken


@dataclass(frozen=True, slots=True)
class _Described:
    application_id: str
    store: BulkStore
    before: StoreSnapshot | None
    plan: PartitionPlan


def _published(
    place: SnapshotLocation, about: _Described, partitions: tuple[PartitionRuns, ...]
) -> StoreSnapshot:
    spec, facts = about.store.spec, about.plan.facts
    created_ms = now_ms()
    snapshot = StoreSnapshot(
        format_version=FORMAT_VERSION,
        application_id=about.application_id,
        store=spec.name,
        kind=spec.kind,
        layout=Layout.of(spec),
        key_serde=type(spec.key_serde).__name__,
        value_serde=type(spec.value_serde).__name__,
        topic=facts.topic,
        topic_id=facts.topic_id,
        partition_count=facts.partition_count,
        created_at_ms=created_ms,
        generation=0 if about.before is None else about.before.generation + 1,
        partitions=partitions,
    )
    with reached(place):
        place.publish(snapshot)
    try:
        place.delete_unreferenced(about.application_id, spec.name, now_ms=created_ms)
    except OSError as error:  # Snapshots also work in a location that forbids deletion.
        _log.warning(
            "store %s: files in %r that no snapshot needs any more can't be deleted: %s; allow it there, or delete them yourself",
            spec.name,
            place,
            error,
        )
    return snapshot
