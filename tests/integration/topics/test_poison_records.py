"""Records that fail to deserialize, process or produce: handlers decide, and each offset counts."""

import json
from typing import Any, Final

import pytest

from tests.fakes.record_batch import produce_raw
from tests.integration.cluster import Cluster, Received, until
from tests.integration.conftest import StartApp
from tests.integration.outcome import wait_for_counts
from tidewheel import (
    DeadLetter,
    ErrorContext,
    ErrorResponse,
    KafkaStreams,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
)
from tidewheel.rebalance.model import TopicPartition

_GUARANTEES: Final = ["exactly_once", "at_least_once"]

#: Size limit of the small output topic (bytes); the other one has Kafka's default, about 1 MB.
_SMALL: Final = 20_000

_POISON: Final = {
    "bad JSON": (b"{no json", "deserialization"),
    "failing function": (b'{"do": "raise"}', "processing"),
    "unserialisable result": (b'{"do": "object"}', "production"),
    "larger than the topic accepts": (b'{"grow": 30000}', "production"),
    "larger than a client sends": (b'{"grow": 3000000, "to": "default"}', "production"),
}

_HANDLERS: Final = (
    "deserialization_exception_handler",
    "processing_exception_handler",
    "production_exception_handler",
)


class _Unserialisable:
    """A type without a serde."""


def _work(value: dict[str, Any]) -> Any:
    if value.get("do") == "raise":
        raise ValueError("this record is refused by the function")
    if value.get("do") == "object":
        return {"result": _Unserialisable()}
    return {"n": value.get("n"), "pad": "x" * value.get("grow", 0)}


