"""Serdes of schemas with references, and of a subject's own schema, over real HTTP."""

import json
import logging
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

import pytest
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from google.protobuf import (  # type: ignore[import-untyped]  # its stubs are a package of their own
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

from tests.fakes.protobuf import LONG, TEXT, message_types
from tests.fakes.schema_registry import SchemaRegistry, schema_registry
from tidewheel import (
    SchemaRegistryError,
    Serde,
    Serdes,
    SerializationError,
    StreamsBuilder,
    StreamsConfig,
    TopologyError,
)
from tidewheel.testing import TopologyTestDriver

ADDRESS = {
    "type": "record",
    "name": "Address",
    "namespace": "shop",
    "fields": [{"name": "city", "type": "string"}],
}
CUSTOMER = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "long"}, {"name": "home", "type": "shop.Address"}],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "buyer", "type": "shop.Customer"},
        {"name": "ship_to", "type": ["null", "shop.Address"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
TO_ADDRESS: dict[str, Any] = {"name": "shop.Address", "subject": "addresses-value", "version": 1}
TO_CUSTOMER: dict[str, Any] = {"name": "shop.Customer", "subject": "customers-value", "version": 1}
USED = [TO_CUSTOMER, TO_ADDRESS]
VALUE = {
    "buyer": {"id": 7, "home": {"city": "Ulm"}},
    "ship_to": {"city": "Bonn"},
    "at": datetime(2026, 1, 2, tzinfo=UTC),
}

JSON_ADDRESS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
JSON_CUSTOMER = {"type": "object", "properties": {"home": {"$ref": "address.json"}}}
JSON_ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {"buyer": {"$ref": "customer.json"}, "ship_to": {"$ref": "address.json"}},
}
TO_JSON_ADDRESS: dict[str, Any] = {
    "name": "address.json",
    "subject": "json-addresses",
    "version": 1,
}
TO_JSON_CUSTOMER: dict[str, Any] = {
    "name": "customer.json",
    "subject": "json-customers",
    "version": 1,
}
JSON_USED = [TO_JSON_CUSTOMER, TO_JSON_ADDRESS]
JSON_VALUE = {"buyer": {"home": {"city": "Ulm"}}, "ship_to": {"city": "Bonn"}}

PROTO = message_types("orders.proto", Order=[("cents", LONG)], Payment=[("cents", LONG)])
OTHER = message_types("orders.proto", Payment=[("cents", LONG)], Order=[("cents", LONG)])


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


@pytest.fixture
def shop(registry: SchemaRegistry) -> SchemaRegistry:
    registry.add("addresses-value", ADDRESS)
    registry.add("customers-value", CUSTOMER, TO_ADDRESS)
    registry.add("json-addresses", JSON_ADDRESS, schema_type="JSON")
    registry.add("json-customers", JSON_CUSTOMER, TO_JSON_ADDRESS, schema_type="JSON")
    return registry


def impatient(registry: SchemaRegistry, **settings: Any) -> dict[str, Any]:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    return {"url": registry.url, "retries.wait.ms": 1, "retries.max.wait.ms": 1, **names}


def written_as(data: bytes | None) -> int:
    assert data is not None
    (schema_id,) = struct.unpack_from(">I", data, 1)
    return int(schema_id)


def posts(registry: SchemaRegistry) -> list[str]:
    return [request for request in registry.requests if request.startswith("POST")]


CASES: list[Any] = [
    pytest.param(Serdes.avro, ORDER, USED, VALUE, id="avro"),
    pytest.param(Serdes.json_schema, JSON_ORDER, JSON_USED, JSON_VALUE, id="json_schema"),
]


@pytest.mark.parametrize(("make", "schema", "used", "value"), CASES)
def test_a_schema_is_registered_with_its_references(
    shop: SchemaRegistry, make: Any, schema: Any, used: Any, value: Any
) -> None:
    serde = make(schema, shop.url, references=used)

    data = serde.serialize("orders", value)

    registered = shop.schemas[written_as(data) - 1]
    assert registered["references"] == used
    assert json.loads(registered["schema"]) == schema
    assert serde.deserialize("orders", data) == value
    reader = make(registry=shop.url, subject="orders-value")
    assert reader.deserialize("orders", data) == value


def test_a_registry_in_memory_has_references_and_subjects() -> None:
    url = "mock://references"
    Serdes.avro(ADDRESS, url).serialize("addresses", {"city": "Ulm"})
    to_address = {**TO_ADDRESS, "subject": "addresses-value"}
    customers = Serdes.avro(CUSTOMER, url, references=[to_address])
    data = customers.serialize("customers", VALUE["buyer"])

    again = Serdes.avro(registry=url, subject="customers-value")

    assert again.serialize("elsewhere", VALUE["buyer"]) == data
    assert again.deserialize("elsewhere", data or b"") == VALUE["buyer"]


@pytest.mark.parametrize("form", ["objects", "latest", "without a version"])
def test_references_have_several_forms(shop: SchemaRegistry, form: str) -> None:
    references: list[Any] = [SchemaReference(**each) for each in USED]
    if form == "latest":
        references = [{**each, "version": "latest"} for each in USED]
    elif form == "without a version":
        references = [{**each, "version": None} for each in USED]

    data = Serdes.avro(ORDER, shop.url, references=references).serialize("orders", VALUE)

    assert shop.schemas[written_as(data) - 1]["references"] == USED


def test_references_are_looked_up_without_a_registration(shop: SchemaRegistry) -> None:
    careful = Serdes.avro(ORDER, impatient(shop, auto_register_schemas=False), references=USED)
    with pytest.raises(SchemaRegistryError, match="HTTP 404"):
        careful.serialize("orders", VALUE)
    known = shop.add("orders-value", json.dumps(ORDER), *USED)

    assert written_as(careful.serialize("orders", VALUE)) == known
    assert not any(request.endswith("/versions") for request in posts(shop))


@pytest.mark.parametrize(("make", "schema", "used", "value"), CASES)
def test_a_writers_schema_with_references_is_read(
    shop: SchemaRegistry, make: Any, schema: Any, used: Any, value: Any
) -> None:
    data = make(schema, shop.url, references=used).serialize("orders", value)
    inside = json.loads(json.dumps(schema))
    if make is Serdes.avro:
        inside["fields"][0]["type"] = {**CUSTOMER, "fields": [CUSTOMER["fields"][0], {"name": "home", "type": ADDRESS}]}  # fmt: skip
    else:
        inside = {"title": "Order", "type": "object"}
    reader = make(inside, impatient(shop))
    shop.requests.clear()

    for _ in range(3):
        assert reader.deserialize("orders", data) == value

    assert len(shop.requests) == len({request.partition("?")[0] for request in shop.requests})


def test_a_union_of_references_is_a_topic_of_several_types(shop: SchemaRegistry) -> None:
    serde = Serdes.avro(["shop.Customer", "shop.Address"], shop.url, references=USED)
    for value in ({"id": 7, "home": {"city": "Ulm"}}, {"city": "Bonn"}):
        assert serde.deserialize("events", serde.serialize("events", value) or b"") == value
    with pytest.raises(SerializationError, match=r"expected shop\.Customer or shop\.Address"):
        serde.serialize("events", 5)


@pytest.mark.parametrize(
    ("make", "schema", "used", "bad", "reason"),
    [
        (Serdes.avro, ORDER, USED, {**VALUE, "buyer": {"id": 7, "home": {"city": 5}}}, r"at Order\.buyer\.home\.city: expected string, got int"),
        (Serdes.avro, ORDER, USED, {**VALUE, "at": "canary"}, r"at Order\.at: expected timestamp-millis, got str"),
        (Serdes.avro, ORDER, USED, {**VALUE, "ship_to": {"city": "x", "canary": 1}}, r"at Order\.ship_to: record contains more fields"),
        (Serdes.json_schema, JSON_ORDER, JSON_USED, {"buyer": {"home": {"city": "canary", "x": 1}, "home2": 1}, "ship_to": {}}, r"at \$\.ship_to: not as the schema's 'required'"),
        (Serdes.json_schema, JSON_ORDER, JSON_USED, {"buyer": {"home": {"city": 5}}}, r"at \$\.buyer\.home\.city: not as the schema's 'type'"),
    ],
)  # fmt: skip
def test_values_are_checked_inside_referenced_schemas(
    shop: SchemaRegistry, make: Any, schema: Any, used: Any, bad: Any, reason: str
) -> None:
    serde = make(schema, shop.url, references=used)
    with pytest.raises(SerializationError, match=reason) as caught:
        serde.serialize("orders", bad)
    assert "canary" not in str(caught.value).partition("more fields")[0]


def test_payloads_are_checked_by_referenced_json_schemas(shop: SchemaRegistry) -> None:
    serde = Serdes.json_schema(JSON_ORDER, shop.url, references=JSON_USED)
    data = serde.serialize("orders", JSON_VALUE) or b""
    with pytest.raises(SerializationError, match=r"at \$\.buyer\.home\.city") as caught:
        serde.deserialize("orders", data.replace(b'"Ulm"', b"12345"))
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize("identifier", ["http://shop.example/order.json", "order.json", None])
def test_relative_references_of_json_schemas(
    shop: SchemaRegistry, identifier: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx2  # noqa: PLC0415 - the client's library

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("a $ref was fetched")

    monkeypatch.setattr(httpx2, "get", refuse)
    schema = {**JSON_ORDER, **({"$id": identifier} if identifier else {})}
    serde = Serdes.json_schema(schema, shop.url, references=JSON_USED)

    assert serde.deserialize("orders", serde.serialize("orders", JSON_VALUE) or b"") == JSON_VALUE
    strange = Serdes.json_schema({"$ref": "http://127.0.0.1:1/order.json"}, shop.url)
    with pytest.raises(
        SerializationError, match=r"\$ref 'http://127.0.0.1:1/order.json' is not in"
    ):
        strange.serialize("orders", {})


def protobuf_with_import() -> tuple[Any, Any]:
    pool = descriptor_pool.DescriptorPool()
    address = descriptor_pb2.FileDescriptorProto(
        name="shop/address.proto", package="shop", syntax="proto3"
    )
    city = address.message_type.add(name="Address").field.add(name="city", number=1)
    city.type, city.label = TEXT, descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    order = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto", package="shop", syntax="proto3"
    )
    order.dependency.append("shop/address.proto")
    field = order.message_type.add(name="Order").field.add(name="ship_to", number=1)
    field.type_name, field.label = (
        ".shop.Address",
        descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
    )
    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
    for file in (address, order):
        pool.Add(file)
    made = [pool.FindMessageTypeByName(f"shop.{name}") for name in ("Order", "Address")]
    return message_factory.GetMessageClass(made[0]), message_factory.GetMessageClass(made[1])


def test_imports_of_protobuf_files_are_references(shop: SchemaRegistry) -> None:
    order, address = protobuf_with_import()
    serde: Serde[Any] = Serdes.protobuf(order, shop.url)
    value = order(ship_to=address(city="Ulm"))

    data = serde.serialize("orders", value) or b""

    assert [each["name"] for each in shop.schemas[written_as(data) - 1]["references"]] == [
        "shop/address.proto"
    ]
    reader: Serde[Any] = Serdes.protobuf(order, impatient(shop))
    assert reader.deserialize("orders", data) == value


# -- errors of references ------------------------------------------------------------------------


def test_a_missing_reference_is_named_when_the_serde_is_built(shop: SchemaRegistry) -> None:
    for wrong in ({"subject": "clients-value"}, {"version": 5}):
        missing = {**TO_CUSTOMER, **wrong}
        named = f"subject '{missing['subject']}' version {missing['version']}"
        with pytest.raises(SchemaRegistryError, match=named) as caught:
            Serdes.avro(ORDER, shop.url, references=[missing, TO_ADDRESS])
        assert "'shop.Customer'" in str(caught.value)


@pytest.mark.parametrize(("make", "schema", "used", "value"), CASES)
def test_a_reference_that_is_missing_when_a_record_is_read(
    shop: SchemaRegistry, make: Any, schema: Any, used: Any, value: Any
) -> None:
    data = make(schema, shop.url, references=used).serialize("orders", value)
    inner = used[1]["subject"]
    del shop.subjects[inner]
    plain = ADDRESS if make is Serdes.avro else {"title": "x"}
    reader = make(plain, impatient(shop))
    for _ in range(2):
        with pytest.raises(SchemaRegistryError, match=rf"subject '{inner}' version 1.*register"):
            reader.deserialize("orders", data)

    builder = StreamsBuilder()
    builder.stream("orders", key_serde=str, value_serde=reader).to("out", value_serde=Serdes.json())
    config = StreamsConfig(application_id="shop", deserialization_exception_handler="continue")
    with TopologyTestDriver(builder.build(), config) as driver:
        source = driver.create_input_topic("orders", key_serde=str, value_serde=bytes)
        with pytest.raises(SchemaRegistryError):
            source.pipe_input("a", data)


@pytest.mark.parametrize(("make", "kind"), [(Serdes.avro, "AVRO"), (Serdes.json_schema, "JSON")])
def test_schemas_that_refer_to_each_other_in_a_circle(
    registry: SchemaRegistry, make: Any, kind: str
) -> None:
    first: dict[str, Any] = {"title": "First"}
    if kind == "AVRO":
        first = {"type": "record", "name": "First", "fields": [{"name": "id", "type": "long"}]}
    to_second = {"name": "Second", "subject": "second", "version": 1}
    to_first = {"name": "First", "subject": "first", "version": 1}
    registry.add("first", first, schema_type=kind)
    schema_id = registry.add("second", {**first, "name": "Second"}, to_first, schema_type=kind)
    registry.schemas[0]["references"] = [to_second]
    circle = r"circle \(subject '(first|second)' version 1 → subject '\w+' version 1 → "

    with pytest.raises(SchemaRegistryError, match=circle):
        make(first, registry.url).deserialize("t", b"\x00" + struct.pack(">I", schema_id) + b"\x02")
    with pytest.raises(SchemaRegistryError, match=circle):
        make({**first, "name": "Third"}, registry.url, references=[to_second])
    with pytest.raises(SchemaRegistryError, match=circle):
        make(registry=registry.url, subject="first")


def test_a_diamond_of_references_is_no_circle(shop: SchemaRegistry) -> None:
    shop.add("shops-value", {**CUSTOMER, "name": "Shop"}, TO_ADDRESS)
    both = {**ORDER, "fields": [{"name": "a", "type": "shop.Customer"}, {"name": "b", "type": "shop.Shop"}]}  # fmt: skip
    to_shop = {"name": "shop.Shop", "subject": "shops-value", "version": 1}
    part = {"id": 1, "home": {"city": "Ulm"}}
    serde = Serdes.avro(both, shop.url, references=[TO_CUSTOMER, to_shop])

    data = serde.serialize("both", {"a": part, "b": part}) or b""

    assert serde.deserialize("both", data) == {"a": part, "b": part}
    asked = [request for request in shop.requests if "addresses-value" in request]
    assert len(asked) == 1


def test_a_reference_of_another_format_is_refused(shop: SchemaRegistry) -> None:
    wrong = {**TO_JSON_ADDRESS, "name": "shop.Address"}
    with pytest.raises(
        SchemaRegistryError, match=r"'json-addresses' version 1.*JSON instead of AVRO"
    ):
        Serdes.avro(ORDER, shop.url, references=[TO_CUSTOMER, wrong])


def test_a_type_without_a_reference_is_named(shop: SchemaRegistry) -> None:
    with pytest.raises(
        TopologyError, match=r"type shop\.Customer is neither.*'name': 'shop\.Customer'"
    ):
        Serdes.avro(ORDER, shop.url)
    with pytest.raises(TopologyError, match=r"type shop\.Customer is neither"):
        Serdes.avro(ORDER, shop.url, references=[TO_ADDRESS])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "give a schema, or subject="),
        ({"schema": ORDER, "subject": "s", "registry": "mock://r"}, "a subject has its own schema"),
        ({"subject": "s", "references": USED, "registry": "mock://r"}, "a subject has its own schema"),
        ({"subject": "s"}, "subject= needs registry="),
        ({"schema": ORDER, "references": USED}, "references= needs registry="),
        ({"schema": ADDRESS, "version": 1, "registry": "mock://r"}, "version= is a subject's"),
        ({"subject": "s", "version": 0, "registry": "mock://r"}, "version= 0 is no version"),
        ({"subject": "s", "version": True, "registry": "mock://r"}, "version= True is no version"),
        ({"subject": "s", "version": "newest", "registry": "mock://r"}, "'newest' is no version"),
        ({"subject": 5, "registry": "mock://r"}, "subject= is of type int"),
        ({"schema": ORDER, "references": [{"name": "x"}], "registry": "mock://r"}, "a name and a subject"),
        ({"schema": ORDER, "references": [{**TO_ADDRESS, "version": -3}], "registry": "mock://r"}, "'shop.Address': -3 is no version"),
    ],
)  # fmt: skip
def test_conflicting_arguments_are_refused(arguments: dict[str, Any], reason: str) -> None:
    for make in (Serdes.avro, Serdes.json_schema):
        with pytest.raises(TopologyError, match=reason):
            cast("Any", make)(**arguments)


