"""Registry serdes: Confluent's wire format over real HTTP, and registries without an answer."""

import copy
import json
import logging
import struct
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from google.protobuf import (  # type: ignore[import-untyped]  # its stubs are a package of their own
    duration_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from tests.fakes.protobuf import LONG, TEXT, message_types
from tests.fakes.schema_registry import SchemaRegistry, schema_registry
from tidewheel import (
    ConfigError,
    RecordFailedError,
    SchemaRegistryError,
    Serde,
    Serdes,
    SerializationError,
    StreamsBuilder,
    StreamsConfig,
    TopologyError,
)
from tidewheel.streams.kafka.registry.schema_registry import FORMATS
from tidewheel.streams.serdes.serde import for_keys
from tidewheel.testing import TopologyTestDriver

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "cents", "type": "long"}]}
NEWER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "cents", "type": "long"}, {"name": "city", "type": "string", "default": "Ulm"}],
}  # fmt: skip
INCOMPATIBLE = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "cents", "type": "long"}, {"name": "city", "type": "string"}],
}
JSON_ORDER = {"title": "Order", "type": "object", "required": ["cents"], "properties": {"cents": {"type": "integer"}}}  # fmt: skip
PROTO = message_types("orders.proto", Order=[("cents", LONG)], Payment=[("cents", LONG)])


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


def impatient(registry: SchemaRegistry, **settings: Any) -> dict[str, Any]:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return {"url": registry.url, "retries.wait.ms": 1, "retries.max.wait.ms": 1, **names}


def framed(schema_id: int, payload: bytes) -> bytes:
    """Bytes of Java's serialisers."""
    return b"\x00" + struct.pack(">I", schema_id) + payload


@pytest.mark.parametrize(
    ("make", "value", "payload"),
    [
        (lambda url: Serdes.avro(ORDER, url), {"cents": 5}, b"\x0a"),
        (lambda url: Serdes.json_schema(JSON_ORDER, url), {"cents": 5}, b'{"cents":5}'),
        # One zero for a file's first message, else the count and the zig-zag indexes.
        (lambda url: Serdes.protobuf(PROTO["Order"], url), PROTO["Order"](cents=5), b"\x00\x08\x05"),
        (lambda url: Serdes.protobuf(PROTO["Payment"], url), PROTO["Payment"](cents=5), b"\x02\x02\x08\x05"),
        (lambda url: Serdes.protobuf(PROTO["Payment.Inner"], url), PROTO["Payment.Inner"](), b"\x04\x02\x00"),
    ],
    ids=["avro", "json_schema", "protobuf-first", "protobuf-second", "protobuf-nested"],
)  # fmt: skip
def test_bytes_have_the_wire_format_of_confluent(
    registry: SchemaRegistry, make: Any, value: Any, payload: bytes
) -> None:
    serde: Serde[Any] = make(registry.url)

    data = serde.serialize("orders", value)

    assert data == framed(1, payload)
    assert serde.deserialize("orders", data) == value
    assert serde.serialize_batch("orders", [value, value]) == [data, data]
    assert serde.deserialize_batch("orders", [data]) == [value]


