"""A bulk job's driver that does the executors' work in this process."""

from collections.abc import Callable, Sequence
from typing import Any, Self

from tidewheel import StreamsConfig
from tidewheel.streams.bulk.driver import BulkDriver
from tidewheel.streams.bulk.executors import Counted, ExecutorWork
from tidewheel.streams.kafka.portable_settings import Keeper, clients_of, settings_of


class InlineDriver(BulkDriver):
    def run(
        self,
        function: Callable[[ExecutorWork, Any, Counted], Any],
        work: ExecutorWork,
        items: Sequence[Any],
        *,
        step: str,
        total: int,
    ) -> list[Any]:
        return [function(work, item, lambda _: None) for item in items]

    @property
    def runs_here(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.keeper.close()
        self.admin.close()


def inline_driver(config: StreamsConfig, admin: Any = None) -> InlineDriver:
    """Return a driver without Spark, and without a cluster if it is given an admin."""
    settings = settings_of(config)
    return InlineDriver(
        config=config,
        session=None,  # type: ignore[arg-type] # nobody asks for it
        admin=clients_of(settings).admin() if admin is None else admin,
        executor_settings=settings,
        keeper=Keeper(same_machine=True),
        on_progress=None,
    )
