"""Computation of a backfill on executors, and the writing of its results."""

import contextlib
import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.rebalance.producer_ids import backfill_id
from tidewheel.state_stores.bulk_restore.frame_source import FrameSource
from tidewheel.state_stores.bulk_restore.storage import Storage, open_storage
from tidewheel.state_stores.bulk_restore.urls import redacted_url
from tidewheel.streams.bulk.backfill.cut import Cut, cut_of_application
from tidewheel.streams.bulk.backfill.driver import (
    BackfillRefused,
    Results,
)
from tidewheel.streams.bulk.backfill.history import History, objections_to_frame, read_history
from tidewheel.streams.bulk.backfill.journal import (
    Journal,
    check_owner,
    claim_journal,
    delete_all,
    read_journal,
    write_journal,
)
from tidewheel.streams.bulk.backfill.objections import RETENTION
from tidewheel.streams.bulk.backfill.output_checks import (
    RETENTION_SETTINGS,
    check_numbers_are_kept,
    check_retentions,
    short_retentions,
)
from tidewheel.streams.bulk.backfill.output_writer import (
    OutputItem,
    OutputOrder,
    OutputReport,
    write_outputs,
)
from tidewheel.streams.bulk.backfill.plan import (
    TOPICS,
    BackfillPlan,
    missing_outputs_text,
    output_choice,
)
from tidewheel.streams.bulk.backfill.positions import positions_of
from tidewheel.streams.bulk.batch.command import source_of
from tidewheel.streams.bulk.batch.executors import StageResult, Work
from tidewheel.streams.bulk.batch.result import BatchResult
from tidewheel.streams.bulk.batch.run import BatchRun
from tidewheel.streams.bulk.driver import (
    BulkDriver,
    now_ms,
    stores_by_name,
)
from tidewheel.streams.bulk.loading import BulkStep, OnStep
from tidewheel.streams.bulk.snapshots import make_snapshots
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.graph.store_identity import program_fingerprint
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.worker.topic_setup import spec_of
from tidewheel.tasks.kafka.internal_topics import changelog_topic
from tidewheel.tasks.kafka.ports import CommittedOffset, NewTopic
from tidewheel.tasks.processing.api.topology_spec import SourceSpec

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillReport:
    """Result of a backfill.

    Attributes:
        records: Records read from Kafka, at most (offsets of transaction markers count), and rows
            of histories.
        stores: Number of rows of each store with a changelog.
        outputs: Number of records of each output topic; empty if they were discarded.
        input_offsets: Offsets at which workers continue.
        again: True if this run continued an unfinished one.
    """

    records: int
    stores: Mapping[str, int]
    outputs: Mapping[str, int] = field(default_factory=dict[str, int])
    input_offsets: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    again: bool = False


@dataclass(frozen=True, slots=True)
class HistoryFrame:
    """Records of a source topic that are older than Kafka's.

    Attributes:
        until_ms: Time (since the epoch) that divides a frame without offsets from Kafka's records.
        order_by: Columns that order rows of equal times, for frames without offsets.
    """

    frame: "DataFrame | FrameSource"
    until_ms: int | None = None
    order_by: Sequence[str] = ()

    def __str__(self) -> str:
        frame = self.frame
        name = frame if isinstance(frame, FrameSource) else frame.schema.simpleString()
        return f"{name} until {self.until_ms} by {', '.join(self.order_by)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Arguments of a backfill that determine its results."""

    outputs: str | None
    begins: Mapping[str, str]
    until: str
    until_of: str | None
    accept: frozenset[str]
    history: Mapping[str, HistoryFrame] = field(default_factory=dict[str, HistoryFrame])

    def digests(
        self, topology: Topology, config: StreamsConfig, topic_ids: Mapping[str, bytes]
    ) -> dict[str, str]:
        """Return a digest of each part of the question, by the name that messages give it.

        A run continues an earlier one with equal digests. They tell no secret of a URL.
        """
        handlers = (
            config.deserialization_exception_handler,
            config.processing_exception_handler,
            config.production_exception_handler,
        )
        parts: dict[str, object] = {
            "application_id": config.application_id,
            "topology": topology.hash(),
            "program": program_fingerprint(spec_of(topology, config), *handlers),
            "topics": {topic: key.hex() for topic, key in sorted(topic_ids.items())},
            "outputs": self.outputs,
            "from": dict(sorted(self.begins.items())),
            "until": self.until,
            "until_of": self.until_of,
            "history": {topic: str(each) for topic, each in sorted(self.history.items())},
        }
        return {
            name: hashlib.sha256(json.dumps(part).encode()).hexdigest()
            for name, part in parts.items()
        }


