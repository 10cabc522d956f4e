import uuid
from typing import Any

import pytest

from tidewheel.streams.errors import ConfigError, SerializationError, TopologyError
from tidewheel.streams.serdes import SERDE_NAMES, Serde, Serdes, as_serde, serde_named


class Celsius(Serde[float]):
    name = "celsius"

    def __init__(self) -> None:
        self.calls = 0

    def serialize(self, topic: str, value: float, /) -> bytes | None:
        self.calls += 1
        return f"{value:.1f}".encode()

    def deserialize(self, topic: str, data: bytes, /) -> float:
        self.calls += 1
        return float(data)


class Methods:
    def serialize(self, topic: str, value: str) -> bytes:
        return f"{topic}/{value}".encode()

    def deserialize(self, topic: str, data: bytes) -> str:
        return data.decode().removeprefix(f"{topic}/")


class WholeLists(Methods):
    canonical = True

    def serialize_batch(self, topic: str, values: Any) -> Any:
        return [b"batch"] * len(values)

    def deserialize_batch(self, topic: str, data: Any) -> Any:
        return ["batch"] * len(data)

    def surely_serializes(self, value: Any) -> bool:
        return isinstance(value, str)


@pytest.mark.parametrize("name", SERDE_NAMES)
def test_plain_serdes_are_made_once(name: str) -> None:
    assert getattr(Serdes, name)() is getattr(Serdes, name)() is serde_named(name)
    assert repr(serde_named(name)) == f"<serde {name}>"


@pytest.mark.parametrize(
    ("python_type", "serde"),
    [
        (str, Serdes.string()), (bytes, Serdes.bytes()), (int, Serdes.int64()), (float, Serdes.float64()),
        (bool, Serdes.boolean()), (uuid.UUID, Serdes.uuid()),
    ],
)  # fmt: skip
def test_plain_types_select_their_serdes(python_type: type[Any], serde: Serde[Any]) -> None:
    assert as_serde(python_type) is serde


def test_a_serde_is_used_unchanged() -> None:
    serde = Celsius()

    assert as_serde(serde) is serde
    assert serde.serialize_batch("topic", [1.0, 2.5]) == [b"1.0", b"2.5"]
    assert serde.deserialize_batch("topic", [b"1.0", b"2.5"]) == [1.0, 2.5]
    assert serde.calls == 4


def test_two_functions_make_a_serde() -> None:
    serde = Serde[int](lambda _, value: b"%d" % value, lambda _, data: int(data), name="decimal")

    assert serde.serialize_batch("topic", [1, -2]) == [b"1", b"-2"]
    assert serde.deserialize_batch("topic", [b"1", b"-2"]) == [1, -2]
    assert not serde.canonical
    assert serde.missing() is None


def test_a_serde_may_write_tombstones() -> None:
    serde = Serde[str](lambda _, value: value.encode() or None, lambda _, data: data.decode())

    assert serde.serialize_batch("topic", ["a", ""]) == [b"a", None]


def test_failing_functions_name_the_serde_and_the_topic() -> None:
    def fails(topic: str, value: Any) -> bytes:
        raise ValueError(f"canary {value}")

    serde = Serde[Any](fails, fails, name="broken")
    for attempt in (lambda: serde.serialize("t", "x"), lambda: serde.deserialize("t", b"x")):
        with pytest.raises(
            SerializationError, match=r"^broken serde, topic 't'.*raised ValueError"
        ) as caught:
            attempt()
        assert "canary" not in str(caught.value)
        assert isinstance(caught.value.__cause__, ValueError)


def test_an_object_with_two_methods_is_enough() -> None:
    serde = as_serde(Methods())

    assert serde.serialize_batch("t", ["a", "b"]) == [b"t/a", b"t/b"]
    assert serde.deserialize_batch("t", [b"t/a"]) == ["a"]
    assert not serde.canonical
    assert not serde.surely_serializes("a")
    with pytest.raises(SerializationError, match=r"^Methods serde, topic 't'"):
        serde.deserialize("t", b"\xff")


def test_batch_methods_of_an_object_are_used() -> None:
    serde = as_serde(WholeLists())

    assert serde.serialize_batch("t", ["a"]) == [b"batch"]
    assert serde.deserialize_batch("t", [b"a"]) == ["batch"]
    assert serde.canonical
    assert serde.surely_serializes("a")
    assert not serde.surely_serializes(1)


class OnlySerialize:
    def serialize(self, topic: str, value: str) -> bytes:
        return value.encode()


class Plain:
    pass


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (None, r"<NoneType> is not a serde; give one of Serdes"),
        ("string", r"<str> is not a serde"),
        (Serdes.string, r"Serdes.string \(not called\?\) is not a serde"),
        (OnlySerialize(), r"deserialize\(topic, data\)"),
        (Celsius, r"Celsius: .*give an instance, as in Celsius\(\)"),
        (Methods, r"give an instance, as in Methods\(\)"),
        (Plain, r"give Serdes.json\(Plain\) or Serdes.msgpack\(Plain\)"),
        (dict, r"give Serdes.json\(dict\)"),
        (Serde[Any](), r"serde 'custom' has no serialize function"),
        (Serde[Any](lambda topic, value: b""), r"serde 'custom' has no deserialize function"),
    ],
)
def test_other_objects_are_refused_with_the_valid_forms(given: Any, reason: str) -> None:
    with pytest.raises(TopologyError, match=rf"^value_serde.*{reason}"):
        as_serde(given, "value_serde")
    with pytest.raises(ConfigError, match=reason):
        as_serde(given, "default_value_serde", error=ConfigError)


@pytest.mark.parametrize(
    ("function", "reason"),
    [(lambda value: value, "can't take two arguments"), ("x", "is of type str, not a function")],
)
def test_functions_without_the_topic_are_refused(function: Any, reason: str) -> None:
    with pytest.raises(TopologyError, match=rf"serialize\(topic, value\).*{reason}"):
        Serde(function, lambda _, data: data)


def test_an_incomplete_serde_fails_loudly_if_used_unchecked() -> None:
    with pytest.raises(NotImplementedError, match="no serialize"):
        Serde[Any]().serialize("t", 1)
    with pytest.raises(NotImplementedError, match="no deserialize"):
        Serde[Any]().deserialize("t", b"")


def test_unknown_names() -> None:
    assert serde_named("strin") is None
