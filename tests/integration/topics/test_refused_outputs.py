"""Outputs that the broker refuses: exactly those are missing, in any batch."""

import json
import random
import time
from collections import Counter
from typing import Any, Final

import pytest

from tests.integration.cluster import Cluster, until
from tests.integration.conftest import StartApp
from tidewheel import (
    DeadLetter,
    ErrorContext,
    ErrorResponse,
    RecordFailedError,
    Serdes,
    StreamsBuilder,
)
from tidewheel.rebalance.model import TopicPartition

_GUARANTEES: Final = ["exactly_once", "at_least_once"]
_DAY_MS: Final = 86_400_000

#: Input of a refused record: (key, age of the record in days, size), by output topic.
_BAD: Final = {"keyed": (None, 0, 1), "dated": (b"k", 30, 1), "small": (b"k", 0, 20_000)}


@pytest.fixture
def source(cluster: Cluster, unique: str) -> TopicPartition:
    cluster.create({f"in-{unique}": 1, f"dead-{unique}": 1})
    cluster.create({f"keyed-{unique}": 2}, cleanup_policy="compact")
    cluster.create({f"dated-{unique}": 2}, message_timestamp_before_max_ms=str(_DAY_MS))
    cluster.create({f"small-{unique}": 2}, max_message_bytes="10000")
    return TopicPartition(f"in-{unique}", 0)


def _topology(unique: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream(
        f"in-{unique}",
        key_serde=Serdes.bytes(),
        value_serde=Serdes.json(),
        timestamp_extractor=lambda record, _: record.value["time"],
    ).to(lambda _key, value, _context: f"{value['to']}-{unique}")
    return builder


def _records(
    rnd: random.Random, count: int, bad: int, kinds: list[str]
) -> tuple[list[tuple[bytes | None, bytes]], list[int]]:
    now_ms = time.time_ns() // 1_000_000
    places = sorted(rnd.sample(range(count), bad))
    records: list[tuple[bytes | None, bytes]] = []
    for number in range(count):
        to = rnd.choice(kinds)
        key, days, size = _BAD[to] if number in places else (b"k%d" % rnd.randrange(50), 0, 1)
        value = {"n": number, "to": to, "time": now_ms - days * _DAY_MS, "pad": "x" * size}
        records.append((key, json.dumps(value).encode()))
    return records, places


def _written(cluster: Cluster, unique: str) -> Counter[int]:
    return Counter(
        json.loads(record.value or b"")["n"]
        for name in _BAD
        for record in cluster.read(f"{name}-{unique}")
    )


def _in_order(cluster: Cluster, unique: str) -> bool:
    for name in _BAD:
        for values in cluster.values_by_key(f"{name}-{unique}").values():
            numbers = [json.loads(value or b"")["n"] for value in values]
            if numbers[-1] != max(numbers):
                return False
    return True


@pytest.mark.fault("48")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_only_the_refused_records_are_missing(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    guarantee: str,
) -> None:
    rnd = random.Random(30)
    config |= {
        "processing_guarantee": guarantee,
        "production_exception_handler": "continue",
        "dead_letter_queue_topic": f"dead-{unique}",
    }
    # Alone in its batch, one of many, and many together.
    first = [_records(rnd, 4, 1, ["keyed"]), _records(rnd, 500, 1, ["dated"])]
    records, places = _records(rnd, 1_500, 25, ["keyed", "dated", "small"])
    for sent, _ in first:
        cluster.send(source.topic, sent)
    cluster.send(source.topic, records)
    refused = [first[0][1][0], 4 + first[1][1][0], *(504 + place for place in places)]
    bad_records = {
        json.loads(sent[place][1])["n"] + before
        for before, (sent, those) in zip((0, 4, 504), (*first, (records, places)), strict=True)
        for place in those
    }
    assert bad_records == set(refused)

    app = start_app(_topology(unique), config)
    cluster.wait_until_consumed(config["application_id"], source.topic)

    expected = Counter(
        json.loads(value)["n"]
        for sent, those in (*first, (records, places))
        for place, (_, value) in enumerate(sent)
        if place not in those
    )
    written = _written(cluster, unique)
    if guarantee == "exactly_once":
        assert written == expected
    else:
        assert set(written) == set(expected)
        assert all(written[number] >= count for number, count in expected.items())
    letters = [
        int(dict(letter.headers)["__streams.errors.offset"] or b"")
        for letter in cluster.read(f"dead-{unique}")
    ]
    assert sorted(letters) == refused
    assert app.metrics()["tasks"]["0_0"]["skipped-records-total"] == len(refused)


@pytest.mark.fault("48")
@pytest.mark.parametrize("guarantee", _GUARANTEES)
def test_the_handler_receives_only_refused_records_and_fail_names_the_first(
    cluster: Cluster,
    start_app: StartApp,
    config: dict[str, Any],
    unique: str,
    source: TopicPartition,
    guarantee: str,
) -> None:
    rnd = random.Random(31)
    config["processing_guarantee"] = guarantee
    records, places = _records(rnd, 600, 5, ["keyed", "dated"])
    cluster.send(source.topic, records)

    app = start_app(_topology(unique), config)
    until(lambda: app.error is not None, "the application ends with an error")
    assert isinstance(app.error, RecordFailedError)
    assert (app.error.topic, app.error.partition, app.error.offset) == (*source, places[0])
    app.close()

    asked: list[int] = []

    def handle(context: ErrorContext, _record: object, _error: Exception) -> ErrorResponse:
        assert context.offset is not None
        asked.append(context.offset)
        letter = DeadLetter(topic=f"dead-{unique}", key=b"mine", value=context.raw_value)
        return ErrorResponse(action="continue", dead_letter_records=(letter,))

    start_app(_topology(unique), config | {"production_exception_handler": handle})
    cluster.wait_until_consumed(config["application_id"], source.topic)
    assert sorted(asked) == places
    written = _written(cluster, unique)
    assert set(written) == set(range(600)) - set(places)
    assert guarantee == "at_least_once" or max(written.values()) == 1
    assert _in_order(cluster, unique)
    letters = [json.loads(record.value or b"")["n"] for record in cluster.read(f"dead-{unique}")]
    assert sorted(letters) == places
