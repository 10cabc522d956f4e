"""Settings of a worker's loop, and the port that checks its inputs."""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.tasks.commit_facts import NamedOperator
from tidewheel.tasks.processing.engine.error_policy import ErrorHandlers
from tidewheel.tasks.processing.engine.record_batch import SourceRecords

#: Maximum ms between commits of unchanged offsets; Kafka keeps them 7 days by default.
RECOMMIT_MS_MAX: Final = 12 * 3_600_000


def recommit_interval_ms(retention_ms: int) -> int:
    """Return the ms between commits of unchanged offsets: brokers delete old ones.

    A quarter of the retention, because three commits in a row may fail; at most 12 h.

    >>> [recommit_interval_ms(days * 86_400_000) / 3_600_000 for days in (7, 2, 1)]
    [12.0, 12.0, 6.0]
    """
    return min(retention_ms // 4, RECOMMIT_MS_MAX)


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the loop. Those with the name of an option have its value."""

    application_id: str
    transactional_id: str
    topology_hash: bytes
    #: Number of other workers of this program; 0 in a group. One that starts with tasks of our
    #: earlier commits fences our transactional id: soon after a start, we restart and do not end.
    siblings: int = 0
    commit_interval_ms: int
    #: Ms before its deadline at which a commit starts while the worker keeps up with its input;
    #: later records still join it. 0: no early start.
    early_ms: int = 0
    statestore_cache_max_bytes: int
    statestore_uncommitted_max_bytes: int
    buffered_bytes_per_partition: int
    buffered_records_per_partition: int
    max_poll_records: int
    repartition_purge_interval_ms: int
    auto_offset_reset: str
    accept_offsets: bool
    operators: Mapping[str, NamedOperator] = msgspec.field(default_factory=dict[str, NamedOperator])
    #: Maximum lag, in records, of a copy that counts as ready to own its task.
    acceptable_recovery_lag: int
    #: Ms between progress reports to the group: about two per heartbeat.
    status_interval_ms: int = 250
    #: Threads of key ranges; 1: the loop's thread does all work.
    threads: int = 1
    max_calls_in_flight: int = 0
    recommit_ms: int = RECOMMIT_MS_MAX
    #: Longest wait (ms) of a clean stop for running calls of user code.
    drain_timeout_ms: int
    #: A loop without a round for this long (ms) counts as hanging, unless user code runs.
    worker_hang_timeout_ms: int
    #: Longest call of user code (ms); 0: no limit. A longer one is logged as an error. If it blocks
    #: the worker's loop, the group moves the worker's tasks.
    max_call_ms: int
    handlers: ErrorHandlers = msgspec.field(default_factory=ErrorHandlers)


class InputCheck(Protocol):
    """Check that the first records of joined inputs are in the partition of their key.

    Attributes:
        waiting: Number of records still to check, per partition.
    """

    waiting: dict[TopicPartition, int]

    def sample(self, records: SourceRecords) -> None: ...

    def findings(self, topics: Iterable[str]) -> str:
        """Return the misplaced keys found in topics, as text; empty if none."""
