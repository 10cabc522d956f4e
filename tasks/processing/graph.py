"""The executable graph of one sub-topology in one task: its nodes, wired, and the two ways to run them.

In **batches** every node sees the whole batch before the next node does; nodes run in topological order, and where
paths meet again the records are put back into the order in which record-at-a-time processing would have met them.
**Record by record**, each record travels depth first through the whole graph before the next one starts, as in Kafka
Streams. Both use the same operators, so they differ only in the order of calls *between* operators, which is free
(DESIGN §2); `tests/tasks/processing/test_executors.py` holds them to that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

from state_stores.errors import StreamsError
from tasks.processing.execution import execution_mode
from tasks.processing.operator import NodeContext, Operator, Output
from tasks.processing.processor_node import DownstreamError, ProcessorHost, ProcessorNode
from tasks.processing.processor_wrapper import OperatorWork
from tasks.processing.record_batch import RecordBatch, merge_in_order
from tasks.processing.steps import Steps
from tasks.processing.supplied import checked_processor
from tasks.processing.topology_spec import ProcessorSpec, SinkSpec, SourceSpec, SubtopologySpec


class Node:
    """A node of the graph with its children."""

    __slots__ = ("children", "name", "numbers_children", "operator", "steps", "work")

    def __init__(self, name: str, operator: Operator | None) -> None:
        self.name = name
        #: None for a source, which has its own decoder.
        self.operator = operator
        #: What is called with a batch: the operator's `process`, perhaps with something around it.
        self.work: OperatorWork = _no_work if operator is None else operator.process
        #: The same for an operator that stops at coroutines.
        self.steps = (
            operator.steps if isinstance(operator, ProcessorNode) and operator.awaits() else None
        )
        self.children: list[Node] = []
        #: Records that go to several children are numbered, because their paths meet again further down.
        self.numbers_children = False


#: Makes the operator of a sink.
SinkFactory = Callable[[SinkSpec], Operator]

#: Makes the context of a node from its name.
ContextFactory = Callable[[str], NodeContext]


class TaskGraph:
    """The nodes of one task. Only the task's thread calls it.

    Attributes:
        takes_joint: It takes batches of several partitions at once.
        calls_batches: It calls functions of the user's that take many values at once.
        awaits: It waits for coroutines of the user's, and does nothing that may block: it can run on an event loop.
    """

    def __init__(
        self,
        spec: SubtopologySpec,
        *,
        make_sink: SinkFactory,
        make_context: ContextFactory,
        host: ProcessorHost,
        record_by_record: bool = False,
    ) -> None:
        self.spec = spec
        self.batched = execution_mode(spec).batch and not record_by_record
        self.nodes: dict[str, Node] = {}
        self._initialized: list[Operator] = []
        #: Those that may hold records back: most graphs have none, and are asked after each record.
        self._holding: list[Node] = []
        self._make_context = make_context
        for node_spec in spec.nodes:
            self._add(node_spec, make_sink, host)
        self._turns = _depth_first(self.nodes.values())
        self._order_flushes()
        self._order_start = self._number_paths()
        wrapped = any(isinstance(each, ProcessorSpec) and each.wrap for each in spec.nodes)
        self.takes_joint = self._takes_joint(wrapped=wrapped)
        operators = [node.operator for node in self.nodes.values() if node.operator is not None]
        self.calls_batches = self.batched and any(each.calls_batches for each in operators)
        self.awaits = (
            not self.batched
            and not wrapped
            and any(each.awaits() for each in operators)
            and not any(each.blocks() for each in operators)
        )

    def _add(
        self,
        node_spec: SourceSpec | ProcessorSpec | SinkSpec,
        make_sink: SinkFactory,
        host: ProcessorHost,
    ) -> None:
        operator: Operator | None
        match node_spec:
            case SourceSpec():
                operator = None
            case SinkSpec():
                operator = make_sink(node_spec)
            case ProcessorSpec():
                made = node_spec.supplier()
                operator = (
                    made
                    if isinstance(made, Operator)
                    else ProcessorNode(
                        checked_processor(made, node_spec),
                        host,
                        node_spec.stores,
                        node_spec.reads,
                    )
                )
        node = Node(node_spec.name, operator)
        if isinstance(node_spec, ProcessorSpec) and node_spec.wrap is not None:
            node.work = node_spec.wrap(node.work)
        self.nodes[node.name] = node
        if operator is not None and _may_hold_back(type(operator)):
            self._holding.append(node)
        for parent in () if isinstance(node_spec, SourceSpec) else node_spec.parents:
            self.nodes[parent].children.append(node)

    def _order_flushes(self) -> None:
        """Have flushes in the order of their changes where a store or a repartition topic is below."""
        ordered = {
            each.name
            for each in self.spec.nodes
            if (isinstance(each, ProcessorSpec) and each.stores)
            or (isinstance(each, SinkSpec) and each.internal)
        }
        above: set[str] = set()
        for node in reversed(self._turns):
            if any(child.name in ordered or child.name in above for child in node.children):
                above.add(node.name)
        for node in self._holding:
            assert node.operator is not None
            node.operator.flushes_in_order = node.name in above

    def _takes_joint(self, *, wrapped: bool) -> bool:
        """Return whether the order of the records of all sources is kept where it matters: where paths meet, in shared stores.

        And in the topics: no two sinks may write to the same one.
        """
        topics = [each.topic for each in self.spec.nodes if isinstance(each, SinkSpec)]
        named = all(isinstance(topic, str) for topic in topics)
        return (
            self._order_start is not None
            and not wrapped
            and (len(topics) < 2 or (named and len(set(topics)) == len(topics)))  # noqa: PLR2004 - one sink is in order
            and all(
                node.operator.takes_joint
                for node in self.nodes.values()
                if node.operator is not None
            )
        )

    def _number_paths(self) -> Callable[[Iterable[int]], list[Any]] | None:
        """Find where paths that parted meet again; return what makes the first order of a batch, or None."""
        parents: dict[str, int] = dict.fromkeys(self.nodes, 0)
        for node in self.nodes.values():
            for child in node.children:
                parents[child.name] += 1
        if not self.batched or max(parents.values(), default=0) < 2:  # noqa: PLR2004 - two paths that meet
            return None
        tuples = False
        for node in self.nodes.values():
            exclusive = node.operator is not None and node.operator.exclusive
            node.numbers_children = len(node.children) > 1 and not exclusive
            expands = node.operator is not None and node.operator.expands
            tuples = tuples or node.numbers_children or expands
        return (lambda places: [(place,) for place in places]) if tuples else list

    # -- life ------------------------------------------------------------------------------------------------------

    def init(self) -> None:
        """Initialise every node, parents first."""
        for node in self.nodes.values():
            if isinstance(node.operator, ProcessorNode):
                node.operator.connect(partial(_refuse_early, node.name))
            if node.operator is not None:
                node.operator.init(self._make_context(node.name))
                self._initialized.append(node.operator)
        for node in self.nodes.values():
            if isinstance(node.operator, ProcessorNode):
                node.operator.open(self._pusher(node), partial(self._push_steps_of, node))

    def close(self) -> None:
        """Close every node that was initialised, parents first; the first error is raised after all were closed."""
        errors: list[Exception] = []
        while self._initialized:
            try:
                self._initialized.pop(0).close()
            except Exception as error:  # noqa: BLE001 - raised below, once the others are closed
                errors.append(error)
        if errors:
            raise errors[0]

    # -- batches ---------------------------------------------------------------------------------------------------

    def run(self, name: str, batch: RecordBatch) -> None:
        """Run a batch that came out of node `name` (a source) through everything below it."""
        node = self.nodes[name]
        if self.batched:
            self._run_below(node, batch)
        else:
            self.push_all(node, batch)

    def _run_below(self, start: Node, output: Output) -> None:
        waiting: dict[str, list[RecordBatch]] = {}
        if self._order_start is not None and isinstance(output, RecordBatch):
            output.order = self._order_start(range(len(output)))
        self._deliver(start, output, waiting)
        self._run_waiting(waiting, self._turns)

    def run_together(self, batches: Sequence[tuple[str, RecordBatch, Sequence[int]]]) -> None:
        """Run batches of several partitions at once: (source, batch, the places of its records among all)."""
        assert self._order_start is not None, "only what takes joint batches is given some"
        waiting: dict[str, list[RecordBatch]] = {}
        for name, batch, places in batches:
            batch.order = self._order_start(places)
            self._deliver(self.nodes[name], batch, waiting)
        # The topology's order: both windows of a join before the joins that read them.
        self._run_waiting(waiting, self.nodes.values())

    def _run_waiting(self, waiting: dict[str, list[RecordBatch]], turns: Iterable[Node]) -> None:
        if not waiting:
            return
        for node in turns:
            batches = waiting.pop(node.name, None)
            if batches is None:
                continue
            batch = merge_in_order(batches)
            if len(batch):
                self._deliver(node, node.work(batch), waiting)
            if not waiting:
                return

    def _deliver(self, node: Node, output: Output, waiting: dict[str, list[RecordBatch]]) -> None:
        if output is None:
            return
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

    # -- record by record ------------------------------------------------------------------------------------------

    def push_all(self, node: Node, batch: RecordBatch) -> None:
        """Push the records of a batch that starts here (a source, a cache flush), one by one."""
        try:
            self.push(node, batch)
        except DownstreamError as error:
            raise error.cause from error.cause.__cause__

    def push(self, node: Node, output: Output, child: str | None = None) -> None:
        """Push the records of an output, one by one, depth first, into the children of a node."""
        records = _records(output, child)
        if isinstance(output, RecordBatch) and len(output) == 1:
            records = iter(((output, child),))  # as most are; it costs less to say so at once
        for record, only in records:
            for target in node.children:
                if only is not None and target.name != only:
                    continue
                below = target.work(record)
                if below is not None:
                    self.push(target, below)

    def steps(self, name: str, batch: RecordBatch) -> Steps[None]:
        """Do what `run` does, and stop at each coroutine of the user's; for a graph that runs record by record."""
        try:
            yield from self._push_steps(self.nodes[name], batch, None)
        except DownstreamError as error:
            raise error.cause from error.cause.__cause__

    def _push_steps(self, node: Node, output: Output, child: str | None) -> Steps[None]:
        records = _records(output, child)
        if isinstance(output, RecordBatch) and len(output) == 1:
            records = iter(((output, child),))
        for record, only in records:
            for target in node.children:
                if only is not None and target.name != only:
                    continue
                if target.steps is not None:
                    yield from target.steps(record)
                elif (below := target.work(record)) is not None:
                    yield from self._push_steps(target, below, None)

    def at_work(self) -> str:
        """Return the user's processor at work that is furthest down, empty if there is none. Asked by any thread."""
        names = [
            node.name
            for node in self.nodes.values()
            if isinstance(node.operator, ProcessorNode) and node.operator.is_at_work
        ]
        return names[-1] if names else ""

    def _push_steps_of(self, node: Node, batch: RecordBatch, child: str | None) -> Steps[None]:
        """Push what a user's coroutine has forwarded."""
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

    # -- caches ----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Forward everything that caches hold back, in the order of the nodes, so that caches below flush after.

        What is forwarded may change a cached table further up (a processor that shares its store), so it goes on until
        nothing is held back, at most once per node. What is held back still is part of the commit, and forwarded at the next one.
        """
        for _ in self._holding:
            for node in self._holding:
                if node.operator is not None:
                    self._forward_flushed(node, node.operator.flush())
            if not self.held_back_bytes():
                return
        for node in self._holding:
            if node.operator is not None:
                node.operator.left_over()

    def held_back_bytes(self) -> int:
        """Return what the caches hold back."""
        if not self._holding:
            return 0
        return sum(
            node.operator.held_back()[1] for node in self._holding if node.operator is not None
        )

    def shrink(self, excess_bytes: int) -> None:
        """Forward the least recently changed keys of the fullest caches until `excess_bytes` are free."""
        while excess_bytes > 0:
            fullest = max(
                self._holding,
                key=lambda node: node.operator.held_back()[1] if node.operator is not None else 0,
            )
            assert fullest.operator is not None
            keys, held = fullest.operator.held_back()
            if not keys:
                return
            count = min(keys, keys * excess_bytes // max(held, 1) + 1)
            self._forward_flushed(fullest, fullest.operator.flush(count))
            excess_bytes -= held - fullest.operator.held_back()[1]

    def _forward_flushed(self, node: Node, output: RecordBatch | None) -> None:
        if output is None or not len(output):
            return
        if self.batched:
            self._run_below(node, output)
        else:
            self.push_all(node, output)


def _depth_first(nodes: Iterable[Node]) -> list[Node]:
    """Return the nodes in topological order, all below a child before its next sibling as far as paths don't meet again.

    So the outputs of one record reach different topics in the order of record-at-a-time processing.
    """
    done: list[Node] = []
    seen: set[str] = set()
    stack = [(node, False) for node in nodes if node.operator is None]  # sources: all else is below
    while stack:
        node, is_left = stack.pop()
        if is_left:
            done.append(node)
        elif node.name not in seen:
            seen.add(node.name)
            stack.append((node, True))
            stack.extend((child, False) for child in node.children)
    return done[::-1]


def _check_child(node: Node, child: str | None) -> None:
    if child is None or any(each.name == child for each in node.children):
        return
    names = sorted(each.name for each in node.children)
    raise ValueError(
        f"{node.name} has no child {child}; its children are: {', '.join(names) or 'none'}"
    )


def _may_hold_back(operator: type[Operator]) -> bool:
    return operator.flush is not Operator.flush or operator.held_back is not Operator.held_back


def _no_work(_batch: RecordBatch) -> NoReturn:
    raise AssertionError("a source has no parents")


def _refuse_early(node: str, _batch: RecordBatch, _child: str | None) -> None:
    raise StreamsError(
        f"{node}: forward() before the topology is initialised; use process() or a punctuator"
    )


def _numbered(batch: RecordBatch, child: int) -> RecordBatch:
    assert batch.order is not None
    copy = batch.with_values(batch.values, batch.old_values)
    copy.order = [(*position, child) for position in batch.order]
    return copy


def _records(output: Output, child: str | None) -> Iterator[tuple[RecordBatch, str | None]]:
    """Yield each record of an output as a batch of its own, with the only child it goes to, if any."""
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