# -- a subject's own schema -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "schema", "used", "value"), CASES)
def test_a_subjects_schema_writes_with_its_id(
    shop: SchemaRegistry, make: Any, schema: Any, used: Any, value: Any
) -> None:
    kind = "AVRO" if make is Serdes.avro else "JSON"
    known = shop.add("orders-value", schema, *used, schema_type=kind)
    serde = make(registry=impatient(shop), subject="orders-value")
    subjects = dict(shop.subjects)

    for topic in ("orders", "shop-totals-changelog"):
        for part in (serde, serde.for_keys()):
            data = part.serialize(topic, value)
            assert written_as(data) == known
            assert part.deserialize(topic, data) == value
    assert serde.serialize_batch("orders", [value, value]) == [data, data]

    assert shop.subjects == subjects
    assert posts(shop) == []
    assert serde.name == ("avro(Order)" if make is Serdes.avro else "json_schema(Order)")


def test_a_version_is_kept(shop: SchemaRegistry) -> None:
    newer = {**ADDRESS, "fields": [*ADDRESS["fields"], {"name": "zip", "type": "string", "default": "?"}]}  # fmt: skip
    third = {**newer, "fields": [*newer["fields"], {"name": "land", "type": "string", "default": "?"}]}  # fmt: skip
    second_id = shop.add("addresses-value", newer)
    first = Serdes.avro(registry=shop.url, subject="addresses-value", version=1)
    latest = Serdes.avro(registry=shop.url, subject="addresses-value")
    shop.add("addresses-value", third)

    assert written_as(first.serialize("a", {"city": "Ulm"})) == 1
    data = latest.serialize("a", {"city": "Ulm", "zip": "89073"}) or b""
    assert written_as(data) == second_id
    assert first.deserialize("a", data) == {"city": "Ulm"}
    assert latest is Serdes.avro(registry=shop.url, subject="addresses-value", version="latest")
    with pytest.raises(SerializationError, match="more fields than the schema specifies: zip"):
        first.serialize("a", {"city": "Ulm", "zip": "89073"})
    with pytest.raises(SerializationError, match=r"at Address\.city: expected string, got int"):
        latest.serialize("a", {"city": 5})


