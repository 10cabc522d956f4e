"""Executable graph of one sub-topology in one task.

In **batches**, nodes run in topological order on whole batches; where paths merge, records are
sorted into record-at-a-time order. **Record by record**, each record runs depth first through the
graph, as in Kafka Streams.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from tidewheel.state_stores.errors import StreamsError
from tidewheel.tasks.figures import NodeCounts
from tidewheel.tasks.processing.api.supplied import checked_processor
from tidewheel.tasks.processing.api.topology_spec import (
    ExternalSinkSpec,
    NodeSpec,
    ProcessorSpec,
    SinkSpec,
    SourceSpec,
    SubtopologySpec,
)
from tidewheel.tasks.processing.engine.execution import execution_mode, has_ordered_outputs
from tidewheel.tasks.processing.engine.operator import NodeContext, Operator, Output
from tidewheel.tasks.processing.engine.processor_node import (
    DownstreamError,
    ProcessorHost,
    ProcessorNode,
)
from tidewheel.tasks.processing.engine.processor_wrapper import OperatorWork
from tidewheel.tasks.processing.engine.record_batch import JointBatch, RecordBatch, merge_in_order
from tidewheel.tasks.processing.engine.steps import Steps

if TYPE_CHECKING:
    from asyncio import Task

    from tidewheel.tasks.processing.api.call_window import CallPlaces


class Node:
    __slots__ = (
        "children", "counts", "emits", "name", "numbers_children", "operator", "steps", "work",
    )  # fmt: skip

    def __init__(self, name: str, operator: Operator | None) -> None:
        self.name = name
        self.operator = operator
        #: The operator's `process`, possibly wrapped by a `ProcessorWrapper`.
        self.work: OperatorWork = _no_work if operator is None else operator.process
        #: Generator version of `work`, if it calls a coroutine function.
        self.steps = operator.steps if operator is not None and operator.awaits() else None
        self.children: list[Node] = []
        self.numbers_children = False
        self.counts = NodeCounts("" if operator is None else operator.emission)
        self.emits = bool(self.counts.emission)


SinkFactory = Callable[[SinkSpec | ExternalSinkSpec], Operator]

ContextFactory = Callable[[str], NodeContext]


class TaskGraph:
    """The nodes of one task; called by the task's thread only.

    `takes_joint`: accepts any records of several partitions in one batch. `calls_batches`: calls
    users' functions with many values. `has_coroutines`: calls coroutine functions, for which it has
    `steps`. `awaits`: never blocks besides, so it can run on an event loop. `latency_now_ms` is the
    clock for latencies at sources and terminal nodes; None: not measured.
    """

    def __init__(
        self,
        spec: SubtopologySpec,
        *,
        make_sink: SinkFactory,
        make_context: ContextFactory,
        host: ProcessorHost,
        record_by_record: bool = False,
        latency_now_ms: Callable[[], int] | None = None,
    ) -> None:
        self.spec = spec
        self._latency_now_ms = latency_now_ms
        self.batched = execution_mode(spec).batch and not record_by_record
        self.nodes: dict[str, Node] = {}
        self._initialized: list[Operator] = []
        self._caching: list[Node] = []
        self.may_flush = False
        self._make_context = make_context
        for node_spec in spec.nodes:
            self._add(node_spec, make_sink, host)
        if latency_now_ms is not None:
            self._measure_terminals(latency_now_ms)
        self._turns = _depth_first(self.nodes.values())
        self._paths_merge = self.batched and self._has_merges()
        self._order_start = self._number_paths()
        wrapped = any(
            isinstance(node_spec, ProcessorSpec) and node_spec.wrap for node_spec in spec.nodes
        )
        self.takes_joint = self._accepts_joint(wrapped=wrapped)
        operators = [node.operator for node in self.nodes.values() if node.operator is not None]
        self.calls_batches = self.batched and any(
            node_spec.calls_batches for node_spec in operators
        )
        self.has_coroutines = not wrapped and any(node_spec.awaits() for node_spec in operators)
        self.awaits = self.has_coroutines and not any(node_spec.blocks() for node_spec in operators)
        self._awaiting = [node_spec for node_spec in operators if node_spec.overlaps_calls()]

    def _add(
        self,
        node_spec: NodeSpec,
        make_sink: SinkFactory,
        host: ProcessorHost,
    ) -> None:
        operator: Operator | None
        match node_spec:
            case SourceSpec():
                operator = None
            case SinkSpec() | ExternalSinkSpec():
                operator = make_sink(node_spec)
            case ProcessorSpec():
                supplied = node_spec.supplier()
                operator = (
                    supplied
                    if isinstance(supplied, Operator)
                    else ProcessorNode(
                        checked_processor(supplied, node_spec),
                        host,
                        node_spec.stores,
                        node_spec.reads,
                    )
                )
        node = Node(node_spec.name, operator)
        if isinstance(node_spec, ProcessorSpec) and node_spec.wrap is not None:
            node.work = node_spec.wrap(node.work)
        self.nodes[node.name] = node
        for parent in () if isinstance(node_spec, SourceSpec) else node_spec.parents:
            self.nodes[parent].children.append(node)

    def _measure_terminals(self, now_ms: Callable[[], int]) -> None:
        for node in self.nodes.values():
            if node.operator is not None and not node.children and node.steps is None:
                node.work = partial(_measured, node.work, node.counts, now_ms)

    def _count_input(self, node: Node, batch: RecordBatch) -> None:
        node.counts.processed += len(batch)
        if self._latency_now_ms is not None:
            node.counts.observe(self._latency_now_ms, batch.timestamps)

    def _order_flushes(self) -> None:
        """Make caches above a store or repartition topic always flush keys by last change.

        Others may skip the sort.
        """
        ordered = {
            node_spec.name
            for node_spec in self.spec.nodes
            if (isinstance(node_spec, ProcessorSpec) and node_spec.stores)
            or (isinstance(node_spec, SinkSpec) and node_spec.internal)
        }
        above: set[str] = set()
        for node in reversed(self._turns):
            if any(child.name in ordered or child.name in above for child in node.children):
                above.add(node.name)
        for node in self._caching:
            assert node.operator is not None
            node.operator.flushes_in_order = node.name in above

    def _accepts_joint(self, *, wrapped: bool) -> bool:
        return (
            self._paths_merge
            and not wrapped
            and has_ordered_outputs(self.spec)
            and all(
                node.operator.takes_joint
                for node in self.nodes.values()
                if node.operator is not None
            )
        )

    def _has_merges(self) -> bool:
        parents = Counter(child.name for node in self.nodes.values() for child in node.children)
        return max(parents.values(), default=0) > 1

    def _number_paths(self) -> Callable[[Iterable[int]], list[Any]]:
        """Return the function that makes sort keys from row numbers.

        Where paths merge, a node sorts its input by these keys into record-at-a-time order.
        """
        tuples = False
        for node in self.nodes.values():
            exclusive = node.operator is not None and node.operator.exclusive
            node.numbers_children = self._paths_merge and len(node.children) > 1 and not exclusive
            expands = node.operator is not None and node.operator.expands
            tuples = tuples or node.numbers_children or expands
        return (lambda places: [(place,) for place in places]) if tuples else list

    def init(self) -> None:
        for node in self.nodes.values():
            if isinstance(node.operator, ProcessorNode):
                node.operator.connect(partial(_reject_early_forward, node.name))
            if node.operator is not None:
                node.operator.init(self._make_context(node.name))
                self._initialized.append(node.operator)
        self._caching = [
            node
            for node in self.nodes.values()
            if node.operator is not None and node.operator.may_flush()
        ]
        self.may_flush = bool(self._caching)
        self._order_flushes()
        for node in self.nodes.values():
            if isinstance(node.operator, ProcessorNode):
                node.operator.open(self._pusher(node), partial(self._push_steps_of, node))

    def close(self) -> None:
        errors: list[Exception] = []
        while self._initialized:
            try:
                self._initialized.pop(0).close()
            except Exception as error:  # noqa: BLE001 - raised below, once the others are closed
                errors.append(error)
        if errors:
            raise errors[0]

    def run(self, name: str, batch: RecordBatch) -> None:
        node = self.nodes[name]
        self._count_input(node, batch)
        if self.batched:
            self._run_below(node, batch)
        else:
            self.push_all(node, batch)

    def _run_below(self, start: Node, output: Output) -> None:
        waiting: dict[str, list[RecordBatch]] = {}
        if self._paths_merge and isinstance(output, RecordBatch):
            output.order = self._order_start(range(len(output)))
        self._deliver(start, output, waiting)
        self._run_waiting(waiting, self._turns)

    def run_together(self, batches: Sequence[JointBatch]) -> None:
        waiting: dict[str, list[RecordBatch]] = {}
        for name, batch, places in batches:
            self._count_input(self.nodes[name], batch)
            batch.order = self._order_start(places)
            self._deliver(self.nodes[name], batch, waiting)
        # In the topology's order, windows and tables run before the joins that read them.
        self._run_waiting(waiting, self.nodes.values())

    def _run_waiting(self, waiting: dict[str, list[RecordBatch]], turns: Iterable[Node]) -> None:
        if not waiting:
            return
        for node in turns:
            if (batches := waiting.pop(node.name, None)) is not None:
                batch = merge_in_order(batches)
                node.counts.processed += len(batch)
                self._deliver(node, node.work(batch), waiting)
                if not waiting:
                    return

    def _deliver(self, node: Node, output: Output, waiting: dict[str, list[RecordBatch]]) -> None:
        if output is None:
            return
        if node.emits:
            node.counts.emitted += _length(output)
        if isinstance(output, RecordBatch):
            if not len(output):
                return
            for index, child in enumerate(node.children):
                waiting.setdefault(child.name, []).append(
                    _numbered(output, index) if node.numbers_children else output
                )
        else:
            for child in node.children:
                batch = output.get(child.name)
                if batch is not None and len(batch):
                    waiting.setdefault(child.name, []).append(batch)

    def push_all(self, node: Node, batch: RecordBatch) -> None:
        try:
            self.push(node, batch)
        except DownstreamError as error:
            raise error.cause from error.cause.__cause__

    def push(self, node: Node, output: Output, child: str | None = None) -> None:
        if node.emits:
            node.counts.emitted += _length(output)
        records = _records(output, child)
        if isinstance(output, RecordBatch) and len(output) == 1:
            records = iter(((output, child),))
        for record, only in records:
            for target in node.children:
                if only is not None and target.name != only:
                    continue
                target.counts.processed += 1
                below = target.work(record)
                if below is not None:
                    self.push(target, below)

    @property
    def overlaps_calls(self) -> bool:
        return self.batched and self.has_coroutines and bool(self._awaiting)

    def overlap_calls(self, places: "CallPlaces") -> None:
        """Let calls of coroutine functions overlap for the records of a batch."""
        for operator in self._awaiting:
            operator.call_places = places

    def awaited_row(self) -> int | None:
        """Return the input row of the oldest call in flight, if known. Any thread may ask."""
        rows = (operator.awaited_row() for operator in self._awaiting)
        return next((row for row in rows if row is not None), None)

    def has_call(self, task: "Task[Any]") -> bool:
        """Return True for the asyncio task of one of its overlapping calls. Any thread may ask."""
        return any(operator.has_call(task) for operator in self._awaiting)

    def steps(self, name: str, batch: RecordBatch) -> Steps[None]:
        """Run a batch like `run`, yielding each coroutine."""
        self._count_input(self.nodes[name], batch)
        if self.batched:
            yield from self._steps_below(self.nodes[name], batch)
            return
        try:
            yield from self._push_steps(self.nodes[name], batch, None)
        except DownstreamError as error:
            raise error.cause from error.cause.__cause__

    def _steps_below(self, start: Node, batch: RecordBatch) -> Steps[None]:
        waiting: dict[str, list[RecordBatch]] = {}
        if self._paths_merge:
            batch.order = self._order_start(range(len(batch)))
        self._deliver(start, batch, waiting)
        for node in self._turns:
            if (batches := waiting.pop(node.name, None)) is not None:
                merged = merge_in_order(batches)
                node.counts.processed += len(merged)
                steps = node.steps
                output = node.work(merged) if steps is None else (yield from steps(merged))
                self._deliver(node, output, waiting)

    def _push_steps(self, node: Node, output: Output, child: str | None) -> Steps[None]:
        if node.emits:
            node.counts.emitted += _length(output)
        records = _records(output, child)
        if isinstance(output, RecordBatch) and len(output) == 1:
            records = iter(((output, child),))
        for record, only in records:
            for target in node.children:
                if only is not None and target.name != only:
                    continue
                steps = target.steps
                target.counts.processed += 1
                below = target.work(record) if steps is None else (yield from steps(record))
                if below is not None:
                    yield from self._push_steps(target, below, None)

    def at_work(self) -> str:
        """Return the name of the processor that runs user code, or empty text. Thread-safe."""
        names = [
            node.name
            for node in self.nodes.values()
            if isinstance(node.operator, ProcessorNode) and node.operator.is_at_work
        ]
        return names[-1] if names else ""

    def _push_steps_of(self, node: Node, batch: RecordBatch, child: str | None) -> Steps[None]:
        _check_child(node, child)
        try:
            yield from self._push_steps(node, batch, child)
        except DownstreamError:
            raise
        except Exception as error:
            raise DownstreamError(error) from error

    def _pusher(self, node: Node) -> Callable[[RecordBatch, str | None], None]:
        def push(batch: RecordBatch, child: str | None) -> None:
            _check_child(node, child)
            try:
                self.push(node, batch, child)
            except DownstreamError:
                raise
            except Exception as error:
                raise DownstreamError(error) from error

        return push

    def flush(self) -> None:
        """Forward all cached records, parents first.

        Repeats at most once per caching node: a flush may change a cached table upstream, through a
        processor that shares its store. The next commit forwards the rest.
        """
        for _ in self._caching:
            for node in self._caching:
                if node.operator is not None:
                    self._forward_flushed(node, node.operator.flush())
            if not self.cached_bytes():
                return
        for node in self._caching:
            if node.operator is not None:
                node.operator.mark_committed()

    def cached_bytes(self) -> int:
        if not self._caching:
            return 0
        return sum(
            node.operator.cache_size()[1] for node in self._caching if node.operator is not None
        )

    def shrink(self, excess_bytes: int) -> None:
        """Forward the least recently changed keys of the fullest caches, to free bytes."""
        while excess_bytes > 0:
            fullest = max(
                self._caching,
                key=lambda node: node.operator.cache_size()[1] if node.operator is not None else 0,
            )
            assert fullest.operator is not None
            keys, cached_bytes = fullest.operator.cache_size()
            if not keys:
                return
            count = min(keys, keys * excess_bytes // max(cached_bytes, 1) + 1)
            self._forward_flushed(fullest, fullest.operator.flush(count))
            excess_bytes -= cached_bytes - fullest.operator.cache_size()[1]

    def _forward_flushed(self, node: Node, output: RecordBatch | None) -> None:
        if output is None or not len(output):
            return
        if self.batched:
            self._run_below(node, output)
        else:
            self.push_all(node, output)


def _depth_first(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes in topological order, depth first where paths do not merge.

    Sinks then run in the order in which a single record, processed depth first, reaches them.
    """
    done: list[Node] = []
    visited: set[str] = set()
    stack = [(node, False) for node in nodes if node.operator is None]
    while stack:
        node, is_finished = stack.pop()
        if is_finished:
            done.append(node)
        elif node.name not in visited:
            visited.add(node.name)
            stack.append((node, True))
            stack.extend((child, False) for child in node.children)
    return done[::-1]