def _topology(unique: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream(f"in-{unique}", key_serde=Serdes.string(), value_serde=Serdes.json())
    stream.group_by_key().count(store="read")
    outputs = stream.split({"default": lambda value: value.get("to") == "default"}, default="small")
    for name, output in outputs.items():
        output.map_values(_work).to(
            f"{name}-{unique}", key_serde=Serdes.string(), value_serde=Serdes.json()
        )
    return builder


@pytest.fixture
def source(cluster: Cluster, unique: str) -> TopicPartition:
    """One input partition, outputs of one, and a dead-letter topic with the broker's defaults."""
    cluster.create({f"in-{unique}": 1, f"default-{unique}": 1, f"dead-{unique}": 1})
    cluster.create({f"small-{unique}": 1}, max_message_bytes=str(_SMALL))
    return TopicPartition(f"in-{unique}", 0)


def _good(numbers: range) -> list[tuple[bytes, bytes]]:
    return [(b"key", json.dumps({"n": number}).encode()) for number in numbers]


def _numbers(cluster: Cluster, topic: str) -> list[int]:
    return [json.loads(record.value or b"")["n"] for record in cluster.read(topic)]


def _assert_read(app: KafkaStreams, count: int) -> None:
    assert {key: row.value for key, row in wait_for_counts(app, "read", count).items()} == {
        "key": count
    }


@pytest.mark.fault("32")
@pytest.mark.fault("33")
@pytest.mark.parametrize(
    ("guarantee", "poison"),
    [
        *(("exactly_once", poison) for poison in _POISON),
        # at_least_once differs only in the time of sending sink records.
        ("at_least_once", "failing function"),
        ("at_least_once", "larger than the topic accepts"),
    ],
)
def test_fail_stops_at_the_record_and_a_restart_continues_there(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    guarantee: str,
    poison: str,
) -> None:
    config["processing_guarantee"] = guarantee
    application_id = config["application_id"]
    data, stage = _POISON[poison]
    cluster.send(source.topic, _good(range(20)))
    strict = config | {"dead_letter_queue_topic": f"dead-{unique}"}
    app = start_app(_topology(unique), strict)
    cluster.wait_until_consumed(application_id, source.topic)
    cluster.send(source.topic, [*_good(range(20, 25)), (b"key", data), *_good(range(25, 30))])

    until(lambda: app.error is not None, "the application ends with an error")

    error = app.error
    assert isinstance(error, RecordFailedError)
    assert (error.topic, error.partition, error.offset) == (*source, 25)
    assert f"{source} offset 25" in str(error)
    assert f"--set {stage}_exception_handler=continue" in str(error)
    assert "grow" not in str(error), "the record itself is not shown"
    assert 20 <= cluster.committed(application_id)[source] <= 25
    app.close()
    # The transaction carries the dead letter together with the record's other output.
    letters = [letter.value for letter in cluster.read(f"dead-{unique}")]
    assert letters == ([] if guarantee == "exactly_once" else [data])

    lenient = config | dict.fromkeys(_HANDLERS, "continue")
    app = start_app(_topology(unique), lenient)
    cluster.wait_until_consumed(application_id, source.topic)
    _assert_read(app, 30 if stage == "deserialization" else 31)
    output = _numbers(cluster, f"small-{unique}")
    if guarantee == "exactly_once":
        assert output == list(range(30))
    else:
        # Output sent before the worker failed appears twice.
        assert sorted(set(output)) == list(range(30))
    assert cluster.read(f"default-{unique}") == []


@pytest.mark.fault("32")
@pytest.mark.fault("33")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_continue_with_dead_letters_passes_each_offset_once(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    guarantee: str,
) -> None:
    """Good records arrive; each bad one has one dead letter with Kafka Streams' headers."""
    config |= dict.fromkeys(_HANDLERS, "continue")
    config |= {"processing_guarantee": guarantee, "dead_letter_queue_topic": f"dead-{unique}"}
    kinds = [data for data, _ in _POISON.values()]
    sent = []
    for index, data in enumerate(kinds):
        sent += [*_good(range(index * 3, index * 3 + 3)), (b"key", data)]
    half = 10
    cluster.send(source.topic, sent[:half], headers=(("trace", b"t-1"),))
    app = start_app(_topology(unique), config)
    cluster.wait_until_consumed(config["application_id"], source.topic)
    assert app.close(timeout=30_000)
    cluster.send(source.topic, sent[half:], headers=(("trace", b"t-1"),))

    app = start_app(_topology(unique), config)
    cluster.wait_until_consumed(config["application_id"], source.topic)

    assert _numbers(cluster, f"small-{unique}") == list(range(15))
    assert cluster.read(f"default-{unique}") == []
    _assert_read(app, len(sent) - 1)
    # Operators fail in any order, so letters of one batch come in any order.
    letters = sorted(cluster.read(f"dead-{unique}"), key=_offset)
    assert [_offset(letter) for letter in letters] == [3, 7, 11, 15, 19]
    for letter in letters:
        headers = dict(letter.headers)
        assert set(headers) == {
            "trace",
            "__streams.errors.exception",
            "__streams.errors.message",
            "__streams.errors.stacktrace",
            "__streams.errors.topic",
            "__streams.errors.partition",
            "__streams.errors.offset",
        }
        assert headers["trace"] == b"t-1"
        assert headers["__streams.errors.topic"] == source.topic.encode()
        assert headers["__streams.errors.partition"] == b"0"
        assert headers["__streams.errors.message"]
        assert letter.key == b"key"
    # The input's own bytes, also for an output beyond the broker's default limit.
    assert [letter.value for letter in letters] == kinds
    assert dict(letters[1].headers)["__streams.errors.exception"] == b"ValueError"
    assert b"_work" in (dict(letters[1].headers)["__streams.errors.stacktrace"] or b"")


@pytest.mark.fault("32")
def test_poison_of_one_task_holds_no_other_task_up(
    cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str
) -> None:
    cluster.create({f"in-{unique}": 2, f"default-{unique}": 1, f"dead-{unique}": 1})
    cluster.create({f"small-{unique}": 2})
    config |= dict.fromkeys(_HANDLERS, "continue")
    config |= {"dead_letter_queue_topic": f"dead-{unique}"}
    poison = [_POISON["bad JSON"][0], _POISON["failing function"][0]]
    app = start_app(_topology(unique), config)
    for number in range(0, 50, 5):
        bad = [(b"bad", data) for data in poison]
        cluster.send(f"in-{unique}", bad, partition=0)
        cluster.send(f"in-{unique}", _good(range(number, number + 5)), partition=1)
    cluster.wait_until_consumed(config["application_id"], f"in-{unique}")
    assert app.close(timeout=30_000)

    assert _numbers(cluster, f"small-{unique}") == list(range(50))
    letters = cluster.read(f"dead-{unique}")
    assert [letter.key for letter in letters] == [b"bad"] * 20
    assert sorted(map(_offset, letters)) == list(range(20))
    assert cluster.committed(config["application_id"]) == cluster.ends(f"in-{unique}")


def _offset(letter: Received) -> int:
    return int(dict(letter.headers)["__streams.errors.offset"] or b"")


@pytest.mark.fault("32")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_own_handler_decides_record_by_record(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    guarantee: str,
) -> None:
    seen: list[tuple[str, int | None, bytes | None]] = []

    def handle(context: ErrorContext, _record: object, _error: Exception) -> ErrorResponse:
        seen.append((context.stage, context.offset, context.raw_value))
        letter = DeadLetter(topic=f"dead-{unique}", key=b"mine", value=context.raw_value)
        return ErrorResponse(action="continue", dead_letter_records=(letter,))

    config |= dict.fromkeys(_HANDLERS, handle) | {"processing_guarantee": guarantee}
    poison = _POISON["failing function"][0]
    large = _POISON["larger than a client sends"][0]
    sent = [*_good(range(2)), (b"key", poison), *_good(range(2, 4)), (b"key", large)]
    cluster.send(source.topic, sent)
    start_app(_topology(unique), config)
    cluster.wait_until_consumed(config["application_id"], source.topic)

    assert sorted(seen) == [("processing", 2, poison), ("production", 5, large)]
    assert _numbers(cluster, f"small-{unique}") == list(range(4))
    letters = cluster.read(f"dead-{unique}")
    assert sorted((letter.key, letter.value) for letter in letters) == sorted(
        [(b"mine", poison), (b"mine", large)]
    )


@pytest.mark.fault("33")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_state_that_does_not_fit_its_changelog_is_never_skipped(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    guarantee: str,
) -> None:
    config |= dict.fromkeys(_HANDLERS, "continue")
    config |= {"processing_guarantee": guarantee}

    def topology() -> StreamsBuilder:
        builder = StreamsBuilder()
        builder.stream(
            source.topic, key_serde=Serdes.string(), value_serde=Serdes.json()
        ).group_by_key().aggregate(
            str, lambda _key, value, _text: "x" * value.get("grow", 1), store="texts",
            value_serde=Serdes.string(),
        )  # fmt: skip
        return builder

    app = start_app(topology(), config)
    cluster.send(source.topic, _good(range(3)))
    cluster.wait_until_consumed(config["application_id"], source.topic)
    cluster.send(source.topic, [(b"key", b'{"grow": 2000000}')])

    until(lambda: app.error is not None, "the application ends with an error")

    assert isinstance(app.error, RecordFailedError)
    assert f"{config['application_id']}-texts-changelog" in str(app.error)
    assert "never skipped" in str(app.error)
    assert cluster.committed(config["application_id"])[source] == 3
    changelog = cluster.folded(f"{config['application_id']}-texts-changelog")
    assert {key: value for key, (value, _) in changelog.items()} == {b"key": b"x"}


_TWO_MB: Final = 2_000_000
#: Input record 3 of seven, and the topic that refuses what becomes of it.
_OVERSIZED: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "input": ({"pad": "x" * _TWO_MB}, "default-{}"),
    "output": ({"output": _TWO_MB}, "default-{}"),
    "state": ({"state": _TWO_MB}, "app-{}-texts-changelog"),
}