def test_a_schema_is_requested_once(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(ORDER, registry.url)
    for cents in range(20):
        serde.deserialize("orders", serde.serialize("orders", {"cents": cents}) or b"")

    assert len(registry.requests) <= 3
    assert registry.subjects == {"orders-value": [1]}


def test_keys_have_a_separate_subject(registry: SchemaRegistry) -> None:
    key = {"type": "record", "name": "Id", "fields": [{"name": "id", "type": "long"}]}
    id_serde, order_serde = Serdes.avro(key, registry.url), Serdes.avro(ORDER, registry.url)
    builder = StreamsBuilder()
    orders = builder.stream("orders", key_serde=id_serde, value_serde=order_serde)
    totals = orders.group_by_key().reduce(lambda old, _new: old, store="last")
    totals.to_stream().to("totals")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("orders", key_serde=id_serde, value_serde=order_serde)
        output = driver.create_output_topic("totals", key_serde=id_serde, value_serde=order_serde)
        source.pipe_input({"id": 1}, {"cents": 7})
        assert output.read_key_values() == [({"id": 1}, {"cents": 7})]

    topics = {subject.rpartition("-")[0] for subject in registry.subjects}
    assert {"orders", "totals"} <= topics
    assert any(topic.endswith("last-changelog") for topic in topics)
    for topic in topics:
        assert registry.subjects[f"{topic}-key"] == [1 + registry.schemas.index(_kept(key))]
        assert registry.subjects[f"{topic}-value"] == [1 + registry.schemas.index(_kept(ORDER))]


def _kept(schema: dict[str, Any]) -> dict[str, str]:
    return {"schema": json.dumps(schema)}


def test_a_foreign_key_join_with_a_registry(registry: SchemaRegistry) -> None:
    key = Serdes.avro({"type": "string"}, registry.url)
    order_serde = Serdes.avro(ORDER, registry.url)
    builder = StreamsBuilder()
    orders = builder.table("orders", key_serde=key, value_serde=order_serde)
    users = builder.table("users", key_serde=key, value_serde=key)
    buyers = orders.join(users, lambda _, user: user, foreign_key=lambda order: str(order["cents"]))
    buyers.to_stream().to("out", value_serde=key)
    with TopologyTestDriver(builder.build()) as driver:
        output = driver.create_output_topic("out", key_serde=key, value_serde=key)
        driver.create_input_topic("users", key_serde=key, value_serde=key).pipe_input("5", "Ann")
        source = driver.create_input_topic("orders", key_serde=key, value_serde=order_serde)
        source.pipe_input("o1", {"cents": 5})
        assert output.read_key_values() == [("o1", "Ann")]

    text = 1 + registry.schemas.index({"schema": '{"type": "string"}'})
    assert {registry.subjects[name][0] for name in registry.subjects if name.endswith("-key")} == {
        text
    }
    assert not any(name.endswith(("-pk-value", "-fk-value")) for name in registry.subjects)


def test_a_subjects_own_id_is_written(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(ORDER, "mock://ids-per-subject")

    first = serde.serialize("a", {"cents": 1})
    serde.serialize("b", {"cents": 1})

    assert serde.serialize("a", {"cents": 1}) == first
    assert registry.requests == []


def test_older_and_newer_records_are_read(registry: SchemaRegistry) -> None:
    old, new = Serdes.avro(ORDER, registry.url), Serdes.avro(NEWER, registry.url)
    from_old = old.serialize("orders", {"cents": 1}) or b""
    from_new = new.serialize("orders", {"cents": 2, "city": "Bonn"}) or b""

    assert new.deserialize("orders", from_old) == {"cents": 1, "city": "Ulm"}
    assert old.deserialize("orders", from_new) == {"cents": 2}


def test_protobuf_messages_evolve(registry: SchemaRegistry) -> None:
    newer = message_types("orders.proto", Order=[("cents", LONG), ("city", TEXT)])["Order"]
    old, new = Serdes.protobuf(PROTO["Order"], registry.url), Serdes.protobuf(newer, registry.url)
    from_old = old.serialize("orders", PROTO["Order"](cents=1)) or b""
    from_new = new.serialize("orders", newer(cents=2, city="Bonn")) or b""

    assert new.deserialize("orders", from_old) == newer(cents=1)
    assert old.deserialize("orders", from_new).cents == 2


def test_an_incompatible_schema_stops_the_worker(registry: SchemaRegistry) -> None:
    Serdes.avro(ORDER, registry.url).serialize("orders", {"cents": 1})
    serde = Serdes.avro(INCOMPATIBLE, registry.url)

    with pytest.raises(
        SchemaRegistryError, match=r"topic 'orders': HTTP 409.*make the schema compatible"
    ):
        serde.serialize("orders", {"cents": 1, "city": "Bonn"})


def test_an_unknown_id_is_a_record_error(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(ORDER, registry.url)

    with pytest.raises(SerializationError, match=r"schema 77 is not in schema registry http://127"):
        serde.deserialize("orders", framed(77, b"\x0a"))


def test_a_server_that_is_no_registry_is_not_a_record_error(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(ORDER, f"{registry.url}/wrong")

    with pytest.raises(SchemaRegistryError, match="HTTP 404"):
        serde.deserialize("orders", framed(1, b"\x0a"))


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\x01", b"plain text", b"\x05" * 9])
def test_bytes_without_an_id_are_refused(registry: SchemaRegistry, data: bytes) -> None:
    with pytest.raises(
        SerializationError, match=f"{len(data)} bytes, they do not begin with a schema's id"
    ):
        Serdes.avro(ORDER, registry.url).deserialize("orders", data)

    assert registry.requests == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_temporary_failures_are_retried(registry: SchemaRegistry, status: int) -> None:
    registry.answers = [status, status]
    serde = Serdes.avro(ORDER, impatient(registry))

    assert serde.serialize("orders", {"cents": 5}) == framed(1, b"\x0a")


def test_a_permanent_failure_names_the_registry(registry: SchemaRegistry) -> None:
    registry.answers = [503] * 20
    serde = Serdes.avro(ORDER, impatient(registry))

    with pytest.raises(
        SchemaRegistryError, match=r"^schema registry http://127.*topic 'orders': HTTP 503"
    ):
        serde.serialize("orders", {"cents": 5})
    assert len(registry.requests) == 4


def test_the_error_of_a_refused_client_names_the_credentials(registry: SchemaRegistry) -> None:
    registry.answers = [401]

    with pytest.raises(SchemaRegistryError, match=r"HTTP 401.*basic\.auth\.user\.info"):
        Serdes.avro(ORDER, impatient(registry)).serialize("orders", {"cents": 5})
    assert len(registry.requests) == 1


def stopped() -> dict[str, Any]:
    with schema_registry() as running:
        pass
    return impatient(running)


@pytest.mark.parametrize("handler", ["fail", "continue"])
def test_no_record_is_skipped_while_the_registry_is_down(handler: str) -> None:
    serde = Serdes.avro(ORDER, stopped())
    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=serde).to("out", value_serde=Serdes.json())
    config = StreamsConfig(application_id="shop", deserialization_exception_handler=handler)
    with TopologyTestDriver(builder.build(), config) as driver:
        source = driver.create_input_topic("orders", key_serde=str, value_serde=bytes)
        with pytest.raises(
            SchemaRegistryError, match=r"can't be reached .*start it, or correct registry="
        ):
            source.pipe_input("a", framed(1, b"\x0a"))


def test_outputs_wait_for_the_registry_as_well() -> None:
    serde = Serdes.avro(ORDER, stopped())
    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=Serdes.json()).to("out", value_serde=serde)
    config = StreamsConfig(application_id="shop", production_exception_handler="continue")
    with TopologyTestDriver(builder.build(), config) as driver:
        source = driver.create_input_topic("orders", key_serde=str, value_serde=Serdes.json())
        with pytest.raises(SchemaRegistryError):
            source.pipe_input("a", {"cents": 5})


def test_a_bad_record_is_passed_to_its_handler(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(ORDER, registry.url)
    good = serde.serialize("orders", {"cents": 5}) or b""
    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=serde).to("out", value_serde=Serdes.json())
    for handler in ("continue", "fail"):
        config = StreamsConfig(application_id="shop", deserialization_exception_handler=handler)
        with TopologyTestDriver(builder.build(), config) as driver:
            source = driver.create_input_topic("orders", key_serde=str, value_serde=bytes)
            output = driver.create_output_topic("out", key_serde=str, value_serde=Serdes.json())
            if handler == "fail":
                with pytest.raises(RecordFailedError, match="schema 9 is not in"):
                    source.pipe_input("a", framed(9, b"\x0a"))
                continue
            source.pipe_key_values([("a", framed(9, b"\x0a")), ("b", b"?"), ("c", good)])
            assert output.read_key_values() == [("c", {"cents": 5})]


SECRET = "canary-7391"  # noqa: S105 - must not be shown


@pytest.mark.parametrize("form", ["in the URL", "in the second URL", "property", "reference"])
def test_credentials_are_sent_and_never_shown(
    registry: SchemaRegistry, form: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("REGISTRY_USER", f"shop:{SECRET}")
    user: dict[str, str] = {
        "in the URL": {"url": registry.url.replace("//", f"//shop:{SECRET}@")},
        "in the second URL": {
            "url": f"{registry.url},{registry.url}".replace(",http://", f",http://shop:{SECRET}@")
        },
        "property": {"basic.auth.user.info": f"shop:{SECRET}"},
        "reference": {"basic.auth.user.info": "env:REGISTRY_USER"},
    }[form]
    settings = {**impatient(registry), **user}
    with caplog.at_level(logging.DEBUG):
        serde = Serdes.avro(ORDER, settings)
        assert serde.serialize("orders", {"cents": 5}) == framed(1, b"\x0a")
        registry.answers = [401]
        with pytest.raises(SchemaRegistryError) as refused:
            serde.serialize("other", {"cents": 5})
    port = f":{urlsplit(registry.url).port}"
    stopped_url = {**settings, "url": settings["url"].replace(port, ":1")}
    with pytest.raises(SchemaRegistryError) as unreachable:
        Serdes.avro(ORDER, stopped_url).serialize("orders", {"cents": 5})

    assert registry.authorizations[0] == "Basic c2hvcDpjYW5hcnktNzM5MQ=="
    for caught in (refused, unreachable):
        assert SECRET not in repr(caught.getrepr(style="long"))
    assert SECRET not in repr(serde) + caplog.text


def test_a_missing_secret_is_named(registry: SchemaRegistry) -> None:
    with pytest.raises(ConfigError, match="'NO_SUCH_VARIABLE' is not set"):
        Serdes.avro(ORDER, {"url": registry.url, "basic.auth.user.info": "env:NO_SUCH_VARIABLE"})


def test_schemas_need_not_be_registered_by_the_program(registry: SchemaRegistry) -> None:
    careful = Serdes.avro(ORDER, impatient(registry, auto_register_schemas=False))
    with pytest.raises(SchemaRegistryError, match=r"HTTP 404.*register the schema"):
        careful.serialize("orders", {"cents": 5})
    Serdes.avro(ORDER, registry.url).serialize("orders", {"cents": 5})

    assert careful.serialize("orders", {"cents": 5}) == framed(1, b"\x0a")


def test_a_client_of_the_user_is_used(registry: SchemaRegistry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    serde = Serdes.avro(ORDER, client)

    assert serde.serialize("orders", {"cents": 5}) == framed(1, b"\x0a")
    assert serde is Serdes.avro(ORDER, client)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("localhost:8081", "not begin with http"),
        ({"basic.auth.user.info": "a:b"}, "not begin with http"),
        ({"url": "http://r", "no.such": 1}, "Unrecognized properties: no.such"),
        ({"url": "http://r", "use.latest.version": "yes"}, "use.latest.version must be a boolean"),
        (5, "of type int; give its URL"),
        (f"http://a:1,me:{SECRET}@b:2", "not begin with http"),
        (f"http://me:{SECRET}@a:1,http://you:{SECRET}@b:2", "URLs of different users"),
        (f"http://me:{SECRET}@[a", "can't be parsed"),
    ],
)
def test_bad_settings_are_refused_at_build_time(given: Any, reason: str) -> None:
    with pytest.raises(TopologyError, match=reason) as caught:
        Serdes.avro(ORDER, given)
    assert SECRET not in repr(caught.getrepr(style="long"))


@pytest.mark.parametrize(
    ("make", "bad", "reason"),
    [
        (lambda url: Serdes.avro(ORDER, url), {"cents": "canary"}, r"at Order\.cents: expected long, got str"),
        (lambda url: Serdes.avro(ORDER, url), {"cents": 1, "x": "canary"}, "more fields than the schema specifies: x"),
        (lambda url: Serdes.json_schema(JSON_ORDER, url), {"cents": "canary"}, r"at \$\.cents: not as the schema's 'type'"),
        (lambda url: Serdes.json_schema(JSON_ORDER, url), {"cents": 1, "x": float("nan")}, r"\$\.x is nan"),
        (lambda url: Serdes.protobuf(PROTO["Order"], url), {"canary": 1}, "expected Order, got dict"),
        (lambda url: Serdes.protobuf(PROTO["Order"], url), PROTO["Payment"](), "expected Order, got Payment"),
    ],
)  # fmt: skip
def test_values_of_another_shape_are_refused(
    registry: SchemaRegistry, make: Any, bad: Any, reason: str
) -> None:
    with pytest.raises(SerializationError, match=reason) as caught:
        make(registry.url).serialize("orders", bad)

    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "payload"),
    [
        (lambda url: Serdes.avro(ORDER, url), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        (lambda url: Serdes.json_schema(JSON_ORDER, url), b'{"cents": "canary"}'),
        (lambda url: Serdes.json_schema(JSON_ORDER, url), b"{canary"),
        (lambda url: Serdes.protobuf(PROTO["Order"], url), b"\x00\xff"),
        (lambda url: Serdes.protobuf(PROTO["Order"], url), b"\x02\x0a\x08\x05"),
    ],
)
def test_payloads_of_another_shape_are_refused(
    registry: SchemaRegistry, make: Any, payload: bytes
) -> None:
    serde: Serde[Any] = make(registry.url)
    value = PROTO["Order"](cents=1) if "protobuf" in serde.name else {"cents": 1}
    serde.serialize("orders", value)

    with pytest.raises(SerializationError, match=f"{5 + len(payload)} bytes") as caught:
        serde.deserialize("orders", framed(1, payload))
    assert "canary" not in str(caught.value)


_EXECUTOR = """
import sys
from pyspark import cloudpickle
serdes = cloudpickle.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(b"".join(each.serialize("orders", {"cents": 5}) for each in serdes))
"""


@pytest.mark.spark
def test_a_serde_can_be_sent_to_executors(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    monkeypatch.setenv("REGISTRY_USER", "me:hunter2")
    settings = impatient(registry, basic_auth_user_info="env:REGISTRY_USER")
    serdes = [
        Serdes.avro(ORDER),
        Serdes.avro(ORDER, settings),
        Serdes.avro(ORDER, settings).for_keys(),
        Serdes.json_schema(JSON_ORDER, registry.url),
    ]
    wanted = b"".join(each.serialize("orders", {"cents": 5}) or b"" for each in serdes)

    carried = cloudpickle.dumps(serdes)  # type: ignore[no-untyped-call] # it has no types
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTOR], input=carried, capture_output=True, check=True
    )

    assert done.stdout == wanted
    assert b"hunter2" not in carried
    assert sorted(registry.subjects) == ["orders-key", "orders-value"]