def _measured(
    work: OperatorWork, counts: NodeCounts, now_ms: Callable[[], int], batch: RecordBatch
) -> Output:
    output = work(batch)
    counts.observe(now_ms, batch.timestamps)
    return output


def _length(output: Output) -> int:
    if isinstance(output, Mapping):
        return sum(map(len, output.values()))
    return 0 if output is None else len(output)


def _check_child(node: Node, child: str | None) -> None:
    if child is None or any(child_node.name == child for child_node in node.children):
        return
    names = sorted(child_node.name for child_node in node.children)
    raise ValueError(
        f"{node.name} has no child {child}; its children are: {', '.join(names) or 'none'}"
    )


def _no_work(_batch: RecordBatch) -> NoReturn:
    raise AssertionError("a source has no parents")


def _reject_early_forward(node: str, _batch: RecordBatch, _child: str | None) -> None:
    raise StreamsError(
        f"{node}: forward() before the topology is initialised; use process() or a punctuator"
    )


def _numbered(batch: RecordBatch, child: int) -> RecordBatch:
    assert batch.order is not None
    copy = batch.with_values(batch.values, batch.old_values)
    copy.order = [(*position, child) for position in batch.order]
    return copy


def _records(output: Output, child: str | None) -> Iterator[tuple[RecordBatch, str | None]]:
    """Yield (batch of one record, the only child to receive it or None for all)."""
    if output is None:
        return
    if isinstance(output, Mapping):
        for name, batch in output.items():
            for record, _ in _records(batch, None):
                yield record, name
    elif len(output) == 1:
        yield output, child
    else:
        for index in range(len(output)):
            yield output.single(index), child