class Computation:
    """Computation of one backfill, and the writing of its results by executors."""

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig,
        plan: BackfillPlan,
        question: Question,
        driver: BulkDriver,
        url: str,
        on_step: OnStep,
    ) -> None:
        topics = driver.admin.describe_topics(sorted({at.topic for at in plan.ranges}))
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        self._topology = topology
        self._config = config
        self._plan = plan
        self._question = question
        self._driver = driver
        self._on_step = on_step
        self._storage: Storage = open_storage(url)
        work = Work(
            job=plan.job,
            url=driver.keeper.url("work", url),
            clients=driver.executor_settings,
            writes_changelogs=True,
        )
        self._run = BatchRun(driver.session, work, driver.on_progress)
        self._journal = Journal(
            run=secrets.token_hex(8),
            question=question.digests(topology, config, topic_ids),
            ranges=dict(plan.ranges),
        )
        self._is_again = False
        self._frames: dict[str, DataFrame] = {}

    def open(
        self, admin: KafkaResetAdmin, *, restart: bool, pending: Callable[[], str | None]
    ) -> None:
        """Continue from the journal of an unfinished run, or create a new one.

        `pending` returns the job whose results an earlier run has begun to write.
        """
        earlier = None if restart else read_journal(self._storage)
        if earlier is not None and pending() is None and self._is_of_no_use(earlier, admin):
            earlier = None
        if earlier is None:
            self._open_frames()
            self._check_output_folder()
            if pending() is not None:
                raise BackfillRefused(
                    f"{self._config.application_id}: an unfinished backfill has begun to write its results, and "
                    f"{'restart forgets them' if restart else f'its files are not in {self._storage.shown}'}; run `tidewheel "
                    f"reset {self._config.application_id}`, and then this again"
                )
            delete_all(self._storage)
            claim_journal(self._storage, self._journal)
            return
        question = self._journal.question
        others = [name for name, digest in question.items() if digest != earlier.question.get(name)]
        if others:
            raise ConfigError(
                f"backfill: {self._storage.shown} has the files of an unfinished run that differs in {', '.join(others)}; run "
                "it as before, or start over with restart (--restart)"
            )
        if earlier.published_ms is not None:
            check_numbers_are_kept(earlier.published_ms, now_ms(), admin.offsets_retention_ms())
        self._journal = msgspec.structs.replace(earlier, run=self._journal.run)
        self._open_frames()
        self._check_cut(admin)
        claim_journal(self._storage, self._journal)
        self._is_again = True
        self._report(
            "again",
            f"continuing an unfinished run: {len(earlier.passes)} of {len(self._plan.job.batch.passes)} passes are done",
        )

    def _is_of_no_use(self, earlier: Journal, admin: KafkaResetAdmin) -> bool:
        """Return true for the journal of a run that has written no results of its application.

        It has done nothing, or published all of an application that was reset since, or ended at
        the cut of an old application that has continued.
        """
        if earlier.published_ms is not None or not (earlier.passes or earlier.read):
            return True
        if self._question.until_of is None or earlier.question != self._journal.question:
            return False
        moved = self._cut(admin).moved(earlier.ranges)
        if moved:
            self._report("again", f"starting over, because the cut has moved: {', '.join(moved)}")
        return bool(moved)

    def check_owner(self) -> None:
        """Raise `StreamsError` if another run has taken over the files."""
        check_owner(self._storage, self._journal.run)

    def _open_frames(self) -> None:
        """Open the frames that are not read yet; raise `ConfigError` for wrong columns of any."""
        objections: list[str] = []
        for topic, given in self._unread():
            frame = self._run.frame_of(given.frame, self._source_of(topic))
            self._frames[topic] = frame
            objections += objections_to_frame(
                topic,
                frame.dtypes,
                {at: span for at, span in self._journal.ranges.items() if at.topic == topic},
                until_ms=given.until_ms,
                order_by=given.order_by,
                accept=self._question.accept,
            )
        if objections:
            raise ConfigError(f"backfill: {'; '.join(objections)}")

    def _unread(self) -> list[tuple[str, HistoryFrame]]:
        """Return the histories that the journal has not, by topic."""
        given = sorted(self._question.history.items())
        return [(topic, each) for topic, each in given if topic not in self._journal.read]

    def _source_of(self, topic: str) -> SourceSpec:
        return source_of(spec_of(self._topology, self._config), topic)

    def compute(self, admin: KafkaResetAdmin) -> None:
        """Read the history and run the passes that are not done."""
        for topic, given in self._unread():
            self._journal = self._journal.with_history(topic, self._history(topic, given, admin))
            write_journal(self._storage, self._journal)
        self._run.sources = self._journal.segments
        self._run.passes = [list(results) for results in self._journal.passes]
        for number in range(len(self._run.passes), len(self._plan.job.batch.passes)):
            self._run.run_pass(number)
            self._journal = self._journal.with_pass(self._run.passes[-1])
            write_journal(self._storage, self._journal)

    def _history(self, topic: str, given: HistoryFrame, admin: KafkaResetAdmin) -> History:
        history = read_history(
            self._run,
            topic,
            self._frames[topic],
            self._source_of(topic),
            self._plan.job.partition_count(topic),
            self._journal.ranges,
            offsets_at=admin.offsets_at,
            until_ms=given.until_ms,
            order_by=given.order_by,
            accept=self._question.accept,
        )
        for gap in history.gaps:
            self._report("gap", f"accepted: {gap}")
        rows = sum(stored.records for stored in history.rows.values())
        left_out = sum(history.left_out.values())
        self._report(
            "history",
            f"{rows:,} rows of history of {topic}, {left_out:,} that Kafka has were left out",
        )
        return history

    def _check_cut(self, admin: KafkaResetAdmin) -> None:
        """Raise `BackfillRefused` if the application of `until_of` has continued meanwhile."""
        if self._question.until_of is not None:
            self._cut(admin).check(self._journal.ranges)

    def _cut(self, admin: KafkaResetAdmin) -> Cut:
        assert self._question.until_of is not None, "a backfill until another application's cut"
        return cut_of_application(self._config, self._question.until_of, admin)

    def check_results(self, admin: KafkaResetAdmin) -> None:
        """Raise `StreamsError` if the results can't be published.

        An output topic is missing, brokers would delete results immediately, or the cut has moved.
        """
        self._check_cut(admin)
        now = now_ms()
        short: dict[str, int] = {}
        if self._question.outputs == TOPICS:
            oldest = self._oldest_outputs()
            found = admin.describe_topics(sorted(oldest), config=RETENTION_SETTINGS)
            missing = sorted(oldest.keys() - found.keys())
            if missing:
                raise StreamsError(
                    f"{missing_outputs_text(missing)}; then run the command again: it continues here"
                )
            for topic in found.values():
                short |= short_retentions([topic], oldest[topic.name], now)
        for changelog, oldest_ms in self._oldest_rows():
            short |= short_retentions([changelog], oldest_ms, now)
        check_retentions(short, accepted=RETENTION in self._question.accept)

    def _oldest_outputs(self) -> dict[str, int]:
        oldest: dict[str, int] = {}
        for result in self._run.last_results():
            for topic, oldest_ms in result.oldest_ms.items():
                oldest[topic] = min(oldest.get(topic, oldest_ms), oldest_ms)
        return oldest

    def _oldest_rows(self) -> Iterator[tuple[NewTopic, int]]:
        """Yield the changelogs of windows and sessions, each with the time of its oldest live row."""
        topics = {topic.name: topic for topic in self._plan.live.changelog_topics}
        for planned in self._plan.live.subtopologies.values():
            times = [
                time_ms
                for result in self._run.last_results()
                if result.end is not None and result.task[0] == planned.spec.id
                for time_ms in result.end.partition_times_ms.values()
                if time_ms >= 0
            ]
            for store in planned.spec.stores:
                if store.retention_ms and store.logging and times:
                    yield topics[self._changelog(store.name)], min(times) - store.retention_ms

    def results(self, admin: KafkaResetAdmin) -> Results:
        """Return the results to publish."""
        last = self._run.last_results()
        names = sorted(result.file.name for result in last)
        return Results(
            job=hashlib.sha256("".join(names).encode()).hexdigest()[:32],
            written=self._written(),
            commits=partial(self._commits, admin, last),
        )

    def _commits(
        self, admin: KafkaResetAdmin, last: Sequence[StageResult]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        live = self._plan.live
        ends = {TaskId(*result.task): result.end for result in last if result.end is not None}
        inputs = sorted({at.whole for task in live.tasks for at in live.inputs(task)})
        inside = [at for at in inputs if at not in self._journal.ranges]
        offsets = {at: span.end for at, span in self._journal.ranges.items()}
        return positions_of(
            live,
            ends,
            offsets | admin.end_offsets(inside),
            admin.describe_topics(sorted({at.topic for at in inputs})),
            topology_hash=bytes.fromhex(self._topology.hash()),
            transactional_id=backfill_id(self._config.application_id),
        )

    def _items(self) -> list[OutputItem]:
        """Return the partitions to write, each with the files of its tasks."""
        last = sorted(self._run.last_results(), key=lambda result: result.task)
        items = [
            OutputItem(
                at=TopicPartition(self._changelog(store), result.task[1]),
                files=(result.file,),
                store=store,
            )
            for result in last
            for store, rows in sorted(result.rows.items())
            if rows
        ]
        if self._question.outputs != TOPICS:
            return items
        written = self._plan.job.batch.written
        partitions = sorted({at for result in last for at in result.blobs if at[0] not in written})
        return items + [
            OutputItem(
                at=TopicPartition(*at),
                files=tuple(result.file for result in last if at in result.blobs),
            )
            for at in partitions
        ]

    def _changelog(self, store: str) -> str:
        return changelog_topic(self._config.application_id, store)

    def _written(self) -> dict[str, int]:
        written = {self._changelog(store): rows for store, rows in self._stores().items()}
        return written | (self._outputs() if self._question.outputs == TOPICS else {})

    def _stores(self) -> dict[str, int]:
        return dict(_summed(result.rows for result in self._run.last_results()))

    def _outputs(self) -> dict[str, int]:
        records = _summed(result.records for result in self._run.last_results())
        written = self._plan.job.batch.written
        return {topic: count for topic, count in records.items() if topic not in written}

    def write(self, order: OutputOrder) -> Sequence[OutputReport]:
        """Write changelogs and output topics; the group is held by now."""
        from tidewheel.state_stores.bulk_restore.spark.job import run_on_executors  # noqa: PLC0415 - see bulk_session

        self._journal = self._journal.published_since(now_ms())
        write_journal(self._storage, self._journal)
        return run_on_executors(
            self._driver.session,
            partial(write_outputs, self._run.work, self._driver.executor_settings, order),
            self._items(),
            description=f"{self._config.application_id}: writing results",
            on_progress=self._driver.progress_reporter(
                "writing results", sum(self._written().values())
            ),
        )

    def _output_folder(self) -> str | None:
        """Return the folder or URL of output files; None for other choices of outputs."""
        outputs = self._question.outputs
        if output_choice(outputs, spec_has_sinks=False) != "url":
            return None
        return str(outputs).rstrip("/")

    def _check_output_folder(self) -> None:
        from tidewheel.state_stores.bulk_restore.spark.parquet import check_empty_folder  # noqa: PLC0415 - see bulk_session

        folder = self._output_folder()
        if folder is not None:
            check_empty_folder(self._driver.session, folder)

    def save_outputs(self) -> None:
        """Write the output topics' records as Parquet files, before anything is published.

        The first run found the folder empty, so a run that continues it replaces its own files.
        """
        from tidewheel.state_stores.bulk_restore.spark.parquet import write_parquet  # noqa: PLC0415 - see bulk_session

        self.check_owner()
        folder = self._output_folder()
        if folder is None or self._journal.published_ms is not None:
            return  # An earlier run has saved them before it began to publish.
        self._report("outputs", f"writing the records of output topics to {redacted_url(folder)}")
        counts = self._outputs()
        with BatchResult(
            self._driver.session, self._run.work, self._run.last_results(), contextlib.ExitStack()
        ) as result:
            for topic, frame in result.outputs.items():
                write_parquet(frame, f"{folder}/{topic}", counts.get(topic, 0))
                self.check_owner()

    def snapshot(self) -> None:
        if self._config.snapshot_location is None:
            return
        stores = {
            name: store
            for name, store in stores_by_name(self._topology, self._driver, None).items()
            if not store.spec.keeps_headers
        }
        self._report("snapshot", f"making snapshots of {', '.join(sorted(stores))}")
        make_snapshots(self._driver, stores, str(self._config.snapshot_location))

    def finish(self) -> BackfillReport:
        """Delete the files and return the report."""
        rows = sum(stored.records for stored in self._journal.history.values())
        report = BackfillReport(
            records=rows + sum(span.records for span in self._journal.ranges.values()),
            stores=self._stores(),
            outputs=self._outputs(),
            input_offsets={at: span.end for at, span in sorted(self._journal.ranges.items())},
            again=self._is_again,
        )
        delete_all(self._storage)
        return report

    def _report(self, phase: str, text: str) -> None:
        self._on_step(BulkStep(phase=phase, text=text))


def _summed(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return total
