"""Result of a batch run: its files, and data frames over them."""

import atexit
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from tidewheel.streams.bulk.batch.executors import (
    OutputRows,
    StageResult,
    StoreRows,
    Work,
    output_serdes,
    store_spec,
)
from tidewheel.streams.bulk.batch.stage_files import STORE, TOPIC
from tidewheel.streams.bulk.columns import columns_of
from tidewheel.streams.errors import ConfigError, StreamsError

if TYPE_CHECKING:
    from tidewheel.state_stores.bulk_restore.spark.job import DataFrame, SparkSession

_TEXT: Final = "string"
_BYTES: Final = "binary"
#: Headers as in frames of Spark's Kafka source.
_HEADERS: Final = "array<struct<key:string,value:binary>>"


class BatchResult:
    """Outputs and stores of a run as data frames; a context manager.

    Closing it deletes the files that the frames read, and stops a session that `run_batch` started.

    Attributes:
        outputs: Frame of each topic that the topology only writes: `key`, `value`, `timestamp`,
            `headers`, `partition` and `offset` (the order within the partition).
        stores: Frame of each store, with the columns of `state_dataframe`.
    """

    def __init__(
        self,
        session: "SparkSession",
        work: Work,
        results: Sequence[StageResult],
        cleanup: contextlib.ExitStack,
    ) -> None:
        self._session = session
        self._work = work
        self._results = sorted(results, key=lambda result: result.task)
        self._cleanup = cleanup
        self._is_closed = False
        # Frames outlive this object, so nothing is deleted before `close` or the program's end.
        atexit.register(self.close)
        job = work.job
        topics = {topic for result in results for topic in result.records}
        topics |= {
            sink.topic
            for planned in job.plan.subtopologies.values()
            for sink in planned.spec.sinks
            if isinstance(sink.topic, str) and not sink.internal
        }
        stores = sorted({store for result in results for store in result.rows})
        self.outputs: Mapping[str, DataFrame] = _Frames(
            sorted(topics - job.batch.written), self.output
        )
        self.stores: Mapping[str, DataFrame] = _Frames(stores, self.store)

    def output(
        self, topic: str, *, key_type: str | None = None, value_type: str | None = None
    ) -> "DataFrame":
        """Return the frame of an output topic, as `outputs[topic]`.

        Args:
            key_type: Spark DDL type of the key column, instead of the inferred one.
            value_type: Same for the value column.

        Raises:
            ConfigError: The topology doesn't write this topic.
        """
        self._check(topic, self.outputs, "output topic")
        inferred = self._types(TOPIC, topic)
        if output_serdes(self._work.job, topic) is None:
            inferred = _BYTES, _BYTES
        rows = OutputRows(
            work=self._work,
            topic=topic,
            key_type=key_type or inferred[0],
            value_type=value_type or inferred[1],
        )
        partitions = sorted(
            {number for result in self._results for name, number in result.blobs if name == topic}
        )
        items = [
            (
                number,
                tuple(result.file for result in self._results if (topic, number) in result.blobs),
            )
            for number in partitions
        ]
        columns = {
            "key": rows.key_type, "value": rows.value_type, "timestamp": "bigint", "headers": _HEADERS,
            "partition": "int", "offset": "bigint",
        }  # fmt: skip
        return self._frame(rows.rows, items, columns)

    def store(
        self, name: str, *, key_type: str | None = None, value_type: str | None = None
    ) -> "DataFrame":
        """Return the frame of a store, as `stores[name]`; see `output`."""
        self._check(name, self.stores, "store")
        inferred = self._types(STORE, name)
        rows = StoreRows(
            work=self._work,
            store=name,
            key_type=key_type or inferred[0],
            value_type=value_type or inferred[1],
        )
        items = [(result.task[1], result.file) for result in self._results if result.rows.get(name)]
        columns = columns_of(store_spec(self._work.job, name), rows.key_type, rows.value_type)
        return self._frame(rows.rows, items, columns)

    def _check(self, name: str, names: Mapping[str, Any], what: str) -> None:
        if self._is_closed:
            raise StreamsError(
                f"the result is closed, so the files of {what} {name} are deleted; use its frames inside the `with` block"
            )
        if name not in names:
            raise ConfigError(
                f"the topology has no {what} {name}; it has {', '.join(names) or 'none'}"
            )

    def _types(self, kind: str, name: str) -> tuple[str, str]:
        types = [
            result.types[kind, name] for result in self._results if (kind, name) in result.types
        ]
        keys = frozenset[str]().union(*(key_types for key_types, _ in types))
        values = frozenset[str]().union(*(value_types for _, value_types in types))
        return _common(keys), _common(values)

    def _frame(
        self,
        rows: Callable[[Any], Iterator[tuple[Any, ...]]],
        items: Sequence[Any],
        columns: Mapping[str, str],
    ) -> "DataFrame":
        from tidewheel.state_stores.bulk_restore.spark.frames import PortableFunction  # noqa: PLC0415 - see bulk_session
        from tidewheel.state_stores.bulk_restore.spark.job import frame_from_executors  # noqa: PLC0415 - likewise

        return frame_from_executors(self._session, PortableFunction(rows), items, columns=columns)

    def close(self) -> None:
        """Delete the files; frames of this result can't be used any more. Idempotent."""
        self._is_closed = True
        atexit.unregister(self.close)
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _common(types: frozenset[str]) -> str:
    """Return the type that all values share, else text."""
    return next(iter(types)) if len(types) == 1 else _TEXT


class _Frames(Mapping[str, "DataFrame"]):
    """Frames by name, made when they are asked for."""

    def __init__(self, names: Sequence[str], frame: Callable[[str], "DataFrame"]) -> None:
        self._names = dict.fromkeys(names)
        self._frame = frame

    def __getitem__(self, name: str) -> "DataFrame":
        if name not in self._names:
            raise KeyError(name)
        return self._frame(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __repr__(self) -> str:
        return f"<frames of {', '.join(self._names) or 'nothing'}>"