def test_a_topology_of_subjects_registers_nothing(shop: SchemaRegistry) -> None:
    key = Serdes.avro(registry=shop.url, subject="addresses-value")
    value = Serdes.avro(registry=shop.url, subject="customers-value")
    builder = StreamsBuilder()
    customers = builder.stream("customers", key_serde=str, value_serde=value)
    by_home = customers.group_by(lambda customer: customer["home"], key_serde=key)
    by_home.reduce(lambda _, new: new, store="last").to_stream().to("last")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("customers", key_serde=str, value_serde=value)
        output = driver.create_output_topic("last", key_serde=key, value_serde=value)
        source.pipe_input("a", {"id": 1, "home": {"city": "Ulm"}})
        assert output.read_key_values() == [({"city": "Ulm"}, {"id": 1, "home": {"city": "Ulm"}})]

    assert posts(shop) == []


@pytest.mark.parametrize("wrong", [{"subject": "nobody-value"}, {"version": 9}])
def test_an_unknown_subject_is_an_error_of_the_build(
    shop: SchemaRegistry, wrong: dict[str, Any]
) -> None:
    arguments = {"subject": "addresses-value", **wrong}
    for make in (Serdes.avro, Serdes.json_schema):
        with pytest.raises(
            SchemaRegistryError, match=r"schema registry http://127.*HTTP 404"
        ) as caught:
            cast("Any", make)(registry=shop.url, **arguments)
        for part in wrong.values():
            assert str(part) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "subject", "serde"),
    [
        (Serdes.avro, "json-addresses", "Serdes.json_schema"),
        (Serdes.json_schema, "addresses-value", "Serdes.avro"),
        (partial(Serdes.protobuf, PROTO["Order"]), "addresses-value", "Serdes.avro"),
    ],
    ids=["avro", "json_schema", "protobuf"],
)  # fmt: skip
def test_a_subject_of_another_format_is_refused(
    shop: SchemaRegistry, make: Any, subject: str, serde: str
) -> None:
    with pytest.raises(TopologyError, match=rf"'{subject}' is an? \w+ [Ss]chema; use {serde}"):
        make(registry=shop.url, subject=subject)