def _sizes(unique: str) -> StreamsBuilder:
    """Return a topology that copies `pad`, and grows its output and its state as a record asks."""
    builder = StreamsBuilder()
    text, data = Serdes.string(), Serdes.json()
    stream = builder.stream(f"in-{unique}", key_serde=text, value_serde=data)
    stream.group_by_key().aggregate(
        str, lambda _key, value, _text: "x" * value.get("state", 1), store="texts",
        value_serde=text,
    )  # fmt: skip
    stream.map_values(lambda value: value | {"more": "x" * value.get("output", 0)}).to(
        f"default-{unique}", key_serde=text, value_serde=data
    )
    return builder


#: Aborted transactions with records, for each start that ends because of a state.
_ABORTS: Final = 1


class _Oversized:
    """Seven records, the fourth too large; a topology under these settings meets it."""

    def __init__(
        self, cluster: Cluster, start_app: StartApp, config: dict[str, Any], unique: str, kind: str
    ) -> None:
        self.changes, topic = _OVERSIZED[kind]
        self.topic = topic.format(unique)
        self.letters = f"dead-{unique}"
        self.source = TopicPartition(f"in-{unique}", 0)
        self.output = f"default-{unique}"
        self.changelog = f"{config['application_id']}-texts-changelog"
        self._cluster, self._unique, self._start_app = cluster, unique, start_app
        self._config = config
        cluster.create({self.letters: 1}, max_message_bytes="3000000")
        # Internal topics accept what the input topics accept.
        limit = {"max_message_bytes": "3000000"} if kind == "input" else {}
        cluster.create({self.source.topic: 1}, **limit)
        cluster.create({self.output: 1})
        self.start()
        cluster.send(self.source.topic, _good(range(3)))
        self.wait()
        self.bad = json.dumps({"n": 3} | self.changes).encode()
        # Under a key of its own: of each key only the last state of a commit is written.
        cluster.send(self.source.topic, [(b"large", self.bad), *_good(range(4, 7))])

    def start(self) -> KafkaStreams:
        self.app = self._start_app(_sizes(self._unique), self._config)
        return self.app

    def wait(self) -> None:
        self._cluster.wait_until_consumed(self._config["application_id"], self.source.topic)

    def until_failed(self) -> RecordFailedError:
        until(lambda: self.app.error is not None, "the application ends with an error")
        assert isinstance(self.app.error, RecordFailedError)
        return self.app.error

    def assert_clean(self, aborts: int = 0) -> None:
        """Check that no transaction was aborted, or not more than some.

        An input and an output are checked before a transaction has a record. A state is refused by
        the broker; the worker then tries that row alone, and ends.
        """
        assert self._cluster.aborted(self.output) <= 4 * aborts
        assert self._cluster.aborted(self.changelog) <= 4 * aborts


