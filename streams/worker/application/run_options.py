"""Run options of one worker process."""

from collections.abc import Callable
from dataclasses import dataclass

from tidewheel.rebalance.model import TaskId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options that `tidewheel run` sets for each worker.

    Attributes:
        slot: Numbered part of the state directory; None takes the lowest free one.
        next_free: Take the next free slot if another process holds `slot`.
        on_slot: Called with the number of the slot that the first worker takes.
        known_error: Text of an error that this worker's last process has logged with its trace.
        workers: Workers of this program. With fixed assignment, slot n runs every task whose index
            modulo this is n.
        fixed: Use no group (as `task_assignor="fixed"`).
        tasks: Use no group, and run exactly these tasks; needs `group_instance_id`.
        watchdog_fd: Inherited watchdog socket; None starts a watchdog on demand.
        process_id: Name of the host program in its group.
        wait_for_brokers: Wait without a limit while no broker can be reached at the start.
        create_topics: Create missing source and output topics with the cluster's default partition
            count.
        patience_s: Seconds for each request to a slow cluster; a supervisor starts a worker again
            after the default.
        on_record: Called with (partition, offset) before each record, and (None, -1) after the last;
        set after a worker died without an error, to find the record. None processes batches.

    >>> RunOptions(slot=1, workers=4).wait_for_topics
    False
    """

    slot: int | None = None
    next_free: bool = False
    on_slot: Callable[[int], None] | None = None
    known_error: str | None = None
    workers: int = 1
    fixed: bool = False
    tasks: tuple[TaskId, ...] | None = None
    watchdog_fd: int | None = None
    process_id: str | None = None
    wait_for_topics: bool = False
    create_topics: bool = False
    wait_for_brokers: bool = False
    patience_s: float = 30.0
    on_record: Callable[[TopicPartition | None, int], None] | None = None

    @property
    def uses_no_group(self) -> bool:
        return self.fixed or self.tasks is not None
