"""Orders of the group: received between slices, and answered with the worker's status."""

from collections.abc import Callable

from tidewheel.rebalance.protocol.orders import AnyOrder, EndIncarnation, MayClose, WorkerStatus
from tidewheel.tasks.kafka.ports import Clock
from tidewheel.tasks.loop.group_producers import ended
from tidewheel.tasks.loop.metrics import ProcessingRates, WorkerMetrics
from tidewheel.tasks.loop.task_manager import TaskManager
from tidewheel.tasks.loop.worker_ports import Membership


class GroupOrders:
    def __init__(
        self,
        membership: Membership | None,
        *,
        early_orders: Callable[[], list[AnyOrder]],
        stop: Callable[[], None],
        status_interval_ms: int,
        metrics: WorkerMetrics,
        clock: Clock,
    ) -> None:
        self.membership = membership
        self._early_orders = early_orders
        self._stop = stop
        self._status_interval_s = status_interval_ms / 1000
        self._next_status_s = 0.0
        self._metrics = metrics
        self._rates = ProcessingRates()
        self._clock = clock

    @property
    def may_process(self) -> bool:
        """Return True if input may be processed: without a lease, others may own the tasks."""
        return self.membership is None or self.membership.lease_left_s() > 0

    def show_progress(self) -> None:
        if self.membership is not None:
            self.membership.progress()

    def serve(self, manager: TaskManager) -> None:
        """Carry out the group's orders, and report the worker's status when it is due."""
        membership = self.membership
        if membership is None:
            return
        membership.progress()
        orders = [*self._early_orders(), *membership.receive_orders()]
        for order in orders:
            if isinstance(order, EndIncarnation):
                raise ended(order)
            if isinstance(order, MayClose):
                self._stop()
        if orders:
            manager.carry_out(orders)
        now_s = self._clock.monotonic_s()
        manager.settle(now_s)
        if now_s >= self._next_status_s:
            self._next_status_s = now_s + self._status_interval_s
            rates = self._rates.of(manager.running, now_s)
            membership.send(WorkerStatus(tasks=manager.status(self._metrics.lags, rates)))