def test_records_of_another_format_are_an_error_that_names_the_format(shop: SchemaRegistry) -> None:
    data = Serdes.json_schema(JSON_ORDER, shop.url, references=JSON_USED).serialize("t", JSON_VALUE)
    with pytest.raises(SerializationError, match=r"a JSON Schema wrote them.*Serdes\.json_schema"):
        Serdes.avro(ADDRESS, shop.url).deserialize("t", data or b"")


SECRET = "canary-7391"  # noqa: S105 - must not be shown


@pytest.mark.parametrize("make", [Serdes.avro, Serdes.json_schema])
def test_errors_of_a_refusing_or_unreachable_registry_contain_no_secret(
    shop: SchemaRegistry, make: Any, caplog: Any
) -> None:
    secret_url = shop.url.replace("//", f"//shop:{SECRET}@")
    settings = impatient(shop, url=secret_url)
    with caplog.at_level(logging.DEBUG):
        shop.answers = [401]
        with pytest.raises(
            SchemaRegistryError, match=r"'addresses-value'.*HTTP 401.*basic\.auth"
        ) as refused:
            make(registry=settings, subject="addresses-value")
        shop.answers = [403]
        with pytest.raises(
            SchemaRegistryError, match=r"version 1.*HTTP 403.*credentials"
        ) as refused_reference:
            Serdes.avro(ORDER, settings, references=USED)
        shop.answers = [503, 503]
        Serdes.avro(registry=settings, subject="addresses-value")
        away = {**settings, "url": secret_url.rpartition(":")[0] + ":1"}
        with pytest.raises(SchemaRegistryError, match="can't be reached") as unreachable:
            make(registry=away, subject="addresses-value")

    for caught in (refused, refused_reference, unreachable):
        assert SECRET not in repr(caught.getrepr(style="long"))
    assert SECRET not in caplog.text


