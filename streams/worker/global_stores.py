"""Global stores of a process: restored before any task runs."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.state_stores.ports import Database
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.worker.application.task_factory import make_global_stores
from tidewheel.tasks.calls.call_watch import Limits
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.ports import Admin, ChangelogReader, Clock
from tidewheel.tasks.restore.global_stores import GlobalStores
from tidewheel.tasks.restore.global_updater import GlobalUpdater
from tidewheel.tasks.restore.state_updater import RestoreEvent


class RunningGlobalStores:
    """Global stores of a process; after `restore` they follow their topics."""

    def __init__(
        self,
        plan: ApplicationPlan,
        config: StreamsConfig,
        slot: StateDirectory,
        *,
        open_database: Callable[[Path, list[str]], Database],
        make_reader: Callable[[], ChangelogReader],
        admin: Admin,
        clock: Clock,
        on_event: Callable[[RestoreEvent], None],
    ) -> None:
        self.stores: GlobalStores = make_global_stores(
            plan,
            config,
            directory=slot.global_directory,
            open_database=open_database,
            now_ms=clock.now_ms,
        )
        self._updater = GlobalUpdater(
            self.stores,
            admin=admin,
            make_reader=make_reader,
            clock=clock,
            wipe=slot.remove_global_directory,
            on_event=on_event,
            limits=Limits.of(config.worker_hang_timeout_ms, config.max_call_ms),
        )

    @property
    def call(self) -> RunningCall | None:
        watch = self._updater.watch
        return None if watch is None else watch.call

    def restore(self, stack: ExitStack, stopped: threading.Event) -> bool:
        """Restore all stores, then update them until `stack` closes; False if stopped before."""
        stack.callback(self._updater.close)
        self._updater.start()
        return self._updater.wait(stopped)

    def check(self) -> None:
        self._updater.check()

    def metrics(self) -> dict[str, float]:
        remaining = float(self._updater.remaining_records)
        call = self.call
        return self.stores.figures() | {
            "restore-remaining-records-total": remaining,
            "longest-call-ms": 0.0 if call is None else float(call.ms),
        }
