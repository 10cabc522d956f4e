"""What can be asked of the stores of a process, over all its threads."""

from collections.abc import Callable, Sequence
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
from tidewheel.tasks.internal_topics import changelog_topic
from tidewheel.tasks.task.lifecycle import TaskState


def store_view(
    application: Application,
    threads: Callable[[], Sequence[StreamThread]],
    name: str,
    *,
    stale: bool,
    with_headers: bool = False,
    level: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> Any:
    """Return a read-only view of a store over the tasks that are here, also over those that come later.

    Args:
        application: What runs.
        threads: The workers of the process, as they are at each reading.
        name: The store.
        stale: Also read copies (standbys and learners), which are a little behind.
        with_headers: Whether values come with the headers of their records.
        level: Whether uncommitted rows of running tasks are read, too. A global store has none.

    Raises:
        InvalidStateStoreError: There is no such store, it keeps no headers, or it is a global one that is not open yet.
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
    (store,) = (each for each in subtopology.stores if each.name == name)
    topic = changelog_topic(application.config.application_id, name)
    timeout_s: float = application.config.interactive_query_timeout_ms / 1000
    asked_s = timeout_s if level is IsolationLevel.READ_UNCOMMITTED else None
    sources = partial(_sources, threads, subtopology.id, store, stale=stale, asked_s=asked_s)
    return make_query_store(store, topic, sources, with_headers=with_headers)


def _sources(
    threads: Callable[[], Sequence[StreamThread]],
    subtopology: int,
    store: StoreSpec,
    *,
    stale: bool,
    asked_s: float | None,
) -> list[QuerySource]:
    """Return what to read: the stores of running tasks, and of copies of others if they may be stale.

    `asked_s`: how long running tasks may take to answer what they have not committed; None: they are not asked.
    """
    name = store.name
    found: dict[TaskId, QuerySource] = {}
    workers = [thread.worker for thread in threads() if thread.worker is not None]
    for worker in workers:
        for task_id, task in list(worker.tasks.items()):
            if task_id.subtopology == subtopology and task.state is TaskState.RUNNING:
                with suppress(KeyError):  # it is being closed just now
                    database = task.stores.database(name)
                    if asked_s is None:
                        found[task_id] = ReadCommitted(database, store)
                    else:
                        ask = partial(worker.questions.ask, task_id, name, asked_s)
                        found[task_id] = ReadUncommitted(database, name, ask)
    for worker in workers if stale else ():
        for task_id, copy in list(worker.copies.items()):
            if task_id.subtopology == subtopology and task_id not in found:
                with suppress(KeyError):  # not open yet, or being closed
                    found[task_id] = ReadCommitted(copy.task.stores.database(name), store)
    if not found:
        raise not_running(name)
    return [found[task_id] for task_id in sorted(found)]


def store_lags(threads: Sequence[StreamThread]) -> dict[str, dict[int, int]]:
    """Return by store and partition how many changelog offsets what is here is behind, as far as that is known.

    0 for tasks that run; tasks that restore are left out until they run.
    """
    lags: dict[str, dict[int, int]] = {}
    for worker in [thread.worker for thread in threads if thread.worker is not None]:
        for task_id, copy in list(worker.copies.items()):
            progress = copy.progress
            for partition, store in {
                **copy.task.stores.changelogs,
                **copy.task.source_restores.stores,
            }.items():
                end = None if progress is None else progress.ends.get(partition)
                if progress is not None and end is not None:
                    behind = max(end - progress.positions.get(partition, 0), 0)
                    lags.setdefault(store, {})[task_id.partition] = behind
    for worker in [thread.worker for thread in threads if thread.worker is not None]:
        for task_id, task in list(worker.tasks.items()):
            if task.state is TaskState.RUNNING:
                for store in task.stores.specs:
                    lags.setdefault(store, {})[task_id.partition] = 0
    return {store: dict(sorted(each.items())) for store, each in sorted(lags.items())}