def test_settings_of_the_registry_that_choose_a_schema_are_the_subjects(
    shop: SchemaRegistry,
) -> None:
    known = shop.add("orders-value", ORDER, *USED)
    for settings in (
        {"auto_register_schemas": True},
        {"auto_register_schemas": False, "use_latest_version": True},
    ):
        serde = Serdes.avro(registry=impatient(shop, **settings), subject="orders-value")
        assert written_as(serde.serialize("elsewhere", VALUE)) == known
    assert posts(shop) == []


@pytest.mark.parametrize("text", ['"string"', '{"type": "string"}', ' "string"'])
def test_a_subject_of_one_type(registry: SchemaRegistry, text: str) -> None:
    known = registry.add("names", text)
    serde = Serdes.avro(registry=registry.url, subject="names")
    data = serde.serialize("t", "Ulm") or b""
    assert data == b"\x00" + struct.pack(">I", known) + b"\x06Ulm"
    assert serde.deserialize("t", data) == "Ulm"


def test_a_client_of_the_user_is_used(shop: SchemaRegistry) -> None:
    serde = Serdes.avro(registry=SchemaRegistryClient({"url": shop.url}), subject="addresses-value")
    assert written_as(serde.serialize("a", {"city": "Ulm"})) == 1


def test_rules_of_a_subjects_schema_are_never_skipped(shop: SchemaRegistry) -> None:
    schema_id = shop.add("secret-value", {**ADDRESS, "name": "Secret"})
    rule = {"name": "encrypt", "kind": "TRANSFORM", "mode": "WRITEREAD", "type": "NO-SUCH-RULE", "tags": ["PII"]}  # fmt: skip
    shop.schemas[schema_id - 1]["ruleSet"] = {"domainRules": [rule]}
    serde = Serdes.avro(registry=shop.url, subject="secret-value")
    with pytest.raises(SerializationError) as caught:
        serde.serialize("t", {"city": "canary"})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("name", ["Order", "Payment", "Payment.Inner"])
