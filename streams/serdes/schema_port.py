"""Port between serdes and the schema registry adapter of `tidewheel.streams.kafka`.

The adapter is loaded for the first registry serde: other serdes need no extra packages.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from tidewheel.streams.errors import TopologyError


class CodecError(Exception):
    """Failed conversion of a value or of bytes; the text contains no data.

    >>> raise CodecError("at Order.id: expected long, got str")
    Traceback (most recent call last):
    ...
    tidewheel.streams.serdes.schema_port.CodecError: at Order.id: expected long, got str
    """


class JsonForm(Protocol):
    """JSON of a format's values; both directions keep the value."""

    def read(self, value: Any) -> Any: ...

    def write(self, value: Any) -> Any: ...


class SchemaCodec(Protocol):
    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes: ...

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any: ...

    def sorted_key(self, data: bytes) -> bytes:
        """Return a stored key with sorted map entries, without a registry request (ADR 14)."""
        ...

    @property
    def json_form(self) -> JsonForm | None:
        """Return the form of values as JSON; None if they are JSON or have an own one."""
        ...


class RegistryClient(Protocol):
    """Minimum interface of a registry client, such as `confluent_kafka.schema_registry.SchemaRegistryClient`."""

    def register_schema(self, *args: Any, **kwargs: Any) -> Any: ...

    def get_schema(self, *args: Any, **kwargs: Any) -> Any: ...


#: A schema registry: URL, client settings, or a client.
Registry = str | Mapping[str, Any] | RegistryClient


class Reference(NamedTuple):
    """Another registry schema used by a schema; version None: the latest."""

    name: str
    subject: str
    version: int | None


class SchemaSource(NamedTuple):
    """Source of a serde's schema: the program, or a registry subject."""

    text: str | None = None
    references: tuple[Reference, ...] = ()
    subject: str | None = None
    version: int | None = None


class RegistryFormats(Protocol):
    def fetched(
        self, source: SchemaSource, schema_type: str, registry: Registry
    ) -> SchemaSource: ...

    def avro(self, source: SchemaSource, registry: Registry) -> SchemaCodec: ...

    def protobuf(
        self, message_type: type[Any], source: SchemaSource, registry: Registry
    ) -> SchemaCodec: ...

    def json_schema(self, source: SchemaSource, registry: Registry) -> SchemaCodec: ...

    def portable_registry(self, registry: Registry) -> Registry: ...


_loaders: Final[list[Callable[[], RegistryFormats]]] = []


def provide(load: Callable[[], RegistryFormats]) -> None:
    _loaders[:] = [load]


def registry_formats() -> RegistryFormats:
    (load,) = _loaders
    return load()


def missing_extra(operator: str, extra: str, error: ImportError) -> TopologyError:
    """Return the error for missing format libraries.

    >>> missing_extra("Serdes.avro", "avro", ImportError("no fastavro", name="fastavro"))
    TopologyError("Serdes.avro needs fastavro: pip install 'tidewheel[avro]'")
    """
    needed = error.name or "a library that is not installed"
    return TopologyError(f"{operator} needs {needed}: pip install 'tidewheel[{extra}]'")
