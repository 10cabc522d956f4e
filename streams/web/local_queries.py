"""Queries of the stores of this process."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from tidewheel.rebalance.model import TaskId, TopicPartition
from tidewheel.state_stores.spec import StoreSpec
from tidewheel.streams.definitions.isolation_level import checked_isolation_level
from tidewheel.streams.errors import InvalidStateStoreError, StreamsError
from tidewheel.streams.group.discovery import partitioner_of
from tidewheel.streams.serdes.partitioning import KEY_PARTITIONERS
from tidewheel.streams.web.query_place import QueryPlace, place_text
from tidewheel.streams.web.query_request import Arguments, QueryRequest, Shape
from tidewheel.streams.web.query_text import BadQueryError, encoded, key_of, row_of
from tidewheel.streams.worker.figures import position_of
from tidewheel.streams.worker.process_view import ProcessView
from tidewheel.streams.worker.queries import store_view
from tidewheel.tasks.kafka.internal_topics import SubtopologyPlan, changelog_topic
from tidewheel.tasks.key_ranges.key_ranges import shard_of
from tidewheel.tasks.loop.stream_worker import StreamWorker
from tidewheel.tasks.processing.api.topology_spec import SubtopologySpec
from tidewheel.tasks.task.lifecycle import TaskState

#: Seconds between checks of a position that is waited for.
_POSITION_S: Final = 0.02
#: Rows between checks of the time.
_ROWS_PER_CHECK: Final = 64


class UnknownStoreError(InvalidStateStoreError):
    """The topology has no such store."""


class Answer(msgspec.Struct, kw_only=True):
    """Rows (in JSON), and the process that answered, by partition or shard ("3/1of4"). A global store has the partition "global".

    Attributes:
        truncated: The limit that ended the rows early: "rows", "bytes" or "time"; else None.
    """

    rows: list[bytes] = msgspec.field(default_factory=list[bytes])
    partitions: dict[str, QueryPlace] = msgspec.field(default_factory=dict[str, QueryPlace])
    truncated: str | None = None
    size_bytes: int = 0


class QueriedStore:
    """A store of the topology, and its tasks here."""

    def __init__(self, view: ProcessView, name: str) -> None:
        self.name = name
        self._view = view
        spec = view.application.spec
        try:
            #: None for a global store.
            self.subtopology: SubtopologySpec | None = spec.place_of(name)
        except InvalidStateStoreError as error:
            raise UnknownStoreError(str(error)) from error
        stores: Iterable[StoreSpec] = (
            (entry.store for entry in spec.global_stores)
            if self.subtopology is None
            else self.subtopology.stores
        )
        self.spec = next(store for store in stores if store.name == name)
        self.topic = changelog_topic(view.config.application_id, name)

    @property
    def partitions(self) -> range:
        return range(self._plan.partitions)

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return self._plan.tasks

    @property
    def _plan(self) -> SubtopologyPlan:
        """Return the plan of a worker."""
        assert self.subtopology is not None
        for worker in self._workers():
            plan = worker.plan.subtopologies.get(self.subtopology.id)
            if plan is not None:
                return plan
        raise self._not_started()

    def _not_started(self) -> InvalidStateStoreError:
        return InvalidStateStoreError(
            f"store {self.name}: this process has no worker yet, or has stopped; ask again"
        )

    def key(self, text: str) -> Any:
        return key_of(self.spec.key_serde, self.topic, text)

    def tasks_of(self, key: Any) -> list[TaskId]:
        """Return the tasks that may have a key: one, or more if its partition is not known."""
        partitions, plan = self.partitions_of(key), self._plan
        data: bytes = self.spec.key_serde.serialize(self.topic, key) or b""
        shard = shard_of(data, plan.shards)
        return [
            task for number in partitions for task in plan.tasks_of(number) if task.shard == shard
        ]

    def partitions_of(self, key: Any) -> list[int]:
        """Return the partition of a key; all of them if its input's partitioner is not known."""
        assert self.subtopology is not None
        count = len(self.partitions)
        names = {
            self._view.config.input_partitioners.get(topic, "murmur2")
            for source in self.subtopology.sources
            for topic in source.topics
        }
        if len(names) > 1 or not names <= KEY_PARTITIONERS.keys():
            return list(range(count))
        if names == {"murmur2"}:
            chosen = partitioner_of(self.spec.key_serde)(self.topic, key, None, count)
            return [chosen] if isinstance(chosen, int) else list(range(count))
        data = self.spec.key_serde.serialize(self.topic, key)
        return [KEY_PARTITIONERS[names.pop()](data or b"", count)]

    def roles(self, *, stale: bool, max_lag: int | None) -> dict[TaskId, QueryPlace]:
        """Return the tasks that this process can answer for, with their present state."""
        assert self.subtopology is not None
        found: dict[TaskId, QueryPlace] = {}
        for worker in self._workers():
            for copy in list(worker.copies.values()) if stale else ():
                lag = copy.status().lag
                is_near = lag >= 0 and (max_lag is None or lag <= max_lag)
                if copy.task_id.subtopology == self.subtopology.id and is_near:
                    found.setdefault(
                        copy.task_id,
                        QueryPlace(role=copy.role, lag=lag, position=None, server=self._here),
                    )
        for worker, task_id in self._running():
            position = {str(at): offset for at, offset in position_of(worker, task_id).items()}
            found[task_id] = QueryPlace(
                role="active", lag=0, position=dict(sorted(position.items())), server=self._here
            )
        return found

    def check_position(self, position: Mapping[TopicPartition, int]) -> None:
        """Raise `BadQueryError` for a partition that no task of the store reads."""
        if not position:
            return
        if self.subtopology is None:
            raise BadQueryError(
                f"store {self.name} is global, and such stores have no position; leave min_position out"
            )
        inputs = self._input_topics()
        for topic, partition in sorted(position):
            if topic not in inputs:
                raise BadQueryError(self._not_an_input(topic, inputs))
            if partition >= inputs[topic]:
                raise BadQueryError(
                    f"min_position: topic {topic} has the partitions 0 to {inputs[topic] - 1}, and no {partition}"
                )

    def _not_an_input(self, topic: str, inputs: Mapping[str, int]) -> str:
        others = {
            name
            for worker in self._workers()
            for plan in worker.plan.subtopologies.values()
            for name in plan.topic_partitions
        }
        reason = (
            f"the tasks of store {self.name} read {topic} only by way of other topics"
            if topic in others
            else f"the tasks of store {self.name} do not read a topic {topic}"
        )
        return f"min_position: {reason}; give offsets of {' or '.join(sorted(inputs))}"

    def read(self, request: QueryRequest, tasks: Sequence[TaskId]) -> Answer:
        """Read these tasks, which `roles` has.

        Raises:
            InvalidStateStoreError: A task has moved or is behind.
            BadQueryError: A parameter is wrong for the store.
        """
        shape = request.shape_for(self.spec.kind)
        arguments = self.arguments(request, shape)
        answer = Answer()
        if self.subtopology is None:
            store = store_view(self._view.application, self._view.threads, self.name, stale=False)
            answer.partitions["global"] = QueryPlace(
                role="global", lag=0, position=None, server=self._here
            )
            self._take(request, shape.read(store, arguments), {}, answer)
            return answer
        for task in tasks:
            served = self._wait_for(request, task)
            answer.partitions[place_text(task)] = served
            store = store_view(
                self._view.application,
                self._view.threads,
                self.name,
                stale=request.is_stale,
                level=request.level or self._default_level,
                tasks=(task,),
            )
            if answer.truncated is None:
                rows = shape.read(store, arguments)
                self._take(request, rows, {"partition": task.partition}, answer)
        return answer

    def arguments(self, request: QueryRequest, shape: Shape) -> Arguments:
        keys = {
            name: self._key(name, text)
            for name, text in request.texts.items()
            if name in shape.keys
        }
        return Arguments(keys=keys, times=request.times(shape), reverse=request.reverse)

    def _key(self, name: str, text: str) -> Any:
        if name == "prefix" and getattr(self.spec.key_serde, "name", "") not in ("string", "bytes"):
            raise BadQueryError(
                f"store {self.name}: only keys that are text or bytes have prefixes; use range"
            )
        return self.key(text)

    def _take(
        self,
        request: QueryRequest,
        rows: Iterator[tuple[Any, Any]],
        place: dict[str, Any],
        answer: Answer,
    ) -> None:
        for number, (key, value) in enumerate(rows):
            if number and number % _ROWS_PER_CHECK == 0 and not request.left_s:
                answer.truncated = "time"
                return
            if len(answer.rows) >= request.rows_max:
                answer.truncated = "rows"
                return
            row = self._encoded(row_of(key, value) | place)
            answer.size_bytes += len(row) + 1
            if answer.size_bytes > request.bytes_max:
                answer.truncated = "bytes"
                return
            answer.rows.append(row)

    def _encoded(self, row: Mapping[str, Any]) -> bytes:
        try:
            return encoded(row)
        except TypeError as error:
            raise StreamsError(
                f"store {self.name}: a row has no form in JSON ({error}); give the store a serde of plain values, or read it "
                "with KafkaStreams.store"
            ) from error

    def _wait_for(self, request: QueryRequest, task: TaskId) -> QueryPlace:
        """Return the state of a task once it includes the query's position."""
        while True:
            served = self.roles(stale=request.is_stale, max_lag=request.max_lag).get(task)
            if served is None:
                raise InvalidStateStoreError(
                    f"store {self.name}: the task of partition {place_text(task)} is not running here; ask again"
                )
            if self._includes(served, task.partition, request.min_position):
                return served
            if not request.left_s:
                raise InvalidStateStoreError(
                    f"store {self.name}: partition {place_text(task)} does not include min_position yet; ask again"
                )
            time.sleep(min(_POSITION_S, request.left_s))

    def _includes(
        self, served: QueryPlace, partition: int, position: Mapping[TopicPartition, int]
    ) -> bool:
        asked = {at: offset for at, offset in position.items() if at.partition == partition}
        if served.position is None:
            return not asked
        return all(served.position.get(str(at), 0) >= offset for at, offset in asked.items())

    def _input_topics(self) -> Mapping[str, int]:
        """Return the topics that the store's tasks read, with their numbers of partitions."""
        return self._plan.topic_partitions

    def _running(self) -> Iterator[tuple[StreamWorker, TaskId]]:
        assert self.subtopology is not None
        for worker in self._workers():
            for task_id, task in list(worker.tasks.items()):
                is_running = task.life.cycle.state is TaskState.RUNNING
                if task_id.subtopology == self.subtopology.id and is_running:
                    yield worker, task_id

    def _workers(self) -> list[StreamWorker]:
        return [thread.worker for thread in self._view.threads() if thread.worker is not None]

    @property
    def _here(self) -> str | None:
        return self._view.application.endpoint

    @property
    def _default_level(self) -> Any:
        return checked_isolation_level(self._view.config.default_interactive_query_isolation_level)
