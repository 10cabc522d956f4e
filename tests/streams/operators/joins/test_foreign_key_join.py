"""Foreign-key joins: subscriptions, valid responses, and equal results for any history."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.operators.joins.test_table_join import (
    SERDES,
    STRING,
    Change,
    Result,
    pipe,
    results,
)
from tidewheel import Materialized, StreamsBuilder, StreamsConfig
from tidewheel.streams.operators.joins.foreign_key_join import (
    ForeignKeyTopics,
    ResponseJoin,
    SubscriptionSend,
    hash_row,
)
from tidewheel.streams.operators.joins.subscription import Instruction, Response, Subscription
from tidewheel.streams.operators.tables.table_view import BoundView, Failed, Rows, TableView
from tidewheel.streams.user_functions import adapt
from tidewheel.tasks.processing.engine.record_batch import RecordBatch
from tidewheel.testing import TopologyTestDriver

TOPICS = ForeignKeyTopics("sub", "resp")
FORGET, GONE, ASK, ASK_IF = Instruction


def target(value: str) -> str | None:
    return value.partition("|")[2] or None


def joined(left: str, right: str | None) -> str:
    return f"({left},{right})"


class Context(SimpleNamespace):
    task_id = "0_2"

    def __init__(self) -> None:
        super().__init__(drops=[], failures=[])

    def internal_topic(self, name: str) -> str:
        return f"app-{name}"

    def dropped(self, count: int, reason: str, batch: RecordBatch, first: int) -> None:
        self.drops += [reason] * count

    def failed(self, batch: RecordBatch, index: int, error: Exception) -> None:
        self.failures.append((batch.keys[index], type(error).__name__))


def batch_of(rows: list[tuple[Any, Any, Any]], **columns: Any) -> RecordBatch:
    keys, old_values, values = map(list, zip(*rows, strict=True))
    times = list(range(1, len(rows) + 1))
    return RecordBatch(keys, values, times, None, times, None, old_values=old_values, **columns)


# -- subscriptions of a left row's change ---------------------------------------------------


def sent(
    rows: list[tuple[Any, Any, Any]], *, left_join: bool, extract: Any = target
) -> tuple[list[tuple[Any, Instruction, Any]], Context]:
    function = adapt(extract, kind="mapper", node="join")
    send = SubscriptionSend(TOPICS, function, left_join, False, STRING, STRING, STRING)
    context = Context()
    send.init(context)
    output = send.process(batch_of(rows))
    if output is None:
        return [], context
    assert isinstance(output, RecordBatch)
    messages: list[Subscription] = output.values
    for message, row in zip(messages, output.rows, strict=True):
        new = rows[row - 1][2]
        assert message.hash == (None if new is None else hash_row(new.encode()))
        assert message.primary_partition == 2
    return [
        (key, message.instruction, message.primary_key.decode())
        for key, message in zip(output.keys, messages, strict=True)
    ], context


@pytest.mark.parametrize(
    ("old", "new", "inner", "left"),
    [
        (None, "a|1", [("1", ASK_IF)], [("1", ASK)]),
        (None, "a", [], [(None, ASK)]),
        ("a|1", "b|2", [("1", FORGET), ("2", ASK)], [("1", FORGET), ("2", ASK)]),
        ("a|1", "b|1", [("1", ASK_IF)], [("1", ASK)]),
        ("a|1", "b", [("1", GONE)], [("1", FORGET), (None, ASK)]),
        ("a", "b|1", [("1", ASK_IF)], [("1", ASK)]),
        ("a", "b", [], [(None, ASK)]),
        ("a|1", None, [("1", GONE)], [("1", FORGET), (None, ASK)]),
        ("a", None, [], [(None, ASK)]),
        (None, None, [], []),
    ],
)
def test_a_change_sends_the_same_messages_as_kafka_streams(
    old: str | None, new: str | None, inner: list[Any], left: list[Any]
) -> None:
    for left_join, expected in ((False, inner), (True, left)):
        messages, context = sent([("pk", old, new)], left_join=left_join)
        assert messages == [(key, instruction, "pk") for key, instruction in expected]
        points_nowhere = not left_join and new == ("a" if old is None else "b")
        assert context.drops == (["null foreign key"] if points_nowhere else [])


def test_the_foreign_key_may_depend_on_the_key() -> None:
    """KIP-1104."""
    messages, _ = sent(
        [("k", None, "v")], left_join=False, extract=lambda key, value: f"{key}-{value}"
    )
    assert messages == [("k-v", ASK_IF, "k")]


def test_a_failing_extractor_skips_its_record_and_no_other() -> None:
    rows = [("a", None, "x|1"), ("b", None, 5), ("c", None, "x|2")]
    messages, context = sent(rows, left_join=False)
    assert [key for _, _, key in messages] == ["a", "c"]
    assert context.failures == [("b", "AttributeError")]


def test_a_row_that_does_not_serialise_is_skipped_and_no_other() -> None:
    rows = [
        ("a", None, "x|1"),
        ("b", None, "y|\udc80"),
        ("c", None, "\udc80|2"),
        ("d", None, "z|3"),
    ]
    messages, context = sent(rows, left_join=False)
    assert messages == [("1", ASK_IF, "a"), ("3", ASK_IF, "d")]
    assert context.failures == [("b", "SerializationError"), ("c", "SerializationError")]


# -- valid responses ----------------------------------------------------------------------


class OneRow(TableView, BoundView):
    versioned = False

    def __init__(self, value: str | None) -> None:
        self.value = value

    def init(self, context: Any) -> "OneRow":
        return self

    def get_many(self, keys: Any, key_bytes: Any = None, *, failed: Failed | None = None) -> Rows:
        return [self.value if key == "k" else None for key in keys], [-1] * len(keys)

    def get_as_of(self, keys: Any, timestamps: Any, *, failed: Failed | None = None) -> Rows:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("row", "answered", "foreign", "inner", "left"),
    [
        ("l", "l", b"r", "(l,r)", "(l,r)"),
        ("l", "l", None, None, "(l,None)"),
        ("l", "l", b"", "(l,)", "(l,)"),
        (None, None, None, None, None),
        ("l", "older", b"r", "dropped", "dropped"),
        ("l", None, None, "dropped", "dropped"),
        (None, "deleted", b"r", "dropped", "dropped"),
    ],
)
def test_only_responses_to_the_current_row_count(
    row: str | None, answered: str | None, foreign: bytes | None, inner: Any, left: Any
) -> None:
    for left_join, expected in ((False, inner), (True, left)):
        joiner = adapt(joined, kind="joiner", node="join")
        join = ResponseJoin(TOPICS, OneRow(row), joiner, left_join, STRING, STRING)
        context = Context()
        join.init(context)
        row_hash = None if answered is None else hash_row(answered.encode())
        output = join.process(batch_of([("k", None, Response(row_hash, foreign))]))
        if expected == "dropped":
            assert output is None
            assert context.drops == ["response to an older row"]
        else:
            assert isinstance(output, RecordBatch)
            assert (output.keys, output.values, output.timestamps) == (["k"], [expected], [1])


def test_a_failing_response_is_skipped_and_no_other() -> None:
    def picky(left: str, right: str) -> str:
        if right == "bad":
            raise ValueError(right)
        return joined(left, right)

    join = ResponseJoin(
        TOPICS, OneRow("l"), adapt(picky, kind="joiner", node="join"), False, STRING, STRING
    )
    context = Context()
    join.init(context)
    mine, other = hash_row(b"l"), hash_row(b"other")
    answers = [(mine, b"1"), (mine, b"\xff"), (other, b"2"), (mine, b"bad"), (mine, b"3")]
    output = join.process(batch_of([("k", None, Response(*answer)) for answer in answers]))
    assert isinstance(output, RecordBatch)
    assert (output.values, output.timestamps) == (["(l,1)", "(l,3)"], [1, 5])
    assert context.drops == ["response to an older row"]
    assert context.failures == [("k", "SerializationError"), ("k", "ValueError")]


# -- the whole join ------------------------------------------------------------------------------------------------------


def driver_of(
    operator: str,
    *,
    record_by_record: bool = False,
    store: Materialized[Any, Any] | None = None,
    tables: Materialized[Any, Any] | None = None,
    **options: Any,
) -> TopologyTestDriver:
    builder = StreamsBuilder()
    left = builder.table("left", **SERDES, store=tables)
    right = builder.table("right", **SERDES, store=tables)
    table = getattr(left, operator)(right, joined, foreign_key=target, store=store)
    table.to_stream().to("out", **SERDES)
    config = StreamsConfig(
        **{
            "application_id": "joins",
            "bootstrap_servers": "unused:9092",
            "statestore_cache_max_bytes": 0,
            **options,
        }
    )
    return TopologyTestDriver(builder.build(config), config, record_by_record=record_by_record)


@pytest.mark.parametrize("operator", ["join", "left_join"])
def test_deletion_of_a_row_without_a_partner(operator: str) -> None:
    with driver_of(operator) as driver:
        first = pipe(driver, [("left", "a", "x|1", 1)])
        assert first == ([("a", "(x|1,None)", 1)] if operator == "left_join" else [])
        assert pipe(driver, [("left", "a", None, 2)]) == [("a", None, 2)]
        assert pipe(driver, [("left", "a", None, 3), ("left", "b", None, 4)]) == []


@pytest.mark.parametrize("operator", ["join", "left_join"])
def test_a_changed_foreign_key_moves_the_row_to_another_partner(operator: str) -> None:
    def without(value: str) -> str | None:
        return f"({value},None)" if operator == "left_join" else None

    with driver_of(operator) as driver:
        pipe(driver, [("left", "a", "x|1", 1)])
        assert pipe(driver, [("left", "a", "x|2", 2)]) == [("a", without("x|2"), 2)]
        assert pipe(driver, [("right", "1", "r", 3)]) == []
        assert pipe(driver, [("left", "a", "x|1", 4)]) == [("a", "(x|1,r)", 4)]
        assert pipe(driver, [("left", "a", "x|2", 5)]) == [("a", without("x|2"), 5)]
        assert pipe(driver, [("right", "1", "s", 6)]) == []
        assert pipe(driver, [("right", "2", "t", 7)]) == [("a", "(x|2,t)", 7)]


def test_a_left_join_has_a_result_for_rows_without_a_foreign_key() -> None:
    with driver_of("left_join") as driver:
        pipe(driver, [("right", "1", "r", 1)])
        changes = [("left", "a", "x", 2), ("left", "a", "y|1", 3), ("left", "a", "z", 4)]
        assert pipe(driver, [*changes, ("left", "a", None, 5)]) == [
            ("a", "(x,None)", 2),
            ("a", "(y|1,r)", 3),
            ("a", "(z,None)", 4),
            ("a", None, 5),
        ]


def test_a_response_has_the_newest_timestamp_of_its_causes() -> None:
    with driver_of("join") as driver:
        pipe(driver, [("right", "1", "r", 50)])
        assert pipe(driver, [("left", "a", "x|1", 10)]) == [("a", "(x|1,r)", 50)]
        assert pipe(driver, [("right", "1", "s", 5)]) == [("a", "(x|1,s)", 5)]
        assert pipe(driver, [("left", "a", None, 4)]) == [("a", None, 5)]


def test_a_value_without_bytes_is_a_value() -> None:
    """Kafka Streams reads an empty text as a missing row."""
    with driver_of("join") as driver:
        assert pipe(driver, [("right", "1", "", 1), ("left", "a", "x|1", 2)]) == [
            ("a", "(x|1,)", 2)
        ]


def test_a_table_can_be_joined_with_itself_by_foreign_key() -> None:
    builder = StreamsBuilder()
    people = builder.table("people", **SERDES)
    people.join(
        people,
        lambda mine, boss: f"{mine} below {boss}",
        foreign_key=lambda key, value: target(value),
    ).to_stream().to("out", **SERDES)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("people", **SERDES)
        source.pipe_batch([("ann", "A", 1), ("bob", "B|ann", 2), ("cleo", "C|bob", 3)])
        assert results(driver) == [("bob", "B|ann below A", 2), ("cleo", "C|bob below B|ann", 3)]
        source.pipe_input("ann", "AA", 4)
        assert results(driver) == [("bob", "B|ann below AA", 4)]


def test_out_of_order_changes_of_versioned_tables_are_not_joined() -> None:
    versioned = Materialized(store_type="versioned", history_retention=1_000)
    late: list[Change] = [("left", "a", "old|1", 5), ("right", "1", "old", 4)]
    with driver_of("join", tables=versioned) as driver:
        changes: list[Change] = [("right", "1", "r", 10), ("left", "a", "x|1", 11)]
        assert pipe(driver, changes) == [("a", "(x|1,r)", 11)]
        assert pipe(driver, late) == []
    with driver_of("join") as driver:
        pipe(driver, changes)
        assert len(pipe(driver, late)) == 2


def test_changes_from_a_cache_receive_responses() -> None:
    with driver_of("left_join", statestore_cache_max_bytes=1 << 20) as driver:
        source = driver.create_input_topic("left", **SERDES)
        source.pipe_batch([("a", "x|1", 1), ("a", "y|1", 2), ("b", "z", 3)])
        assert sorted(results(driver)) == [("a", "(y|1,None)", 2), ("b", "(z,None)", 3)]
        assert pipe(driver, [("right", "1", "r", 4)]) == [("a", "(y|1,r)", 4)]


# -- laws --------------------------------------------------------------------------------------------------------------

LEFT_CHANGES = st.tuples(
    st.just("left"),
    st.sampled_from(["a", "b", "c"]),
    st.none() | st.sampled_from(["x|1", "y|1", "x|2", "x|11", "y|", "x"]),
    st.integers(0, 20),
)
RIGHT_CHANGES = st.tuples(
    st.just("right"),
    st.sampled_from(["1", "2", "11"]),
    st.none() | st.sampled_from(["r", "s"]),
    st.integers(0, 20),
)
CHANGES = st.lists(LEFT_CHANGES | RIGHT_CHANGES, max_size=14)


class Model:
    """The rules of the join if each change is answered before the next one."""

    def __init__(self, operator: str) -> None:
        self.outer = operator == "left_join"
        self.left: dict[str, str] = {}
        self.right: dict[str, tuple[str, int]] = {}

    def change(self, topic: str, key: str, value: str | None, timestamp: int) -> list[Result]:
        if topic == "left":
            old = self.left.pop(key, None)
            if value is not None:
                self.left[key] = value
            return self._left(key, old, value, timestamp)
        self.right.pop(key, None)
        if value is not None:
            self.right[key] = value, timestamp
        pointing = sorted(name for name, row in self.left.items() if target(row) == key)
        return [(name, self.result(name), timestamp) for name in pointing]

    def _left(self, key: str, old: str | None, new: str | None, timestamp: int) -> list[Result]:
        if old is None and new is None:
            return []
        before = None if old is None else target(old)
        after = None if new is None else target(new)
        answering = after
        if not self.outer:
            if before is None and after is None:
                return []
            # An inner join reports a missing row only where a result may have existed.
            if self.result(key) is None and after is not None and before in (None, after):
                return []
            answering = before if after is None else after
        found = self.right.get(answering) if answering is not None else None
        return [(key, self.result(key), max(timestamp, -1 if found is None else found[1]))]

    def result(self, key: str) -> str | None:
        row = self.left.get(key)
        if row is None:
            return None
        found = self.right.get(target(row) or "")
        if found is None:
            return joined(row, None) if self.outer else None
        return joined(row, found[0])

    def table(self) -> dict[str, str]:
        return {key: result for key in self.left if (result := self.result(key)) is not None}


def kept(driver: TopologyTestDriver) -> dict[str, str]:
    return {key: row.value for key, row in driver.get_state_store("results").all()}


RESULTS = Materialized("results", value_serde=STRING)


@pytest.mark.slow
@settings(max_examples=12)
@given(st.sampled_from(["join", "left_join"]), CHANGES, st.booleans())
def test_every_change_has_the_results_of_the_model(
    operator: str, changes: list[Any], record_by_record: bool
) -> None:
    model = Model(operator)
    with driver_of(operator, store=RESULTS, record_by_record=record_by_record) as driver:
        for change in changes:
            assert pipe(driver, [change]) == model.change(*change)
        assert kept(driver) == model.table()


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.sampled_from(["join", "left_join"]),
    st.lists(st.lists(LEFT_CHANGES, max_size=6) | st.lists(RIGHT_CHANGES, max_size=6), max_size=4),
)
def test_batches_have_the_results_of_single_records(
    operator: str, batches: list[list[Change]]
) -> None:
    model = Model(operator)
    for topic, key, value, timestamp in (change for changes in batches for change in changes):
        assert key is not None
        model.change(topic, key, value, timestamp)
    seen = []
    for record_by_record in (False, True):
        with driver_of(operator, store=RESULTS, record_by_record=record_by_record) as driver:
            for changes in batches:
                if changes:
                    source = driver.create_input_topic(changes[0][0], **SERDES)
                    source.pipe_batch([(key, value, time) for _, key, value, time in changes])
            seen.append((results(driver), kept(driver)))
    assert seen[0] == seen[1]
    if operator == "left_join":
        assert seen[0][1] == model.table()
