"""Publication of a backfill's results, each step safe to kill.

    begin ─▶ write ─▶ close ─▶ fence ─▶ check ─▶ snapshot ─▶ commit ─▶ finish
    log: BOOTSTRAP    log: CLOSING                                     log: BOOTSTRAPPED

The records to write are fixed before. From *begin* to *finish* the group log holds (pauses) the
group. After a kill the hold remains, and the next run writes what is missing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from tidewheel.rebalance.leader.bootstrapping import (
    EVERY_STORE,
    begin_load,
    close_load,
    finish_load,
    objections,
    pending_in,
)
from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.model import BootstrapPhase, TopicPartition
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import AnyRecord, BootstrappedRecord, BootstrapRecord
from tidewheel.streams.bulk.backfill.objections import objections_to_cluster
from tidewheel.streams.bulk.backfill.output_writer import OutputOrder, OutputReport
from tidewheel.streams.bulk.loading import BulkStep, OnStep, hold_reported, objections_to_members
from tidewheel.streams.errors import RefusedError, StreamsError
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.recovery import transactional_ids
from tidewheel.streams.group.reset import ResetAdmin
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan, outputs_group
from tidewheel.tasks.kafka.ports import CommittedOffset, TransactionalProducer
from tidewheel.tasks.kafka.shard_inputs import all_committed, by_group
from tidewheel.tasks.key_ranges.progress_vector import TOPOLOGY_HASH_BYTES, Progress


class BackfillRefused(RefusedError):  # noqa: N818 - says what it is
    """The application can't be backfilled now; nothing was changed.

    Next step:
        See the message: stop the group's members, or reset the application.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Computed results of a backfill, to publish.

    Attributes:
        job: Id of these results; other results of the same question have another.
        written: Number of records of each changelog and output topic that is written.
        commits: Returns the offset and metadata to commit for each input, and for each shard of it. Called
            when all topics exist.
    """

    job: str
    written: Mapping[str, int]
    commits: Callable[[], Mapping[TopicPartition, CommittedOffset]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Effects of a publication.

    Attributes:
        producer: Opens the producer that commits the offsets; a later run fences it.
        create_topics: Creates missing changelog and repartition topics.
        write: Writes all records of changelogs and output topics that are not written yet.
        snapshot: Makes snapshots of the stores, if there is a place for them.
        check_owner: Raises `StreamsError` if another run has taken over the files of this one.
    """

    admin: ResetAdmin
    group_log: GroupLogWriter
    producer: Callable[[], TransactionalProducer]
    create_topics: Callable[[], None]
    write: Callable[[OutputOrder], Sequence[OutputReport]]
    snapshot: Callable[[], None]
    workers_here: Callable[[], Sequence[str]] = field(default=lambda: ())
    check_owner: Callable[[], None] = field(default=lambda: None)


def check_application(
    live: ApplicationPlan,
    application_id: str,
    group: Group,
    admin: ResetAdmin,
    live_members: Iterable[str],
    workers_here: Callable[[], Iterable[str]] = tuple,
) -> None:
    """Raise `BackfillRefused` if the application has begun, or has members.

    `workers_here`: returns the problems of local state folders in use.
    """
    reasons = objections(group, EVERY_STORE, live_members)
    if pending_in(group, EVERY_STORE) is None:
        committed = [
            at
            for at, offset in all_committed(admin, application_id).items()
            if not _is_of_reset(offset)
        ]
        reasons += [
            *objections_to_members(admin, application_id),
            *objections_to_cluster(application_id, committed, _filled(live, admin)),
            *workers_here(),
        ]
    if reasons:
        raise BackfillRefused(f"{application_id} can't be backfilled now: {'; '.join(reasons)}")


def _is_of_reset(committed: CommittedOffset) -> bool:
    """Return true for an offset that `tidewheel reset` has committed: no worker has run since."""
    progress = Progress.decode(committed.metadata, committed_offset=committed.offset)
    return progress is not None and progress.topology_hash == bytes(TOPOLOGY_HASH_BYTES)


def _filled(live: ApplicationPlan, admin: ResetAdmin) -> set[str]:
    """Return the internal topics with records."""
    internal = [topic.name for topic in (*live.repartition_topics, *live.changelog_topics)]
    partitions = [
        TopicPartition(name, number)
        for name, topic in admin.describe_topics(internal).items()
        for number in range(topic.partitions)
    ]
    starts, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
    return {at.topic for at in partitions if starts[at] != ends[at]}


