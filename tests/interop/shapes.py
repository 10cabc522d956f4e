"""Graphs of random programs, and the outputs that a declared difference reaches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Drawn = dict[str, Any]

_REKEYING = frozenset(
    {"map", "flat_map", "select_key", "process", "timer", "clock", "table_to_stream_by"}
)
_FOREIGN = frozenset({"table_foreign_join", "table_foreign_left_join"})
_OF_TWO_TABLES = frozenset({"table_join", "table_left_join", "table_outer_join", *_FOREIGN})
_REGROUPING = frozenset({"table_group_count", "table_group_reduce", "table_group_aggregate"})
_FILTERS = frozenset({"table_filter", "table_filter_not"})
_STREAM_JOINS = frozenset({"stream_join", "stream_left_join", "stream_outer_join"})
#: Kafka Streams uses the initial value as their first old value.
_INITIALIZED = frozenset(
    {"count", "aggregate", "cogroup", "windowed_count", "windowed_aggregate", "windowed_cogroup"}
)
#: Kafka Streams' old values are missing or of another window.
_WITHOUT_OLD_VALUES = frozenset({"sliding", "session"})
_KEY_CHANGES = frozenset({"map", "flat_map", "select_key", "table_to_stream_by"})
_HIDDEN_CHANGES = frozenset(
    {"process", "timer", "clock", "process_values", "global_join", "global_left_join"}
)
_KEEPING = frozenset(
    {"count", "reduce", "aggregate", "cogroup", "to_table", *_REGROUPING, *_FOREIGN}
)


@dataclass(eq=False)
class Node:
    """A stream or table of a program.

    `odd_old_values`: Kafka Streams' old values differ from the values it sent.
    """

    parents: tuple["Node", ...] = ()
    operator: str = ""
    topics: frozenset[str] = frozenset()
    rekeyed: bool = False
    repartitioned: bool = False
    is_cached: bool = False
    odd_old_values: bool = False
    takes_old_values: bool = False
    step: Drawn = field(default_factory=dict[str, Any])

    def ancestors(self) -> set["Node"]:
        found: set[Node] = {self}
        for parent in self.parents:
            found |= parent.ancestors()
        return found


@dataclass
class Shape:
    program: Drawn
    subtopologies: int = 1
    streams: list[Node] = field(default_factory=list[Node])
    tables: list[Node] = field(default_factory=list[Node])
    #: Repartitioned because keys may have changed upstream.
    placed: list[Node] = field(default_factory=list[Node])

    @classmethod
    def of(cls, program: Drawn, text: str = "") -> "Shape":
        shape = cls(program, text.count("Sub-topology: "))
        for source in program["sources"]:
            node = Node(operator=source["kind"], topics=frozenset({source["topic"]}))
            if source["kind"] == "stream":
                shape.streams.append(node)
            elif source["kind"] == "table":
                shape.tables.append(node)
        for step in program["steps"]:
            shape.add(step)
        return shape

    def outputs(self) -> dict[str, Node]:
        numbers = {sink % len(self.streams) for sink in self.program["sinks"]}
        return {f"out{number}": self.streams[number] for number in numbers}

    def caches_above(self, node: Node) -> bool:
        return self.program["config"]["cache"] > 0 and any(
            above.is_cached or above.operator == "table" for above in node.ancestors()
        )

    def add(self, step: Drawn) -> None:
        operator = step["op"]
        if operator in ("lookup", "left_lookup"):
            placed = self._placed(self._stream(step, "a"), operator)
            self.streams.append(self._made(step, placed, self._table(step, "t")))
        elif operator in _OF_TWO_TABLES:
            self._add_table(self._join_tables(step))
        elif operator.startswith("table_"):
            self._of_table(step)
        elif operator.startswith("windowed_") or operator == "cogroup":
            self._aggregate(step)
        elif operator in ("count", "reduce", "aggregate", "to_table"):
            placed = self._placed(
                self._stream(step, "a"), operator, always=step.get("rekey", False)
            )
            self._add_table(self._kept(step, self._made(step, placed)))
        elif operator in _STREAM_JOINS:
            sides = (self._placed(self._stream(step, at), operator) for at in "ab")
            self.streams.append(self._made(step, *sides))
        elif operator == "merge":
            self.streams.append(self._made(step, self._stream(step, "a"), self._stream(step, "b")))
        else:
            made = self._made(step, self._stream(step, "a"))
            made.rekeyed = made.rekeyed or operator in _REKEYING
            if operator == "repartition":
                made.rekeyed, made.repartitioned = False, True
            self.streams.extend(
                [made, *(Node(**vars(made)) for _ in range(2))] if operator == "split" else [made]
            )

    def _stream(self, step: Drawn, place: str) -> Node:
        return self.streams[int(step.get(place, 0)) % len(self.streams)]

    def _table(self, step: Drawn, place: str) -> Node:
        return self.tables[int(step.get(place, 0)) % len(self.tables)]

    def _made(self, step: Drawn, *parents: Node) -> Node:
        return Node(
            parents=parents,
            operator=step["op"],
            step=step,
            topics=frozenset().union(*(parent.topics for parent in parents)),
            rekeyed=any(parent.rekeyed for parent in parents),
            repartitioned=any(parent.repartitioned for parent in parents),
            odd_old_values=any(parent.odd_old_values for parent in parents),
        )

    def _placed(self, node: Node, operator: str, *, always: bool = False) -> Node:
        if not (node.rekeyed or always):
            return node
        if not always:
            self.placed.append(node)
        return Node(
            parents=(node,), operator=f"{operator} place", topics=node.topics, repartitioned=True
        )

    def _kept(self, step: Drawn, node: Node) -> Node:
        kept = step.get("kept")
        has_store = step["op"] in _KEEPING or step["op"].startswith("windowed_") or kept is not None
        caches = (kept or {}).get("cache", True) and self.program["config"]["cache"] > 0
        node.is_cached = has_store and caches
        if not caches and (
            step["op"] in _INITIALIZED or step.get("windows") in _WITHOUT_OLD_VALUES
        ):
            node.odd_old_values = True
        return node

    def _add_table(self, table: Node) -> None:
        self.tables.append(table)
        changes = {"parents": (table,), "operator": "to_stream", "takes_old_values": False}
        self.streams.append(Node(**vars(table) | changes))

    def _join_tables(self, step: Drawn) -> Node:
        table, other = self._table(step, "t"), self._table(step, "u")
        made = self._kept(step, self._made(step, table, other))
        if table.topics & other.topics:
            made.odd_old_values = True
        if step["op"] in _FOREIGN:
            made.repartitioned = made.takes_old_values = True
        elif step["op"] != "table_join":
            # An outer side needs the old row.
            made.takes_old_values = True
        return made

    def _of_table(self, step: Drawn) -> None:
        operator = step["op"]
        table = self._table(step, "t")
        made = self._made(step, table)
        if operator in _REGROUPING:
            made.repartitioned = made.takes_old_values = True
            made.odd_old_values = False
            self._add_table(self._kept(step, made))
        elif operator in ("table_suppress", "table_to_stream", "table_to_stream_by"):
            made.rekeyed = operator in _REKEYING
            # Its buffer counts their bytes.
            made.takes_old_values = "bytes" in step
            self.streams.append(made)
        else:
            made.takes_old_values = operator in _FILTERS
            self._add_table(self._kept(step, made))

    def _aggregate(self, step: Drawn) -> None:
        operator = step["op"]
        parents = [self._placed(self._stream(step, "a"), operator, always=step.get("rekey", False))]
        if operator in ("cogroup", "windowed_cogroup"):
            places = "bc"[: step["groups"] - 1]
            parents += [self._placed(self._stream(step, at), operator) for at in places]
        made = self._kept(step, self._made(step, *parents))
        if operator == "cogroup":
            self._add_table(made)
            return
        if step.get("regroup"):
            regrouped = self._made(step, made)
            regrouped.repartitioned = regrouped.takes_old_values = True
            regrouped.odd_old_values = False
            regrouped.is_cached = self.program["config"]["cache"] > 0
            self._add_table(regrouped)
        self.streams.append(Node(**{**vars(made), "parents": (made,), "rekeyed": True}))


@dataclass(frozen=True)
class Exclusion:
    """A declared difference; `reaches` returns True for each output that may show it."""

    name: str
    reason: str
    reaches: Callable[[Shape, Node], bool]


def _odd_old_values(_shape: Shape, output: Node) -> bool:
    return any(
        node.takes_old_values and any(parent.odd_old_values for parent in node.parents)
        for node in output.ancestors()
    )


def _in_one_task(shape: Shape, output: Node) -> bool:
    return shape.subtopologies > 1 and any(node.operator == "timer" for node in output.ancestors())


def _counted_behind_cache(shape: Shape, output: Node) -> bool:
    return any(
        node.operator == "table_suppress" and "bytes" in node.step and shape.caches_above(node)
        for node in output.ancestors()
    )


EXCLUSIONS = (
    Exclusion(
        "bytes behind a cache",
        "A change that comes out of a cache does not know the topic of its record, so a byte limit of `suppress` behind a"
        " cache counts no topic name.",
        _counted_behind_cache,
    ),
    Exclusion(
        "one task for all",
        "Kafka Streams' test driver runs all sub-topologies in one task, whose stream time is that of all topics; ours, as"
        " applications do, has a task for each: a timer of stream time follows its own sub-topology.",
        _in_one_task,
    ),
    Exclusion(
        "old values",
        "With caching off, Kafka Streams takes the initial value for the old one of a new row, and joins of a table with"
        " what is made of itself give old values that were never given: groups and joins by foreign key behind them subtract them.",
        _odd_old_values,
    ),
)


@dataclass(frozen=True)
class Rewiring:
    """A declared difference of optimised topologies.

    `applies` checks the paths from a repartition up to key changes: each path's change (None: a
    source), and True for changes unknown to Kafka Streams in between.
    """

    name: str
    reason: str
    applies: Callable[[list[tuple[Node | None, bool]]], bool]


REWIRINGS = (
    Rewiring(
        "hidden changes",
        "Values that a processor or a global table changes are never repartitioned by the serde of what comes after it"
        " (KAFKA-19668): the repartition topic stays below them.",
        lambda ways: any(change is not None and hidden for change, hidden in ways),
    ),
    Rewiring(
        "merges of several",
        "A repartition topic is not moved above a merge that brings in what the same change of keys did not make.",
        lambda ways: len({change for change, _ in ways}) > 1,
    ),
)
REFUSALS = {
    "Found a null keyChangingChild node": "groups behind one common operator",
    'because "this.topic" is null at org.apache.kafka.streams.processor.internals.ProcessorRecordContext.serialize': (
        "suppress behind a timer"
    ),
}


def _ways_up(node: Node, *, hidden: bool = False) -> list[tuple[Node | None, bool]]:
    if node.operator in _KEY_CHANGES:
        return [(node, hidden)]
    if node.operator.startswith("windowed_"):
        return [(node, hidden)]
    if not node.rekeyed:
        return [(None, hidden)]
    hidden = hidden or node.operator in _HIDDEN_CHANGES
    return [way for parent in node.parents for way in _ways_up(parent, hidden=hidden)]


def rewired(program: Drawn) -> str | None:
    if program["config"]["optimize"] != "all":
        return None
    ways = [_ways_up(node) for node in Shape.of(program).placed]
    return next(
        (each.name for each in REWIRINGS if any(each.applies(up) for up in ways)),
        None,
    )


def refused(error: str) -> str | None:
    return next((name for text, name in REFUSALS.items() if text in error), None)


def is_order_free(program: Drawn) -> bool:
    """Return True if neither topic order nor cache flushes change the outputs."""
    return not any(
        node.repartitioned and (node.is_cached or len(node.parents) > 1)
        for output in Shape.of(program).outputs().values()
        for node in output.ancestors()
    )


def excluded(program: Drawn, text: str) -> dict[str, str]:
    """Return the outputs not to compare, with reasons; `text` describes the topology.

    Records of one side only change the order of topics with equal times.
    """
    shape = Shape.of(program, text)
    outputs = shape.outputs()
    found = {
        name: exclusion.name
        for name, output in outputs.items()
        for exclusion in EXCLUSIONS
        if exclusion.reaches(shape, output)
    }
    others = next(
        (
            exclusion.name
            for node in (*shape.streams, *shape.tables)
            for exclusion in EXCLUSIONS
            if exclusion.reaches(shape, node)
        ),
        None,
    )
    if others is not None:
        tied = (name for name, output in outputs.items() if _has_ties(output))
        found = dict.fromkeys(tied, f"ties beside {others}") | found
    return found


def _has_ties(output: Node) -> bool:
    return any(
        sum(parent.repartitioned for parent in node.parents) > 1 for node in output.ancestors()
    )