@pytest.mark.fault("33")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
@pytest.mark.parametrize("kind", _OVERSIZED)
def test_a_record_of_2_MB_ends_the_application_and_passes_when_the_topic_accepts_it(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    guarantee: str,
    kind: str,
) -> None:
    config |= {"processing_guarantee": guarantee}
    oversized = _Oversized(cluster, start_app, config, unique, kind)
    aborts_per_start = _ABORTS if kind == "state" else 0
    for starts in (1, 2):
        error = oversized.until_failed()
        if kind != "state":  # a record of a changelog stands for all records of a commit
            assert (error.topic, error.partition, error.offset) == (*oversized.source, 3)
        assert oversized.topic in str(error)
        assert cluster.committed(config["application_id"])[oversized.source] == 3
        oversized.assert_clean(starts * aborts_per_start)
        oversized.start()

    oversized.until_failed()
    cluster.configure(oversized.topic, max_message_bytes="3000000")
    oversized.start()
    oversized.wait()
    numbers = _numbers(cluster, oversized.output)
    if guarantee == "exactly_once":
        assert numbers == list(range(7))
    assert set(numbers) == set(range(7))
    oversized.assert_clean(3 * aborts_per_start)


@pytest.mark.fault("33")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_record_of_2_MB_is_skipped_in_a_clean_transaction(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    guarantee: str,
    kind: str,
) -> None:
    config |= {
        "processing_guarantee": guarantee,
        "production_exception_handler": "continue",
        "dead_letter_queue_topic": f"dead-{unique}",
    }
    oversized = _Oversized(cluster, start_app, config, unique, kind)
    oversized.wait()
    assert _numbers(cluster, oversized.output) == [0, 1, 2, 4, 5, 6]
    (letter,) = cluster.read(oversized.letters)
    assert (_offset(letter), letter.value) == (3, oversized.bad)
    oversized.assert_clean()
    assert oversized.app.close(timeout=30_000)
    assert oversized.app.error is None


@pytest.mark.fault("33")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_topic_that_shrank_its_limit_loses_no_other_record(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    guarantee: str,
) -> None:
    """A record that only the broker refuses, in the middle of a batch, is skipped alone.

    Under at_least_once later records of its key may repeat, and the last one stays last.
    """
    config |= dict.fromkeys(_HANDLERS, "continue")
    config |= {"processing_guarantee": guarantee, "dead_letter_queue_topic": f"dead-{unique}"}
    cluster.send(source.topic, _good(range(5)))
    app = start_app(_topology(unique), config)  # it has read the topic's limit by the time ...
    cluster.wait_until_consumed(config["application_id"], source.topic)
    cluster.configure(f"small-{unique}", max_message_bytes="3000")

    large = (b"key", b'{"n": -1, "grow": 10000}')
    cluster.send(source.topic, [*_good(range(5, 50)), large, *_good(range(50, 95))])
    cluster.wait_until_consumed(config["application_id"], source.topic)

    numbers = _numbers(cluster, f"small-{unique}")
    assert numbers[-1] == 94
    if guarantee == "at_least_once":
        numbers = list(set(numbers))
    assert sorted(numbers) == list(range(95))
    (letter,) = cluster.read(f"dead-{unique}")
    assert (_offset(letter), letter.key, letter.value) == (50, *large)
    _assert_read(app, 96)


@pytest.mark.fault("32")
def test_header_names_that_are_no_text_stop_nothing(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clients in other languages may write any bytes as a header's name."""
    cluster.send(source.topic, _good(range(2)), headers=(("trace", b"t-1"),))
    values = [value for _, value in _good(range(2, 5))]
    names = [b"trace", b"\xff\xfe", b"trace"]
    produce_raw(
        cluster.bootstrap_servers,
        source,
        [(b"key", value, [(name, b"t-2")]) for name, value in zip(names, values, strict=True)],
    )
    cluster.send(source.topic, _good(range(5, 7)), headers=(("trace", b"t-3"),))
    app = start_app(_topology(unique), config)
    cluster.wait_until_consumed(config["application_id"], source.topic)

    _assert_read(app, 7)
    output = cluster.read(f"small-{unique}")
    assert [json.loads(record.value or b"")["n"] for record in output] == list(range(7))
    assert [dict(record.headers).get("trace") for record in output] == [
        *(b"t-1", b"t-1", b"t-2", None, b"t-2", b"t-3", b"t-3")
    ]
    assert f"{source} offset 3" in caplog.text
