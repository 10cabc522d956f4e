"""In-process `RunMaker`: the helper's code over a `FakeBroker`, with faults set by tests."""

import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path

from tests.fakes.broker import FakeBroker
from tests.fakes.clients import FakeChangelogReader
from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import StoreSnapshot
from tidewheel.streams.processes.restore_helper.helper_messages import (
    Progressed,
    Report,
    SnapshotFound,
)
from tidewheel.streams.processes.restore_helper.helper_pool import message_of, report_of
from tidewheel.streams.processes.restore_helper.run_making import RestoreHelper
from tidewheel.tasks.kafka.ports import Clock
from tidewheel.tasks.restore.run_ports import RunOrder, RunReport, RunsFailed


class LocalRunMaker:
    """Executes an order before `make` returns.

    Attributes:
        orders: All orders so far.
        open: Orders not yet forgotten.
        deaths: Number of next orders whose helper is dead.
        held: If a list, orders wait in it until the test calls `carry_out`.
    """

    def __init__(
        self,
        broker: FakeBroker,
        clock: Clock,
        application_id: str,
        location: Path | None = None,
        run_bytes: int = 1 << 20,
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._application_id = application_id
        self._location = location
        self._run_bytes = run_bytes
        self._numbers = count(1)
        self.orders: list[RunOrder] = []
        self.open: list[RunOrder] = []
        self.deaths = 0
        self.held: list[tuple[RunOrder, Callable[[RunReport], None]]] | None = None

    @property
    def has_snapshots(self) -> bool:
        return self._location is not None

    def find_snapshot(
        self, store: str, topic_id: bytes, found: Callable[[StoreSnapshot | None], None]
    ) -> None:
        found(SnapshotLocation(str(self._location)).newest(self._application_id, store, topic_id))

    def make(self, order: RunOrder, tell: Callable[[RunReport], None]) -> None:
        self.orders.append(order)
        self.open.append(order)
        if self.held is not None:
            self.held.append((order, tell))
        else:
            self.carry_out(order, tell)

    def carry_out(self, order: RunOrder, tell: Callable[[RunReport], None]) -> None:
        if self.deaths:
            self.deaths -= 1
            tell(RunsFailed(reason="the test has killed the helper"))
            return
        said: list[Report] = []
        helper = RestoreHelper(
            self._application_id,
            make_reader=lambda: FakeChangelogReader(self._broker),
            location=lambda: SnapshotLocation(str(self._location)),
            send=said.append,
            clock=self._clock,
            run_bytes=self._run_bytes,
        )
        helper.accept(message_of(next(self._numbers), order))
        while not helper.is_idle:
            helper.step()
        helper.close()
        for report in said:
            assert not isinstance(report, SnapshotFound)
            if not isinstance(report, Progressed):
                tell(report_of(report))

    def forget(self, order: RunOrder) -> None:
        self.open = [each for each in self.open if each is not order]
        if self.held is not None:
            self.held = [each for each in self.held if each[0] is not order]
        shutil.rmtree(order.directory, ignore_errors=True)