class BackfillDriver:
    def __init__(
        self,
        live: ApplicationPlan,
        application_id: str,
        ports: Ports,
        *,
        attempt: str,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self._live = live
        self._app = application_id
        self._ports = ports
        self._attempt = attempt
        self._on_step = on_step

    def check(self) -> None:
        """Raise `BackfillRefused` if the application has begun, or has members."""
        self._check(self._ports.group_log.group(decided=True))

    def pending_job(self) -> str | None:
        """Return the job whose results a killed run has begun to write; None without one."""
        record = pending_in(self._ports.group_log.group(decided=True), EVERY_STORE)
        return None if record is None else record.input_offsets

    def publish(self, results: Results) -> None:
        with closing(self._ports.producer()) as producer:
            producer.init()
            self._begin(results)
            with hold_reported(
                self._ports.group_log,
                EVERY_STORE,
                self._attempt,
                held=f"The group {self._app} stays held until a run of `tidewheel backfill` has finished",
                taken_over="Another run of `tidewheel backfill` has taken over; check that one",
                on_step=self._on_step,
            ):
                self._write(results)
                self._end(producer, results)

    def _begin(self, results: Results) -> None:
        self._report("begin", f"pausing the group {self._app}")

        def make(group: Group, by: Claimant) -> list[AnyRecord]:
            self._ports.check_owner()
            self._check(group)
            earlier = pending_in(group, EVERY_STORE)
            if earlier is None:
                self._fence_members(group)
                self._ports.create_topics()
            elif earlier.input_offsets != results.job:
                raise BackfillRefused(
                    f"{self._app}: a killed backfill has begun to write other results; run `tidewheel reset {self._app}`, "
                    "which deletes them, and then this again"
                )
            record = BootstrapRecord(
                leader_epoch=0,
                store=EVERY_STORE,
                attempt=self._attempt,
                phase=BootstrapPhase.WRITING.value,
                input_offsets=results.job,
            )
            return begin_load(group, record, by)

        self._step(make)

    def _check(self, group: Group) -> None:
        ports = self._ports
        check_application(
            self._live,
            self._app,
            group,
            ports.admin,
            ports.group_log.live_members(),
            ports.workers_here,
        )

    def _fence_members(self, group: Group) -> None:
        """Fence silent members and earlier producers, which might still commit."""
        committed = all_committed(self._ports.admin, self._app)
        self._ports.admin.fence(transactional_ids(self._app, committed, group))

    def _write(self, results: Results) -> None:
        total = sum(results.written.values())
        self._report("write", f"writing {total:,} records of changelogs and output topics")
        order = OutputOrder(application_id=self._app, job=results.job, attempt=self._attempt)
        reports = self._ports.write(order)
        self._step(lambda group, by: close_load(group, EVERY_STORE, self._attempt, by))
        written = Counter[str]()
        for report in reports:
            written[report.topic] += report.records
        wrong = [topic for topic, count in results.written.items() if written[topic] != count]
        if wrong:
            raise StreamsError(
                f"{self._app}: the records written to {', '.join(wrong)} are not those that were computed; run the command "
                "again, and report it if it happens twice"
            )

    def _end(self, producer: TransactionalProducer, results: Results) -> None:
        self._ports.snapshot()
        commits = results.commits()
        self._report("commit", f"committing the offsets of {len(commits)} inputs")
        groups = by_group(self._app, commits)
        floors = groups.pop(self._app, {})
        producer.begin()
        for group_id, committed in groups.items():
            producer.send_offsets(group_id, committed)
        producer.commit(self._app, floors)
        done = BootstrappedRecord(
            leader_epoch=0,
            store=EVERY_STORE,
            attempt=self._attempt,
            rows=sum(results.written.values()),
        )
        self._step(lambda group, by: finish_load(group, done, by))
        self._ports.admin.delete_group(outputs_group(self._app))

    def _step(self, make: Callable[[Group, Claimant], list[AnyRecord]]) -> None:
        self._ports.group_log.claim_step("backfill", self._attempt, make)

    def _report(self, phase: str, text: str) -> None:
        self._on_step(BulkStep(phase=phase, text=text))
