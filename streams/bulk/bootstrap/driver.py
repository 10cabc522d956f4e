"""Steps of loading a store, each safe to kill.

    read group ─▶ begin ─▶ fence ─▶ check ─▶ write ─▶ close ─▶ fence ─▶ count ─▶ snapshot ─▶ commit ─▶ finish
                  log: BOOTSTRAP             data     log: CLOSING                                     log: BOOTSTRAPPED

- From *begin* to *finish* the group log holds (pauses) the group. After a kill the hold remains,
  and the next run starts another attempt.
- *Check* reads all rows before the first write. Its failure releases the group.
- Attempts fence each other's writers. A late writer is fenced after *close*, or reads that the
  load is closed.
- One producer, opened before *begin*, commits the offsets; a later run fences it.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace as replaced

from tidewheel.rebalance.leader.bootstrapping import (
    begin_load,
    close_load,
    finish_load,
    objections,
    pending_in,
)
from tidewheel.rebalance.leader.log_steps import Claimant
from tidewheel.rebalance.model import (
    BootstrapPhase,
    TopicPartition,
    parse_position_key,
    position_key,
)
from tidewheel.rebalance.protocol.group import Group
from tidewheel.rebalance.protocol.records import AnyRecord, BootstrappedRecord, BootstrapRecord
from tidewheel.streams.bulk.bootstrap.other_stores import (
    HasRecords,
    OtherStore,
    find_refusal,
    moves_of,
)
from tidewheel.streams.bulk.bootstrap.plan import (
    InputOffsets,
    StoreTarget,
    check_offsets,
    refusal_of_changelog,
)
from tidewheel.streams.bulk.bootstrap.writer import PartitionReport, WriteOrder
from tidewheel.streams.bulk.loading import BulkStep, OnStep, hold_reported, objections_to_members
from tidewheel.streams.bulk.stable_ends import stable_ends
from tidewheel.streams.errors import RefusedError, StreamsError
from tidewheel.streams.group.group_log_writer import GroupLogWriter
from tidewheel.streams.group.recovery import transactional_ids
from tidewheel.streams.group.reset import ResetAdmin
from tidewheel.tasks.commit_facts import CommitFacts
from tidewheel.tasks.kafka.ports import CommittedOffset, TopicDescription, TransactionalProducer
from tidewheel.tasks.kafka.shard_inputs import by_group, committed_inputs, of_inputs
from tidewheel.tasks.key_ranges.progress_vector import Progress
from tidewheel.tasks.key_ranges.vector import Vector


class BootstrapRefused(RefusedError):  # noqa: N818 - says what it is
    """The store can't be loaded now; nothing was changed.

    Next step:
        See the message: stop the group's members, or choose another store or input.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    rows: int = 0
    left_out: int = 0
    problem: str = ""


class BootstrapJob(Protocol):
    def check(self, existing: Mapping[int, tuple[int, int]], timestamp_ms: int) -> Checked:
        """Encode, shuffle, sort and check all rows; write nothing.

        `existing` is the changelog's offset range by partition: later, `write` deletes its keys
        that no row has. `timestamp_ms` applies to rows without a timestamp.
        """
        ...

    def write(self, order: WriteOrder) -> Sequence[PartitionReport]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapReport:
    """Result of a bootstrap.

    Attributes:
        rows: Keys (and versions) written.
        deleted: Keys deleted because no row has them.
        left_out: Rows without a value.
        again: True if this run completed the work of a killed one.
    """

    store: str
    attempt: str
    rows: int
    deleted: int = 0
    left_out: int = 0
    input_offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    changelog_end: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    again: bool = False


