"""The committer of a worker: made for each start of the tasks, or once in a group's incarnation."""

import threading
from collections.abc import Callable
from contextlib import ExitStack

from tidewheel.rebalance.protocol.orders import AnyOrder
from tidewheel.tasks.commit.committer import Committer
from tidewheel.tasks.commit.output_collector import OutputCollector
from tidewheel.tasks.commit.refused_rows import origin_of
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.ports import ProducerFactory, TransactionalProducer
from tidewheel.tasks.loop.group_producers import GroupProducers, started
from tidewheel.tasks.loop.worker_ports import Membership, WorkerPorts
from tidewheel.tasks.task.worker_settings import WorkerSettings


class WorkerCommitter:
    """Owner of a worker's committer; makes the first producer unless `first_producer` is given."""

    def __init__(
        self,
        settings: WorkerSettings,
        ports: WorkerPorts,
        plan: Callable[[], ApplicationPlan],
        membership: Membership | None,
        first_producer: TransactionalProducer | None,
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._plan = plan
        self._membership = membership
        self._first_producer = first_producer
        self._producers: GroupProducers | None = None
        #: Committer of a group member, used for all starts of its tasks.
        self._committer: Committer | None = None

    def serve(self, collector: OutputCollector, stack: ExitStack) -> Committer:
        """Return a committer for tasks that start; under fixed assignment `stack` closes it."""
        if self._committer is not None:
            self._committer.use(collector)
            return self._committer
        committer = self._make(collector)
        if self._membership is None:
            stack.callback(committer.close)
        else:
            self._committer = committer
        return committer

    def _make(self, collector: OutputCollector) -> Committer:
        membership, application_id = self._membership, self._settings.application_id
        return Committer(
            group_id=application_id,
            make_producer=self._producer_factory(),
            collector=collector,
            admin=self._ports.admin,
            clock=self._ports.clock,
            wait=_wait,
            on_wait=(lambda: None) if membership is None else membership.progress,
            origin_of=lambda changelog: origin_of(self._plan(), application_id, changelog),
        )

    def _producer_factory(self) -> ProducerFactory:
        first_id = self._settings.transactional_id
        if self._membership is None:
            return lambda: started(self._ports.make_producer(first_id))
        self._producers = GroupProducers(
            self._membership,
            self._ports.make_producer,
            first_id,
            self._ports.clock,
            _wait,
            self._first_producer,
        )
        return self._producers

    def pop_early_orders(self) -> list[AnyOrder]:
        """Remove and return the orders that came while a producer waited for its id."""
        if self._producers is None:
            return []
        orders, self._producers.early = self._producers.early, []
        return orders

    def close(self) -> None:
        if self._committer is not None:
            self._committer.close()


def _wait(seconds: float) -> None:
    # Not on the worker's stop event: it is set during the last commit, and the wait would spin.
    threading.Event().wait(seconds)