def test_a_protobuf_class_of_a_subject(registry: SchemaRegistry, name: str) -> None:
    Serdes.protobuf(PROTO[name], registry.url).serialize("orders", PROTO[name]())
    asked = len(posts(registry))
    serde = Serdes.protobuf(PROTO[name], impatient(registry), subject="orders-value", version=1)

    data = serde.serialize("elsewhere", PROTO[name]()) or b""

    assert written_as(data) == 1
    assert serde.deserialize("elsewhere", data) == PROTO[name]()
    assert len(posts(registry)) == asked


def test_a_protobuf_class_with_imports_of_a_subject(registry: SchemaRegistry) -> None:
    order, address = protobuf_with_import()
    value = order(ship_to=address(city="Ulm"))
    Serdes.protobuf(order, registry.url).serialize("orders", value)
    asked = len(posts(registry))
    serde: Serde[Any] = Serdes.protobuf(order, impatient(registry), subject="orders-value")

    assert serde.deserialize("t", serde.serialize("t", value) or b"") == value
    assert len(posts(registry)) == asked


def test_a_protobuf_subject_with_another_message_in_its_place(registry: SchemaRegistry) -> None:
    Serdes.protobuf(PROTO["Order"], registry.url).serialize("orders", PROTO["Order"]())
    with pytest.raises(TopologyError, match=r"has shop\.Order in the place of shop\.Payment"):
        Serdes.protobuf(OTHER["Payment"], registry.url, subject="orders-value")
    with pytest.raises(TopologyError, match="subject= needs registry="):
        Serdes.protobuf(PROTO["Order"], subject="orders-value")


