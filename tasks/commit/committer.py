"""Commit execution: sends the parts of a commit in a safe order.

    sinks flushed (at_least_once) -> outputs, changelog and offsets sent -> all acknowledged
        -> transaction committed -> databases written, positions last

Before "transaction committed" everything may fail and be sent again; none of it is visible. After
it, a crash loses only database writes, which the changelog restores.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.buffers.commit_buffer import Drained
from tidewheel.state_stores.errors import StreamsError
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.tasks.commit.commit_schedule import CommitState
from tidewheel.tasks.commit.output_collector import OutputCollector, drop
from tidewheel.tasks.commit.refused_rows import RowOrigin, refused_row
from tidewheel.tasks.errors import RecordTooLargeError
from tidewheel.tasks.kafka.ports import (
    Admin,
    Background,
    Clock,
    CommitOutcomeUnknownError,
    CommittedOffset,
    FailedDelivery,
    Positions,
    ProducerFactory,
    TransactionAbortedError,
    TransactionalProducer,
)
from tidewheel.tasks.kafka.shard_inputs import by_group, committed_inputs
from tidewheel.tasks.kafka.unanswered import LIMIT_S, retry_unanswered
from tidewheel.tasks.processing.engine.output import OutputColumns, headers_of_changelog

_log = logging.getLogger(__name__)

_PAUSE_S = 0.1

#: Seconds between calls of `on_wait` while a commit waits for brokers.
_TICK_S = 0.5
#: Seconds until a commit counts as stuck in the client, whose own time-outs sum to 75 s.
_STUCK_S = 90.0

#: Seconds that a commit's thread waits for an extension: slow user code must not delay it.
_OPEN_S = 0.1
#: Seconds that the loop sleeps for the commit's thread, which else would wait for the GIL.
_SENDING_S = 0.004

Answer = TypeVar("Answer")


def run_in_thread(work: Callable[[], Answer]) -> Future[Answer]:
    """Start `work` in a new thread.

    >>> run_in_thread(lambda: 6 * 7).result()
    42
    """
    future: Future[Answer] = Future()
    # A daemon thread, else brokers that are down could delay the interpreter's exit.
    threading.Thread(target=_run, args=(work, future), name="tidewheel-commit", daemon=True).start()
    return future


def run_now(work: Callable[[], Answer]) -> Future[Answer]:
    """Run `work` in this thread.

    >>> run_now(lambda: 6 * 7).result()
    42
    """
    future: Future[Answer] = Future()
    _run(work, future)
    return future


def waking(
    background: Callable[[Callable[[], Answer]], Future[Answer]], wake: Callable[[], None]
) -> Callable[[Callable[[], Answer]], Future[Answer]]:

    def run(work: Callable[[], Answer]) -> Future[Answer]:
        future = background(work)
        future.add_done_callback(lambda _: wake())
        return future

    return run


def _run(work: Callable[[], Answer], future: Future[Answer]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised by result()
        future.set_exception(error)


@dataclass(slots=True, kw_only=True)
class Commit:
    """Contents of one commit.

    Attributes:
        outputs: Records for transactional outputs, in order.
        changelogs: Changes per changelog partition, in the order in which they were drained.
        offsets: Offsets for the group; sent concurrently with the records.
    """

    outputs: list[OutputColumns]
    changelogs: dict[TopicPartition, list[Drained]]
    offsets: dict[TopicPartition, CommittedOffset]
    #: Local work to do while brokers work; may be called more than once.
    meanwhile: Callable[[], None] = lambda: None

    @property
    def empty(self) -> bool:
        return not (self.outputs or self.changelogs or self.offsets)

    def add(self, later: "Commit") -> None:
        """Append later work; its offsets replace those of this commit."""
        self.outputs.extend(later.outputs)
        for partition, changes in later.changelogs.items():
            self.changelogs.setdefault(partition, []).extend(changes)
        self.offsets = later.offsets


class RolledBackError(Exception):
    """A transaction of unknown outcome had not committed: restart from the committed offsets."""


class _InFlight:
    __slots__ = ("attempt", "commit", "failure", "is_open", "lock", "until_s", "whole")

    def __init__(self, commit: Commit, until_s: float, *, is_open: bool) -> None:
        self.commit = commit
        self.until_s = until_s
        self.attempt: Future[Positions] = Future()
        #: Held by the thread that uses the producer of an open commit.
        self.lock = threading.Lock()
        self.is_open = is_open
        #: Set when no extension can follow.
        self.whole = threading.Event()
        self.failure: BaseException | None = None


class Committer:
    """Sender of a worker's commits. Only the worker's loop thread calls it.

    Attributes:
        producer: Must have no other user during a commit.
    """

    def __init__(
        self,
        *,
        group_id: str,
        make_producer: ProducerFactory,
        collector: OutputCollector,
        admin: Admin,
        clock: Clock,
        wait: Callable[[float], None],
        on_wait: Callable[[], None] = lambda: None,
        origin_of: Callable[[TopicPartition], RowOrigin | None] = lambda _: None,
    ) -> None:
        self._origin_of = origin_of
        self._group_id = group_id
        self._make_producer = make_producer
        self._collector = collector
        self._admin = admin
        self._clock = clock
        self._wait = wait
        self._on_wait = on_wait
        self._in_flight: _InFlight | None = None
        self.producer: TransactionalProducer = make_producer()

    def use(self, collector: OutputCollector) -> None:
        """Replace the collector when the tasks restart, and abort their open transaction."""
        assert self._in_flight is None, "complete or abandon the commit first"
        self._collector = collector
        self.producer.abort()

    @property
    def state(self) -> CommitState:
        in_flight = self._in_flight
        if in_flight is None:
            return CommitState.NONE
        if in_flight.attempt.done():
            return CommitState.ANSWERED
        if not in_flight.is_open:
            return CommitState.COMMITTING
        return CommitState.OPENING if in_flight.lock.locked() else CommitState.OPEN

    def prepare(
        self, commit: Commit, background: Background = run_now, *, opens: bool = False
    ) -> None:
        """Hand a commit to the client; `background` runs the calls that wait for brokers.

        With `opens`, `extend` may add to it for 0.1 s. Raises `RecordFailedError` (a handler
        answered "fail") or `StreamsError`; then no commit is in progress.
        """
        assert self._in_flight is None, "complete the commit in progress first"
        in_flight = _InFlight(commit, self._clock.monotonic_s() + LIMIT_S, is_open=opens)
        if self._collector.sink_producer is not None:
            commit.meanwhile()
        # Before the transaction: sink retries may outlast its time-out.
        self._flush_sinks(in_flight.until_s)
        try:
            self._produce(commit)
        except (TransactionAbortedError, CommitOutcomeUnknownError) as error:
            in_flight.attempt.set_exception(error)
            in_flight.is_open = False
        else:
            in_flight.attempt = background(partial(self._commit_when_whole, in_flight))
        self._in_flight = in_flight

    def _commit_when_whole(self, in_flight: _InFlight) -> Positions:
        if in_flight.is_open:
            self._await_extension(in_flight)
        with in_flight.lock:
            in_flight.is_open = False
        if in_flight.failure is not None:
            raise in_flight.failure
        return self._commit(in_flight.commit)

    def _await_extension(self, in_flight: _InFlight) -> None:
        """Send the offsets so far, and wait for an extension.

        Its offsets replace these, in a cheaper request: the transaction has registered the group.
        """
        with in_flight.lock:
            if in_flight.is_open:
                try:
                    self.producer.send_offsets(self._group_id, in_flight.commit.offsets)
                    failpoint("after_offsets_ahead")
                except BaseException:
                    in_flight.is_open = False
                    raise
        in_flight.whole.wait(_OPEN_S)

    def extend(self, later: Commit) -> bool:
        """Add work to the open commit, then close it; return False if closed or `OPENING`.

        Raises `FencedError` or `StreamsError`; errors that need a retry surface in `complete`.
        """
        in_flight = self._in_flight
        assert in_flight is not None, "no commit is in progress"
        failpoint("before_extend")
        if not in_flight.lock.acquire(timeout=_SENDING_S):
            return False
        try:
            if not in_flight.is_open:
                return False
            in_flight.is_open = False
            in_flight.commit.add(later)
            try:
                self._produce_records(later)
            except BaseException as error:
                in_flight.failure = error  # any error: half of a commit must not be committed
                if not isinstance(error, TransactionAbortedError | CommitOutcomeUnknownError):
                    raise
            finally:
                in_flight.whole.set()
        finally:
            in_flight.lock.release()
        failpoint("after_extend")
        wait([in_flight.attempt], _SENDING_S)
        return True

    def complete(self) -> Positions:
        """Wait until the commit is durable; return the position of each changelog partition.

        Raises `RecordFailedError` (a handler answered "fail"), `RolledBackError`, `FencedError`
        or `StreamsError`.
        """
        in_flight, self._in_flight = self._in_flight, None
        assert in_flight is not None, "prepare a commit before completing it"
        in_flight.whole.set()
        commit, until_s = in_flight.commit, in_flight.until_s
        attempt: Callable[[], Positions] = partial(self._result_of, in_flight.attempt)
        while True:
            try:
                try:
                    return attempt()
                except TransactionAbortedError as error:
                    self._check_time(until_s, error)
                    self.producer.abort()
                    self._after_abort(commit, error)
            except TransactionAbortedError as error:
                _log.warning("cannot find the refused records, trying again: %s", error)
                self._wait(_PAUSE_S)
            except CommitOutcomeUnknownError as error:
                return self._find_outcome(commit, error, until_s)
            self._flush_sinks(until_s)
            attempt = partial(self._transact, commit)

    def abandon(self, *, find_out: bool) -> Positions | None:
        """Wait for the commit in progress, without a retry; None unless it is durable.

        With `find_out`, an unknown outcome is read from the group, because the tasks restart here.
        Otherwise the next owner reads the committed offsets. Raises `FencedError` or
        `StreamsError`.
        """
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is None:
            return None
        in_flight.whole.set()
        try:
            return self._result_of(in_flight.attempt)
        except TransactionAbortedError as error:
            _log.info("the last commit of the closed tasks was aborted: %s", error)
        except CommitOutcomeUnknownError as error:
            if find_out:
                try:
                    return self._find_outcome(in_flight.commit, error, in_flight.until_s)
                except RolledBackError:
                    _log.debug("the last commit of the closed tasks had not happened")
            else:
                _log.warning("outcome of the last transaction is unknown: %s", error)
        return None

    def _result_of(self, attempt: Future[Positions]) -> Positions:
        for _ in range(round(_STUCK_S / _TICK_S)):
            try:
                return attempt.result(_TICK_S)
            except TimeoutError:
                if attempt.done():
                    return attempt.result()
                self._on_wait()
        raise CommitOutcomeUnknownError(
            f"a commit of {self.producer.transactional_id} is stuck in the client for {_STUCK_S:.0f} s; replacing the producer"
        )

    def _check_time(self, until_s: float, error: TransactionAbortedError) -> None:
        if self._clock.monotonic_s() > until_s:
            raise StreamsError(
                f"a transaction of {self.producer.transactional_id} was aborted repeatedly for "
                f"{LIMIT_S:.0f} s: {error}; check the brokers' health and logs"
            ) from error

    def _transact(self, commit: Commit) -> Positions:
        self._produce(commit)
        return self._commit(commit)

    def _commit(self, commit: Commit) -> Positions:
        """Commit the transaction, with the offsets of several shards' groups."""
        groups = by_group(self._group_id, commit.offsets) or {self._group_id: {}}
        *others, (group_id, offsets) = groups.items()
        for other_id, of_other in others:
            self.producer.send_offsets(other_id, of_other)
        return self.producer.commit(group_id, offsets)

    def _produce(self, commit: Commit) -> None:
        failpoint("before_produce")
        self.producer.begin()
        self._produce_records(commit)
        commit.meanwhile()

    def _produce_records(self, commit: Commit) -> None:
        for columns in commit.outputs:
            if columns.values:
                self.producer.produce(columns)
        for partition, changes in commit.changelogs.items():
            for drained in changes:
                self.producer.produce_changelog(
                    partition.whole,
                    drained.keys,
                    drained.values,
                    drained.timestamps,
                    drained.headers,
                    row_headers=drained.row_headers,
                )

    def _after_abort(self, commit: Commit, error: TransactionAbortedError) -> None:
        """Find refused records, pass them to the handler, and remove those it skips."""
        _log.warning("transaction aborted, sending it again: %s", error)
        self._check_changelogs(commit, error)
        changelogs = _changelogs(commit)
        outputs = [columns for columns in commit.outputs if len(columns)]
        rows = [columns for _, columns in changelogs]
        if error.record_refused:
            self._check_row_sizes(commit, changelogs)
        refused = self.producer.find_refused([*outputs, *rows]) if error.record_refused else []
        if not refused:
            self._wait(_PAUSE_S)
        by_columns: dict[int, list[FailedDelivery]] = {}
        for failure in refused:
            by_columns.setdefault(id(failure.columns), []).append(failure)
        # Outputs staged since `prepare` belong to the next commit.
        with self._collector.apart() as dead_letters:
            for failures in by_columns.values():
                columns = failures[0].columns
                for changelog, of_store in changelogs:
                    if of_store is columns:
                        self._fail_changelog(commit, changelog, failures[0])
                skipped = [failure.index for failure in failures if self._skips(failure)]
                drop(columns, skipped)
            commit.outputs.extend(dead_letters())

    def _check_row_sizes(
        self, commit: Commit, changelogs: list[tuple[TopicPartition, OutputColumns]]
    ) -> None:
        """Raise for a row above its changelog's limit, without a search through all records.

        A row that the client compresses may be accepted all the same, so it is tried alone.
        """
        for changelog, rows in changelogs:
            try:
                oversized = self._collector.find_oversized(rows)
            except StreamsError:
                return  # the limit can't be read now: search all records
            if oversized is None:
                continue
            index, limit = oversized
            for failure in self.producer.find_refused([_single_record(rows, index)]):
                error = RecordTooLargeError(f"{failure.error} (the topic accepts {limit:,} bytes)")
                self._fail_changelog(
                    commit, changelog, msgspec.structs.replace(failure, error=error)
                )

    def _fail_changelog(
        self, commit: Commit, changelog: TopicPartition, failure: FailedDelivery
    ) -> NoReturn:
        """Raise for a refused changelog row: skipped, it would be lost at the next restore."""
        origin = self._origin_of(changelog)
        partitions = [
            partition
            for partition in commit.offsets
            if partition.shard == changelog.shard
            and (
                partition.whole in origin.inputs
                if origin
                else partition.partition == changelog.partition
            )
        ]
        before = self._committed_before(partitions)
        ranges = {
            partition: (before.get(partition, 0), commit.offsets[partition].offset)
            for partition in partitions
            if before.get(partition, 0) < commit.offsets[partition].offset
        }
        raise refused_row(changelog, failure, origin, ranges, self._collector) from failure.error

    def _committed_before(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        try:
            committed = committed_inputs(self._admin, self._group_id, partitions, stable=False)
        except StreamsError:
            return {}
        return {partition: offset.offset for partition, offset in committed.items()}

    def _check_changelogs(self, commit: Commit, error: TransactionAbortedError) -> None:
        """Raise if a changelog is gone: the client only reports a time-out then."""
        topics = sorted({partition.topic for partition in commit.changelogs})
        try:
            missing = set(topics).difference(self._admin.describe_topics(topics))
        except StreamsError:
            return  # checked again at the next retry
        if missing:
            raise StreamsError(
                f"changelog {', '.join(sorted(missing))} does not exist any more, and the worker cannot commit without it: {error}. "
                "Bring the topic back, or run `tidewheel reset` to process the input again"
            ) from error

    def _find_outcome(
        self, commit: Commit, error: CommitOutcomeUnknownError, until_s: float
    ) -> Positions:
        """Read the committed offsets with a new producer, to learn if the transaction committed.

        The old producer is closed: its delayed EndTxn request could end its next transaction.
        """
        _log.warning(
            "outcome of a transaction is unknown (%s); reading it back with a new producer", error
        )
        retired_id, acknowledged = self.producer.transactional_id, self.producer.acknowledged
        self.producer.close()
        self.producer = self._retry_unanswered(self._make_producer, until_s)
        if self.producer.transactional_id != retired_id:
            self._retry_unanswered(lambda: self._admin.fence([retired_id]), until_s)
        if not commit.offsets:
            raise RolledBackError("a transaction without offsets has an unknown outcome") from error
        partitions = list(commit.offsets)
        stored = self._retry_unanswered(
            lambda: committed_inputs(self._admin, self._group_id, partitions, stable=True),
            until_s,
        )
        if any(stored.get(partition) != sent for partition, sent in commit.offsets.items()):
            _log.info("the transaction had not committed; restarting from the committed offsets")
            raise RolledBackError(str(error)) from error
        _log.info("the transaction had committed")
        # Positions of acknowledged records; a log's end may include another worker's records.
        return {
            partition: at
            for partition, at in acknowledged.items()
            if partition in {changelog.whole for changelog in commit.changelogs}
        }

    def _retry_unanswered(self, request: Callable[[], Answer], until_s: float) -> Answer:
        return retry_unanswered(request, clock=self._clock, until_s=until_s, wait=self._wait)

    def _flush_sinks(self, until_s: float) -> None:
        """Wait for all sink records; records that timed out are sent again until `until_s`."""
        sinks = self._collector.sink_producer
        if sinks is None:
            return
        while failures := sinks.flush():
            in_time = self._clock.monotonic_s() <= until_s
            for failure in failures:
                if (failure.retriable and in_time) or not self._skips(failure):
                    sinks.produce(_single_record(failure.columns, failure.index))

    def _skips(self, failure: FailedDelivery) -> bool:
        answer = self._collector.refuse(
            failure.columns, failure.index, failure.error, retriable=failure.retriable
        )
        return answer == "continue"

    def serve(self) -> None:
        """Let idle producers deliver their events; no commit may be in progress."""
        self.producer.serve()
        if self._collector.sink_producer is not None:
            self._collector.sink_producer.serve()

    def close(self) -> None:
        self.producer.close()


def _changelogs(commit: Commit) -> list[tuple[TopicPartition, OutputColumns]]:
    return [
        (
            partition,
            OutputColumns(
                topic=partition.topic,
                partitions=partition.partition,
                keys=drained.keys,
                values=drained.values,
                timestamps=drained.timestamps,
                headers=headers_of_changelog(
                    len(drained.keys), drained.headers, drained.row_headers
                ),
                node=str(partition),
                internal=True,
            ),
        )
        for partition, changes in commit.changelogs.items()
        for drained in changes
    ]


def _single_record(columns: OutputColumns, index: int) -> OutputColumns:
    partitions = columns.partitions
    topic, partition, offset = columns.input_of(index)
    return OutputColumns(
        topic=columns.topic,
        partitions=partitions if isinstance(partitions, int) else [partitions[index]],
        keys=[columns.keys[index]],
        values=[columns.values[index]],
        timestamps=[columns.timestamps[index]],
        headers=None if columns.headers is None else [columns.headers[index]],
        node=columns.node,
        task_id=columns.task_id,
        source_topic=topic,
        source_partition=partition,
        source_offsets=None if offset is None else [offset],
        internal=columns.internal,
        dead_letter=columns.dead_letter,
    )


def changed_offsets(
    before: Mapping[TopicPartition, CommittedOffset], now: Mapping[TopicPartition, CommittedOffset]
) -> dict[TopicPartition, CommittedOffset]:
    return {
        partition: offset for partition, offset in now.items() if before.get(partition) != offset
    }
