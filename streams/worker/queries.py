"""Interactive queries over the stores of a process."""

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from tidewheel.rebalance.model import TaskId
from tidewheel.state_stores.buffers.query_sources import (
    QuerySource,
    ReadCommitted,
    ReadUncommitted,
    not_running,
)
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.state_stores.stores.factory import make_query_store
from tidewheel.streams.definitions.isolation_level import IsolationLevel
from tidewheel.streams.errors import InvalidStateStoreError
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.stream_thread import StreamThread
from tidewheel.tasks.kafka.internal_topics import changelog_topic
from tidewheel.tasks.task.lifecycle import TaskState


def store_view(
    application: Application,
    threads: Callable[[], Sequence[StreamThread]],
    name: str,
    *,
    stale: bool,
    with_headers: bool = False,
    level: IsolationLevel = IsolationLevel.READ_COMMITTED,
    tasks: Container[TaskId] | None = None,
) -> Any:
    """Return a read-only view of a store over present and future tasks of this process.

    Args:
        stale: Also read standbys and learners, which lag.
        level: READ_UNCOMMITTED also reads uncommitted rows of running tasks.
        tasks: Read only these tasks.

    Raises:
        InvalidStateStoreError: The store does not exist, keeps no headers, or is a global store that
            is not open yet.
    """
    subtopology = application.spec.place_of(name)
    if subtopology is None:
        if with_headers:
            raise InvalidStateStoreError(
                f"global store {name} keeps no headers; query it without them"
            )
        for thread in threads():
            if thread.life is not None and thread.life.globals is not None:
                return thread.life.globals.stores.views[name]
        raise InvalidStateStoreError(
            f"global store {name} is not open yet; wait until the application is RUNNING"
        )
    (store,) = (spec for spec in subtopology.stores if spec.name == name)
    topic = changelog_topic(application.config.application_id, name)
    timeout_s: float = application.config.interactive_query_timeout_ms / 1000
    ask_timeout_s = timeout_s if level is IsolationLevel.READ_UNCOMMITTED else None
    sources = partial(
        _sources,
        threads,
        subtopology.id,
        store,
        stale=stale,
        ask_timeout_s=ask_timeout_s,
        tasks=tasks,
    )
    return make_query_store(store, topic, sources, with_headers=with_headers)


def _sources(
    threads: Callable[[], Sequence[StreamThread]],
    subtopology: int,
    store: StoreSpec,
    *,
    stale: bool,
    ask_timeout_s: float | None,
    tasks: Container[TaskId] | None = None,
) -> list[QuerySource]:
    """Return the stores of running tasks and, if `stale`, of standbys and learners.

    `ask_timeout_s`: time for a task to answer with uncommitted rows; None reads committed rows.
    """
    name = store.name

    def is_asked(task_id: TaskId) -> bool:
        is_chosen = tasks is None or task_id in tasks
        return is_chosen and task_id.subtopology == subtopology

    sources: dict[TaskId, QuerySource] = {}
    workers = [thread.worker for thread in threads() if thread.worker is not None]
    for worker in workers:
        for task_id, task in list(worker.tasks.items()):
            if is_asked(task_id) and task.life.cycle.state is TaskState.RUNNING:
                with suppress(KeyError):  # being closed
                    database = task.stores.database(name)
                    if ask_timeout_s is None:
                        sources[task_id] = ReadCommitted(database, store)
                    else:
                        ask = partial(worker.questions.ask, task_id, name, ask_timeout_s)
                        sources[task_id] = ReadUncommitted(database, name, ask)
    for worker in workers if stale else ():
        for task_id, copy in list(worker.copies.items()):
            if is_asked(task_id) and task_id not in sources:
                with suppress(KeyError):  # not open yet, or being closed
                    sources[task_id] = ReadCommitted(copy.task.stores.database(name), store)
    if not sources:
        raise not_running(name)
    return [sources[task_id] for task_id in sorted(sources)]


def store_lags(threads: Sequence[StreamThread]) -> dict[str, dict[int, int]]:
    """Return known lags (changelog offsets) by store and partition, except of restoring tasks.

    Of several shards of a partition, the one furthest behind counts.
    """
    by_task: dict[tuple[str, TaskId], int] = {}
    for worker in [thread.worker for thread in threads if thread.worker is not None]:
        for task_id, copy in list(worker.copies.items()):
            progress = copy.progress
            for partition, store in {
                **copy.task.stores.changelogs,
                **copy.task.life.source_stores,
            }.items():
                end = None if progress is None else progress.ends.get(partition)
                if progress is not None and end is not None:
                    behind = max(end - progress.positions.get(partition, 0), 0)
                    by_task[store, task_id] = behind
    for worker in [thread.worker for thread in threads if thread.worker is not None]:
        for task_id, task in list(worker.tasks.items()):
            if task.life.cycle.state is TaskState.RUNNING:
                for store in task.stores.specs:
                    by_task[store, task_id] = 0
    lags: dict[str, dict[int, int]] = {}
    for (store, task_id), behind in by_task.items():
        by_partition = lags.setdefault(store, {})
        by_partition[task_id.partition] = max(behind, by_partition.get(task_id.partition, 0))
    return {
        store: dict(sorted(by_partition.items())) for store, by_partition in sorted(lags.items())
    }
