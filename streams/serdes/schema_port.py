"""The port between serdes and a schema registry: serdes know what a codec is, `tidewheel.streams.kafka` has those of a registry.

`streams/__init__.py` joins the two, with a function that imports the adapter when the first such serde is asked for:
without the extras everything else works.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from tidewheel.streams.errors import TopologyError


class CodecError(Exception):
    """A value has no such bytes, or bytes are no such value; the text holds nothing of the data.

    >>> raise CodecError("at Order.id: expected long, got str")
    Traceback (most recent call last):
    ...
    tidewheel.streams.serdes.schema_port.CodecError: at Order.id: expected long, got str
    """


class SchemaCodec(Protocol):
    """Turns values of one schema into bytes and back; raises `CodecError`, or `SchemaRegistryError`."""

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:
        """Return the bytes of a value that a record of `topic` has as its key or as its value."""
        ...

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:
        """Return the value of some bytes."""
        ...

    def sorted_key(self, data: bytes) -> bytes:
        """Return the bytes that a stored key has now, without asking a registry; see ADR 14."""
        ...


class RegistryClient(Protocol):
    """What a registry's client has at least; `confluent_kafka.schema_registry.SchemaRegistryClient` is one."""

    def register_schema(self, *args: Any, **kwargs: Any) -> Any:
        """Register a schema."""
        ...

    def get_schema(self, *args: Any, **kwargs: Any) -> Any:
        """Return the schema of an id."""
        ...


#: A schema registry: its URL, the settings of a client, or a client.
Registry = str | Mapping[str, Any] | RegistryClient


class Reference(NamedTuple):
    """Another schema of the registry that a schema uses; version None is the latest."""

    name: str
    subject: str
    version: int | None


class SchemaSource(NamedTuple):
    """Where a serde's schema comes from: the program, or a subject of the registry.

    Attributes:
        text: The schema's JSON; None until a subject's schema has been fetched, and for Protobuf.
        references: The schemas that it uses.
        subject: The subject whose schema it is; None for a schema of the program's own.
        version: The subject's version; None is the latest.
    """

    text: str | None = None
    references: tuple[Reference, ...] = ()
    subject: str | None = None
    version: int | None = None


class RegistryFormats(Protocol):
    """The schema formats that go through a registry.

    Raises `TopologyError` for a wrong setting, `SchemaRegistryError` for a schema that the registry
    does not have.
    """

    def fetched(self, source: SchemaSource, schema_type: str, registry: Registry) -> SchemaSource:
        """Return a source with its text and with the numbers of its versions."""
        ...

    def avro(self, source: SchemaSource, registry: Registry) -> SchemaCodec:
        """Return the codec of an Avro schema that was fetched."""
        ...

    def protobuf(
        self, message_type: type[Any], source: SchemaSource, registry: Registry
    ) -> SchemaCodec:
        """Return the codec of a generated Protobuf class."""
        ...

    def json_schema(self, source: SchemaSource, registry: Registry) -> SchemaCodec:
        """Return the codec of a JSON Schema that was fetched."""
        ...

    def travelling(self, registry: Registry) -> Registry:
        """Return a registry as other processes may be told of it: without secrets, and nothing that is open."""
        ...


# Where the adapter is put, and taken from when it is first needed.
_loaders: Final[list[Callable[[], RegistryFormats]]] = []


def provide(load: Callable[[], RegistryFormats]) -> None:
    """Say how the adapter is loaded; called once, when `streams` is imported."""
    _loaders[:] = [load]


def registry_formats() -> RegistryFormats:
    """Return the adapter; raises ImportError where a library that it needs is not installed."""
    (load,) = _loaders
    return load()


def missing_extra(operator: str, extra: str, error: ImportError) -> TopologyError:
    """Return the error to raise where a format's libraries are not installed.

    >>> missing_extra("Serdes.avro", "avro", ImportError("no fastavro", name="fastavro"))
    TopologyError("Serdes.avro needs fastavro: pip install 'tidewheel[avro]'")
    """
    needed = error.name or "a library that is not installed"
    return TopologyError(f"{operator} needs {needed}: pip install 'tidewheel[{extra}]'")
