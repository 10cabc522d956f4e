"""What a worker is given: its settings, its clients, and what makes its tasks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from rebalance.model import TaskId, TopicPartition
from rebalance.orders import AnyOrder, AnyReport
from rebalance.task_status import RunningCall
from tasks.active_task import ActiveTask
from tasks.beside import in_a_thread
from tasks.commit_facts import NamedOperator
from tasks.offset_origin import StartRules
from tasks.output_collector import OutputCollector, TopicInfo
from tasks.ports import (
    Admin,
    Beside,
    ChangelogReader,
    Clock,
    ProducerOfId,
    RecordSource,
    SinkProducer,
)
from tasks.processing.error_policy import ErrorHandlers, ErrorPolicy
from tasks.processing.record_batch import SourceRecords
from tasks.run_ports import RunSettings
from tasks.slices import OnRecord
from tasks.state_manager import StateManager

#: Quiet partitions are committed again at least this often: safe at Kafka's default retention of 7 days.
RECOMMIT_MS_MAX: Final = 12 * 3_600_000


def recommit_interval_ms(retention_ms: int) -> int:
    """Return how often quiet partitions are committed again, because brokers forget offsets after their retention (H17).

    A quarter of it, so that three in a row may fail: 7 days / 4 = 42 h, of which the 12 h are less; 1 day / 4 = 6 h.

    >>> [recommit_interval_ms(days * 86_400_000) / 3_600_000 for days in (7, 2, 1)]
    [12.0, 12.0, 6.0]
    """
    return min(retention_ms // 4, RECOMMIT_MS_MAX)


class Membership(Protocol):
    """The worker's line to its member, which lives in the watchdog (`streams/watchdog/link.py`).

    The worker's loop thread calls `take`, `progress` and `lease_left_s`; `say` may be called from any thread. None of them
    waits for anything. Whoever makes it gives it a way to wake the worker when an order comes (`StreamWorker.wake`).
    """

    def take(self) -> list[AnyOrder]:
        """Return the orders that came since the last call, in order. One may come again."""
        ...

    def say(self, report: AnyReport) -> None:
        """Send a report; reports arrive in the order in which they were said."""
        ...

    def progress(self) -> None:
        """Tell that the worker's loop turns; standing still for `worker_hang_timeout_ms` counts as hanging."""
        ...

    def show_call(self, since_ns: int) -> None:
        """Show since when (`time.monotonic_ns`) the loop has been in its present call of user code; 0: it is in none.

        Called by the thread of the call watch, at every look: while it does, `worker_hang_timeout_ms` does not count.
        """
        ...

    def lease_left_s(self) -> float:
        """Return for how long input may still be taken, in seconds; infinite before the first lease, below 0 after one."""
        ...


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the loop needs to know of the application's settings (units as in `StreamsConfig`)."""

    application_id: str
    transactional_id: str
    topology_hash: bytes
    #: Number of other workers of this program. After a change of the number of workers they find our id in the metadata
    #: of partitions that are theirs now, and fence it, so being fenced soon after a start is no takeover.
    siblings: int = 0
    commit_interval_ms: int = 100
    #: How long before it is due a commit begins, where the worker keeps up and results wait for commits; what comes until then
    #: joins it. 0: at its time.
    early_ms: int = 0
    cache_max_bytes: int = 10 * 1024 * 1024
    uncommitted_max_bytes: int = 64 * 1024 * 1024
    buffered_bytes_per_partition: int = 16 * 1024 * 1024
    buffered_records_per_partition: int = 100_000
    max_poll_records: int = 10_000
    repartition_purge_interval_ms: int = 30_000
    auto_offset_reset: str = "earliest"
    accept_offsets: bool = False
    #: Operator of each generated name.
    operators: Mapping[str, NamedOperator] = msgspec.field(default_factory=dict[str, NamedOperator])
    #: How many records a copy may be behind and count as ready.
    acceptable_recovery_lag: int = 10_000
    #: How often the group hears how far all tasks are: about twice per heartbeat.
    status_interval_ms: int = 250
    #: Threads that key ranges run in; with 1 there are none, and the loop's thread does all.
    threads: int = 1
    #: Quiet partitions are committed again this often.
    recommit_ms: int = RECOMMIT_MS_MAX
    #: How long a clean stop waits for calls in hand.
    drain_timeout_ms: int = 25_000
    #: The loop counts as hanging after this without a turn, unless user code runs.
    hang_timeout_ms: int = 30_000
    #: Longest call of user code; 0: no bound.
    max_call_ms: int = 300_000
    handlers: ErrorHandlers = msgspec.field(default_factory=ErrorHandlers)

    @property
    def start_rules(self) -> StartRules:
        """Return the settings that decide where inputs begin."""
        return StartRules(
            group_id=self.application_id,
            auto_offset_reset=self.auto_offset_reset,
            accept_offsets=self.accept_offsets,
            operators=self.operators,
        )


class InputCheck(Protocol):
    """Looks at the first records of some partitions, and finds keys where their partitioner does not put them.

    Attributes:
        waiting: How many records are still to be looked at, per partition.
    """

    waiting: dict[TopicPartition, int]

    def sample(self, records: SourceRecords) -> None:
        """Look at some records of a partition that waits for it."""
        ...

    def findings(self, topics: Iterable[str]) -> str:
        """Return what is wrong with some topics, empty if nothing was found."""
        ...


def _no_call() -> RunningCall | None:
    return None


class WorkerPorts(msgspec.Struct, frozen=True, kw_only=True):
    """The clients of one worker, made by the adapters; the worker closes what it made."""

    make_source: Callable[[], RecordSource]
    #: For single records that were consumed before.
    make_input_reader: Callable[[], RecordSource]
    #: Given the transactional id.
    make_producer: ProducerOfId
    #: None in exactly_once.
    make_sink_producer: Callable[[], SinkProducer] | None
    make_reader: Callable[[], ChangelogReader]
    admin: Admin
    topics: TopicInfo
    clock: Clock
    #: None reads everything in the worker.
    runs: RunSettings | None = None
    #: Told before each record which it is, for a while; None goes in batches (`tasks.slices`).
    on_record: OnRecord | None = None
    #: Samples keys of inputs that are joined.
    input_check: InputCheck | None = None
    #: Who waits for the brokers of a commit while the loop goes on.
    beside: Beside = in_a_thread
    #: Returns the long call of user code that the global stores are in.
    global_call: Callable[[], RunningCall | None] = _no_call


class MakeTask(Protocol):
    """Makes the tasks of an application."""

    def __call__(
        self,
        task_id: TaskId,
        collector: OutputCollector,
        policy: ErrorPolicy,
        stores: StateManager | None = None,
        /,
    ) -> ActiveTask:
        """Return a task of the plan, created; it takes over open `stores`, if some are given."""
        ...