_EXECUTOR = """
import sys
from pyspark import cloudpickle
serdes = cloudpickle.loads(sys.stdin.buffer.read())
sys.stdout.buffer.write(b"".join(serde.serialize("t", value) for serde, value in serdes))
"""


@pytest.mark.spark
def test_serdes_of_subjects_and_with_references_can_be_pickled(shop: SchemaRegistry) -> None:
    from pyspark import cloudpickle  # noqa: PLC0415 - an extra

    subject = Serdes.avro(registry=shop.url, subject="addresses-value")
    whole = Serdes.avro(ORDER, shop.url, references=USED)
    rows: list[Any] = [(subject, {"city": "Ulm"}), (subject.for_keys(), {"city": "Ulm"}), (whole, VALUE)]  # fmt: skip
    wanted = b"".join(serde.serialize("t", value) or b"" for serde, value in rows)
    newer = {**ADDRESS, "fields": [*ADDRESS["fields"], {"name": "zip", "type": "string", "default": "?"}]}  # fmt: skip
    shop.add("addresses-value", newer)

    carried = cloudpickle.dumps(rows)  # type: ignore[no-untyped-call] # it has no types
    done = subprocess.run(
        [sys.executable, "-c", _EXECUTOR], input=carried, capture_output=True, check=True
    )

    assert done.stdout == wanted