class BootstrapDriver:
    """One run of `tidewheel bootstrap`.

    Args:
        other_stores: Other stores of the same inputs; the run is refused if one would repeat or miss input.
        publish: Makes a snapshot after the rows were counted, while the group still pauses.
    """

    def __init__(
        self,
        target: StoreTarget,
        *,
        group_log: GroupLogWriter,
        admin: ResetAdmin,
        producer: Callable[[str], TransactionalProducer],
        job: BootstrapJob,
        attempt: str,
        topology_hash: bytes,
        now_ms: Callable[[], int],
        on_step: OnStep = lambda _: None,
        workers_here: Callable[[], Sequence[str]] = lambda: (),
        other_stores: Sequence[OtherStore],
        has_records: HasRecords,
        publish: Callable[[], None] | None = None,
    ) -> None:
        self._target = target
        self._group_log = group_log
        self._admin = admin
        self._producer = producer
        self._job = job
        self._attempt = attempt
        self._topology_hash = topology_hash
        self._now_ms = now_ms
        self._on_step = on_step
        self._workers_here = workers_here
        self._other_stores = other_stores
        self._has_records = has_records
        self._publish = publish

    def run(self, requested: InputOffsets, *, replace: bool = False) -> BootstrapReport:
        group = self._group_log.group(decided=True)
        self._check_refusals(group, replace=replace)
        if not self._is_pinned(group, requested):
            self._check_other_stores(self._resolved(requested), stable=False)
        command = f"tidewheel bootstrap {self._name}"
        with closing(self._producer(self._target.driver_id)) as producer:
            producer.init()
            record, again = self._begin(requested, replace=replace)
            with self._release_on_failure(may_withdraw=not again):
                order, checked = self._check()
            inputs = {parse_position_key(key): offset for key, offset in record.input.items()}
            with hold_reported(
                self._group_log,
                self._name,
                self._attempt,
                held=f"The group {self._target.application_id} stays held until a run of `{command}` has finished",
                taken_over=f"Another run of `{command}` has taken over, and nothing that this one has written counts; check that one",
                on_step=self._on_step,
            ):
                reports, ends = self._write(order, checked)
                self._end(producer, inputs, rows=sum(report.rows for report in reports))
        return BootstrapReport(
            store=self._name,
            attempt=self._attempt,
            rows=sum(report.rows for report in reports),
            deleted=sum(report.deletes for report in reports),
            left_out=checked.left_out,
            input_offsets=inputs,
            changelog_end=ends,
            again=again,
        )

    @property
    def _name(self) -> str:
        return self._target.spec.name

    def _begin(self, requested: InputOffsets, *, replace: bool) -> tuple[BootstrapRecord, bool]:
        """Log the start, which pauses the group.

        Returns the record, and True if an earlier run of this store did not finish.
        """
        self._report("begin", f"pausing the group {self._target.application_id}")
        resolved: dict[TopicPartition, int] = {}
        records: list[BootstrapRecord] = []
        repeated: list[bool] = []

        def make(group: Group, by: Claimant) -> list[AnyRecord]:
            was_empty = self._check_refusals(group, replace=replace)
            earlier = pending_in(group, self._name)
            pinned = self._is_pinned(group, requested)
            if not resolved and not pinned:
                resolved.update(self._resolved(requested))
            if earlier is None:
                self._fence_members(group)
            if not pinned:  # Check again: from here on no member commits.
                self._check_other_stores(resolved, stable=True)
            record = BootstrapRecord(
                leader_epoch=0,
                store=self._name,
                attempt=self._attempt,
                phase=BootstrapPhase.WRITING.value,
                was_empty=was_empty,
                input=dict(earlier.input)
                if earlier is not None and pinned
                else {
                    position_key(partition): offset
                    for partition, offset in sorted(resolved.items())
                },
                input_offsets=requested.text,
            )
            records[:], repeated[:] = [record], [earlier is not None]
            return begin_load(group, record, by)

        self._step(make)
        if repeated[0]:
            self._report("again", "an earlier run was killed; its rows are compared with these")
        return records[0], repeated[0]

    def _is_pinned(self, group: Group, requested: InputOffsets) -> bool:
        """Return true if a killed run had the same `input_offsets` text; its offsets are reused."""
        earlier = pending_in(group, self._name)
        return earlier is not None and earlier.input_offsets == requested.text

    def _check_other_stores(self, inputs: Mapping[TopicPartition, int], *, stable: bool) -> None:
        refused = find_refusal(
            self._target, self._other_stores, inputs, self._admin, self._has_records, stable=stable
        )
        if refused:
            raise BootstrapRefused(f"store {self._name} can't be loaded now: {refused}")

    def _check_refusals(self, group: Group, *, replace: bool) -> bool:
        """Return true if the changelog was empty before this load's first run, killed or not.

        Raise `BootstrapRefused` if the store can't be loaded now.
        """
        reasons = objections(group, self._name, self._group_log.live_members())
        earlier = pending_in(group, self._name)
        if earlier is not None:
            is_empty = earlier.was_empty
        else:
            partitions = self._target.changelog_partitions
            is_empty = self._admin.beginning_offsets(partitions) == self._admin.end_offsets(
                partitions
            )
            reasons += self._workers_here()
            reasons += objections_to_members(self._admin, self._target.application_id)
        last = group.bootstraps.get(self._name)
        refused = refusal_of_changelog(
            self._target,
            is_empty=is_empty,
            replace=replace,
            was_loaded=isinstance(last, BootstrappedRecord) and not last.withdrawn,
        )
        reasons += [refused] if refused else []
        if reasons:
            raise BootstrapRefused(f"store {self._name} can't be loaded now: {'; '.join(reasons)}")
        return is_empty

    def _fence_members(self, group: Group) -> None:
        """Fence silent members and earlier producers, which might still commit."""
        app = self._target.application_id
        inputs = list(self._target.inputs)
        committed = committed_inputs(
            self._admin, app, {*inputs, *self._target.inputs_of_tasks(inputs)}, stable=False
        )
        ids = transactional_ids(app, committed, group)
        self._admin.fence(
            [
                transactional_id
                for transactional_id in ids
                if transactional_id != self._target.driver_id
            ]
        )

    def _resolved(self, requested: InputOffsets) -> dict[TopicPartition, int]:
        inputs = self._target.inputs
        match requested.kind:
            case "earliest":
                return self._admin.beginning_offsets(inputs)
            case "latest":
                return self._admin.stable_offsets(
                    inputs
                )  # The log end would skip open transactions.
            case "timestamp":
                return self._admin.offsets_at(inputs, requested.timestamp_ms)
            case "offsets":
                starts, ends = (
                    self._admin.beginning_offsets(inputs),
                    self._admin.end_offsets(inputs),
                )
                return check_offsets(self._target, requested, starts, ends)

    def _check(self) -> tuple[WriteOrder, Checked]:
        starts = self._fenced_ends()
        first = self._admin.beginning_offsets(self._target.changelog_partitions)
        now_ms = self._now_ms()
        existing = {
            changelog.partition: (first[changelog], end)
            for changelog, end in starts.items()
            if first[changelog] < end
        }
        self._report("check", f"shuffling and checking the rows of store {self._name}")
        checked = self._job.check(existing, now_ms)
        if checked.problem:
            raise StreamsError(checked.problem)
        order = WriteOrder(
            target=self._target,
            attempt=self._attempt,
            starts=tuple(starts[partition] for partition in self._target.changelog_partitions),
            deleted_at_ms=now_ms,
        )
        return order, checked

    @contextmanager
    def _release_on_failure(self, *, may_withdraw: bool) -> Generator[None]:
        try:
            yield
        except StreamsError as error:
            raise StreamsError(
                f"{error}. {self._release_group(may_withdraw=may_withdraw)}"
            ) from error
        except (Exception, KeyboardInterrupt):
            self._report("stopped", self._release_group(may_withdraw=may_withdraw))
            raise

    def _release_group(self, *, may_withdraw: bool) -> str:
        """Release the group if no run has written rows; return the outcome as a sentence."""
        if not may_withdraw:
            return (
                "The group stays held, because an earlier run was killed and may have written rows; run the command again with "
                "other rows, or `tidewheel reset` to begin without the store's content"
            )
        none = BootstrappedRecord(
            leader_epoch=0, store=self._name, attempt=self._attempt, withdrawn=True
        )
        self._step(lambda group, by: finish_load(group, none, by))
        return "Nothing was written"

    def _write(
        self, order: WriteOrder, checked: Checked
    ) -> tuple[Sequence[PartitionReport], dict[TopicPartition, int]]:
        self._report("write", f"writing {checked.rows:,} rows to {self._target.changelog}")
        reports = self._job.write(order)
        self._report("close", "fencing the writers, counting what they wrote")
        self._step(lambda group, by: close_load(group, self._name, self._attempt, by))
        ends = self._fenced_ends()
        self._check_counts(checked, reports, ends)
        return reports, ends

    def _fenced_ends(self) -> dict[TopicPartition, int]:
        partitions = self._target.changelog_partitions
        self._admin.fence([self._target.writer_id(partition.partition) for partition in partitions])
        return stable_ends(self._admin, partitions)

    def _check_counts(
        self,
        checked: Checked,
        reports: Sequence[PartitionReport],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        rows = sum(part.rows for part in reports)
        if rows != checked.rows:
            raise StreamsError(
                f"store {self._name}: {checked.rows} rows were checked and {rows} written: the frame is another one each time "
                "it is computed; write the frame to a file, and run the command again from that"
            )
        for report in reports:
            where = TopicPartition(self._target.changelog, report.partition)
            if ends[where] != report.end_offset:
                raise StreamsError(
                    f"{where} ends at {ends[where]}, but {report.rows + report.deletes} records and {report.transactions} "
                    f"markers from {report.from_offset} on end at {report.end_offset}: another program has written to it; find "
                    "out who, and run the command again"
                )

    def _end(
        self, producer: TransactionalProducer, inputs: Mapping[TopicPartition, int], *, rows: int
    ) -> None:
        if self._publish is not None:
            self._report("snapshot", f"making a snapshot of store {self._name}")
            self._publish()
        self._report("commit", f"committing the resume offsets of {len(inputs)} input partitions")
        self._commit(producer, inputs)
        done = BootstrappedRecord(
            leader_epoch=0, store=self._name, attempt=self._attempt, rows=rows
        )
        self._step(lambda group, by: finish_load(group, done, by))

    def _commit(
        self, producer: TransactionalProducer, inputs: Mapping[TopicPartition, int]
    ) -> None:
        topics = {partition.topic for partition in (*inputs, *self._target.between)}
        ids = self._admin.describe_topics(sorted(topics))
        between = [partition for partition in self._target.between if partition.topic in ids]
        # The loaded rows include the records in repartition topics: members must skip these.
        offsets = {**inputs, **self._admin.end_offsets(between)}
        tasks = {at: offsets[at.whole] for at in self._target.inputs_of_tasks(offsets)}
        before = self._progress_before(tasks)
        app = self._target.application_id
        # Partitions too where tasks have shards: the floor tells that all shards have an offset.
        commits = {
            at: CommittedOffset(offset, self._metadata(ids[at.topic], at, offset, before.get(at)))
            for at, offset in {**offsets, **tasks}.items()
        }
        groups = by_group(app, commits)
        floors = groups.pop(app)
        producer.begin()
        for group_id, committed in groups.items():
            producer.send_offsets(group_id, committed)
        producer.commit(app, floors)

    def _progress_before(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Progress]:
        """Return committed progress of inputs whose position this load does not move.

        The new commit copies their stream times, which other stores of these inputs need.
        """
        partitions = list(offsets)
        committed = committed_inputs(
            self._admin, self._target.application_id, partitions, stable=False
        )
        starts = of_inputs(self._admin.beginning_offsets, partitions)
        ends = of_inputs(self._admin.end_offsets, partitions)
        progress_by_partition: dict[TopicPartition, Progress] = {}
        for move in moves_of(offsets, committed, starts, ends):
            offset = committed.get(move.partition)
            if offset is None or move.changes(self._has_records):
                continue
            progress = Progress.decode(offset.metadata, committed_offset=offset.offset)
            if progress is not None:
                progress_by_partition[move.partition] = progress
        return progress_by_partition

    def _metadata(
        self, topic: TopicDescription, at: TopicPartition, offset: int, before: Progress | None
    ) -> str:
        progress = Progress(
            task_epoch=0,
            transactional_id=self._target.driver_id,
            topic_id=topic.topic_id,
            topology_hash=self._topology_hash,
            vector=Vector.at(offset, at.shard.first_hash, at.shard.end_hash),
            shards=self._target.shards.get(at.topic, 1),
            facts=CommitFacts(first_partitions=topic.partitions).encode(),
        )
        if before is not None and (before.topic_id, before.topology_hash) == (
            topic.topic_id,
            self._topology_hash,
        ):
            progress = replaced(
                progress,
                stream_time_ms=before.stream_time_ms,
                operator_times_ms=before.operator_times_ms,
                facts=before.facts or progress.facts,
            )
        return progress.encode()

    def _step(self, make: Callable[[Group, Claimant], list[AnyRecord]]) -> None:
        self._group_log.claim_step("bootstrap", self._attempt, make)

    def _report(self, phase: str, text: str) -> None:
        self._on_step(BulkStep(phase=phase, text=text))