def test_a_copy_of_a_serde_is_the_same_object(registry: SchemaRegistry) -> None:
    serde = Serdes.protobuf(PROTO["Order"], registry.url)
    assert copy.copy(serde) is serde
    assert copy.copy(serde.for_keys()) is serde.for_keys()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"basic.auth.user.info": "me:hunter2"},
            r"basic\.auth\.user\.info.* holds a secret.*env:NAME",
        ),
        ({"url": "http://me:hunter2@localhost:1"}, r"'url'.* holds a secret"),
        (
            {"bearer.auth.client.secret": "hunter2"},
            r"bearer\.auth\.client\.secret.* holds a secret",
        ),
    ],
)
def test_settings_with_secrets_can_not_be_sent(given: dict[str, str], told: str) -> None:
    settings = {"url": "http://localhost:1", "max.retries": 2, "timeout": 1, **given}
    with pytest.raises(TopologyError, match=told) as raised:
        FORMATS.portable_registry(settings)
    assert "hunter2" not in str(raised.value)


def test_a_serde_with_a_client_can_not_be_sent(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(ORDER, SchemaRegistryClient({"url": registry.url}))
    with pytest.raises(TopologyError, match=r"can't be sent to other processes.*give its URL"):
        copy.copy(serde)


MESSAGES = message_types("many.proto", Order=[("id", LONG)], Refund=[("id", LONG)])


@pytest.mark.parametrize(
    ("writer", "reader"),
    [("Refund", "Order"), ("Order", "Refund"), ("Order.Inner", "Order"), ("Order", "Order.Inner")],
)
def test_a_message_of_another_type_is_refused(writer: str, reader: str) -> None:
    written = Serdes.protobuf(MESSAGES[writer], "mock://messages")
    data = written.serialize("orders", MESSAGES[writer]())
    assert written.deserialize("orders", data or b"") == MESSAGES[writer]()

    with pytest.raises(
        SerializationError,
        match=rf"a shop\.{writer} wrote them, and this serde reads shop\.{reader}",
    ):
        Serdes.protobuf(MESSAGES[reader], "mock://messages").deserialize("orders", data or b"")


def test_an_avro_branch_that_fits_the_value_is_written_with_a_registry() -> None:
    schema = {
        "type": "record",
        "name": "N",
        "fields": [
            {"name": "n", "type": ["null", "double", "long"]},
            {"name": "f", "type": "float"},
        ],
    }
    serde = Serdes.avro(schema, "mock://branches")
    value = {"n": 2**53 + 1, "f": 1.5}

    assert serde.deserialize("t", serde.serialize("t", value) or b"") == value
    with pytest.raises(SerializationError, match=r"at N\.f: expected float"):
        serde.serialize("t", {"n": None, "f": 1e300})


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}


