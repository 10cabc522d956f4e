"""Task graph that reports batches and operators to a tracer."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from tidewheel.tasks.processing.api.topology_spec import ProcessorSpec, SubtopologySpec
from tidewheel.tasks.processing.engine.graph import TaskGraph
from tidewheel.tasks.processing.engine.operator import Output
from tidewheel.tasks.processing.engine.processor_wrapper import OperatorWork
from tidewheel.tasks.processing.engine.record_batch import JointBatch, RecordBatch
from tidewheel.tasks.processing.engine.steps import Steps


class BatchTracer(Protocol):
    """Tracer of a process; its calls never raise.

    `skipped` returns the number of records that handlers have skipped: a span in which it grows has
    an error.
    """

    def batch(
        self,
        task_id: str,
        source: str,
        batches: Sequence[RecordBatch],
        *,
        skipped: Callable[[], int],
        attaches: bool = True,
    ) -> AbstractContextManager[bool]:
        """Trace the processing of batches; enter True if their operators are traced too.

        `attaches` False: the work may change threads, so it is no current span.
        """
        ...

    def operator(
        self, name: str, records: int, *, skipped: Callable[[], int]
    ) -> AbstractContextManager[bool]: ...


class TracedGraph(TaskGraph):
    """Graph with a span per batch, and one per operator that may call users' functions."""

    def __init__(
        self,
        spec: SubtopologySpec,
        *,
        tracer: BatchTracer,
        task_id: str,
        skipped: Callable[[], int],
        **options: Any,
    ) -> None:
        super().__init__(spec, **options)
        self._skipped = skipped
        self._tracer = tracer
        self._task_id = task_id
        self._traces_operators = False
        for node_spec in spec.nodes:
            if isinstance(node_spec, ProcessorSpec):
                node = self.nodes[node_spec.name]
                node.work = partial(self._work, node.name, node.work)

    def run(self, name: str, batch: RecordBatch) -> None:
        with self._batch(name, (batch,)) as self._traces_operators:
            super().run(name, batch)

    def run_together(self, batches: Sequence[JointBatch]) -> None:
        names = ", ".join(sorted({name for name, _, _ in batches}))
        parts = [batch for _, batch, _ in batches]
        with self._batch(names, parts) as self._traces_operators:
            super().run_together(batches)

    def steps(self, name: str, batch: RecordBatch) -> Steps[None]:
        self._traces_operators = False
        with self._batch(name, (batch,), attaches=False):
            yield from super().steps(name, batch)

    def _batch(
        self, source: str, batches: Sequence[RecordBatch], *, attaches: bool = True
    ) -> AbstractContextManager[bool]:
        return self._tracer.batch(
            self._task_id, source, batches, skipped=self._skipped, attaches=attaches
        )

    def _work(self, name: str, work: OperatorWork, batch: RecordBatch) -> Output:
        if not self._traces_operators:
            return work(batch)
        with self._tracer.operator(name, len(batch), skipped=self._skipped):
            return work(batch)