@pytest.mark.parametrize(
    ("schema", "value", "payload"),
    [
        ({"type": "record", "name": "Deleted", "fields": []}, {}, b""),
        ({"type": "record", "name": "Nulls", "fields": [{"name": "a", "type": "null"}]}, {"a": None}, b""),
        ({"type": "fixed", "name": "Empty", "size": 0}, b"", b""),
        ("bytes", b"", b""),
        ("bytes", b"abc", b"abc"),
        ({"type": "bytes"}, b"", b""),
        (DECIMAL, Decimal("1.10"), b"n"),
        (DECIMAL, Decimal("-9999.99"), b"\xf0\xbd\xc1"),
        (DECIMAL, Decimal("0.00"), b"\x00"),
        (["null", DECIMAL], Decimal("1.10"), b"\x02\x02n"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("is_key", [False, True], ids=["value", "key"])
def test_avro_values_of_few_bytes_are_read(
    registry: SchemaRegistry, schema: Any, value: Any, payload: bytes, is_key: bool
) -> None:
    text = json.dumps(schema)
    serde: Any = Serdes.avro(text, registry.url)
    serde = for_keys(serde) if is_key else serde

    data = serde.serialize("orders", value)

    assert data == framed(1, payload)
    assert serde.deserialize("orders", data) == value


def test_an_avro_value_without_its_bytes_is_refused(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(ORDER, registry.url)
    data = serde.serialize("orders", {"cents": 0}) or b""
    assert data == framed(1, b"\x00")

    with pytest.raises(SerializationError, match="5 bytes"):
        serde.deserialize("orders", data[:5])


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "skipped"])
def test_few_bytes_can_not_make_a_long_list(registry: SchemaRegistry, is_read: bool) -> None:
    """The writer's schema counts: fastavro also counts through a list that the reader lacks."""
    nulls = {"name": "nulls", "type": {"type": "array", "items": "null"}}
    wide = {**ORDER, "fields": [nulls, *ORDER["fields"]]}
    data = Serdes.avro(wide, registry.url).serialize("orders", {"nulls": [None], "cents": 1}) or b""
    serde = Serdes.avro(wide if is_read else ORDER, registry.url)
    assert serde.deserialize("orders", data) == ({"nulls": [None]} if is_read else {}) | {
        "cents": 1
    }

    damaged = framed(1, b"\x80" * 8 + b"\x01" + bytes(2))

    with pytest.raises(SerializationError, match="10000"):
        serde.deserialize("orders", damaged)


def test_a_decimal_that_does_not_fit_is_refused(registry: SchemaRegistry) -> None:
    serde = Serdes.avro(DECIMAL, registry.url)
    for bad in (Decimal("1.111"), Decimal(10**9), "1.10"):
        with pytest.raises(SerializationError, match=r"at \$: expected decimal\(6, 2\)"):
            serde.serialize("orders", bad)


def _struct() -> Any:
    made = struct_pb2.Struct()
    made.update({"b": 1, "a": [True, None, "x"]})
    return made


@pytest.mark.parametrize(
    "message",
    [
        _struct(),
        wrappers_pb2.Int64Value(value=5),
        wrappers_pb2.StringValue(),
        timestamp_pb2.Timestamp(seconds=5, nanos=1),
        duration_pb2.Duration(),
    ],
    ids=lambda message: message.DESCRIPTOR.name,
)
def test_messages_of_protobufs_well_known_types_are_read(
    registry: SchemaRegistry, message: Any
) -> None:
    serde = Serdes.protobuf(type(message), registry.url)

    data = serde.serialize("orders", message) or b""

    assert serde.deserialize("orders", data) == message
    with pytest.raises(SerializationError, match="wrote them, and this serde reads"):
        Serdes.protobuf(wrappers_pb2.BoolValue, registry.url).deserialize("orders", data)
