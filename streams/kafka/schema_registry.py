"""Confluent Schema Registry through confluent-kafka's own serialisers: the adapter to `streams.schema_port`.

Imported when a serde with a registry is first asked for; each format imports its libraries then, so that a missing
extra is an ImportError here and a sentence at the user's line.

What is the registry's fault (down, refuses) becomes `SchemaRegistryError`; what is the record's (another format, an id
that the registry does not know) becomes `CodecError`.
"""

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import UUID

from confluent_kafka.schema_registry import SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.error import SchemaRegistryError as RegistryReply
from confluent_kafka.serialization import MessageField, SerializationContext
from confluent_kafka.serialization import SerializationError as ConfluentError

from streams.config.secrets import is_reference, redacted_url, resolve_secrets
from streams.errors import SchemaRegistryError, StreamsError, TopologyError
from streams.kafka.protobuf_writers import ProtobufWriters
from streams.schema_port import CodecError, Registry, SchemaCodec
from streams.serdes.avro_values import AvroValues
from streams.serdes.plain_codecs import json_schema_reason
from streams.serdes.strict_json import dumps, loads

#: Settings that are the serialisers', not the client's: Java has both in one map, and so have we.
_SERIALIZER_PREFIXES: Final = (
    "auto.register.", "normalize.", "use.", "subject.name.strategy", "reference.subject.", "skip.known.", "validate",
    "schema.id.",
)  # fmt: skip
#: Those of them that a deserialiser takes as well; the schema it reads into is always the serde's own.
_DESERIALIZER_PREFIXES: Final = ("subject.name.strategy", "schema.id.deserializer")

#: Settings that are no secrets, whatever they say; URLs are looked at. All others must be references to travel.
_HARMLESS_PREFIXES: Final = (
    *_SERIALIZER_PREFIXES, "timeout", "max.retries", "retries.", "cache.", "ssl.ca.location", "ssl.certificate.location",
    "ssl.key.location", "basic.auth.credentials.source", "bearer.auth.credentials.source", "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id", "bearer.auth.scope",
)  # fmt: skip

_TIMEOUT_S: Final = 10
"""How long one request may take, unless `timeout` says otherwise; confluent-kafka itself would wait for ever."""
_MESSAGE_MAX: Final = 300
_FRAME_BYTES: Final = 5
_MAGIC_BYTES: Final = (0, 1)
_NOT_FOUND: Final = range(40400, 40500)
"""The registry's own codes for what it does not have; a server that is no registry answers 404 without them."""


class ConfluentFormats:
    """Makes codecs; those of one registry share one client, and with it the schemas that were fetched."""

    def __init__(self) -> None:
        self._links: dict[object, tuple[_Link, object]] = {}

    def avro(self, schema: str, registry: Registry) -> SchemaCodec:
        """Return the codec of an Avro schema, given as JSON."""
        from confluent_kafka.schema_registry import avro  # noqa: PLC0415 - needs the extra

        link, values = self._link(registry), AvroValues(schema)
        # What the schema does not have would be left out silently.
        own = {"validate.strict.allow.default": True, **link.serializer}
        write: Any = avro.AvroSerializer
        read: Any = avro.AvroDeserializer
        return _Codec(
            link,
            lambda: write(link.client, schema, conf=own),
            _made(lambda: read(link.client, schema, conf=link.deserializer)),
            check=values.checked,
            refusal=values.refusal,
        )

    def protobuf(self, message_type: type[Any], registry: Registry) -> SchemaCodec:
        """Return the codec of a generated Protobuf class."""
        from confluent_kafka.schema_registry import protobuf  # noqa: PLC0415 - needs the extra

        link = self._link(registry)
        # Clients before 2.13 want to be told; the other format was a fault of theirs.
        old = {"use.deprecated.format": False}
        writing, reading = {**old, **link.serializer}, {**old, **link.deserializer}
        write: Any = protobuf.ProtobufSerializer
        read: Any = protobuf.ProtobufDeserializer
        return _Codec(
            link,
            lambda: write(message_type, link.client, writing),
            _made(lambda: read(message_type, reading, link.client)),
            check_data=ProtobufWriters(message_type.DESCRIPTOR.full_name, link.schema_text).check,
        )

    def json_schema(self, schema: str, registry: Registry) -> SchemaCodec:
        """Return the codec of a JSON Schema, given as JSON."""
        from confluent_kafka.schema_registry import json_schema  # noqa: PLC0415 - needs the extra

        link = self._link(registry)
        write: Any = json_schema.JSONSerializer
        read: Any = json_schema.JSONDeserializer
        return _Codec(
            link,
            lambda: write(schema, link.client, conf=link.serializer, json_encode=dumps),
            _made(
                lambda: read(
                    schema,
                    schema_registry_client=link.client,
                    conf=link.deserializer,
                    json_decode=loads,
                )
            ),
            reason=_json_reason,
        )

    def travelling(self, registry: Registry) -> Registry:
        """Return a registry as other processes may be told of it; raises `TopologyError` for a client, and for secrets."""
        if not isinstance(registry, str | Mapping):
            raise TopologyError(
                f"registry= is a {type(registry).__name__}, which can't be sent to other processes, such as Spark's executors; give "
                "its URL, or a dict of settings with 'url'"
            )
        given: Mapping[str, Any] = {"url": registry} if isinstance(registry, str) else registry
        for name, value in given.items():
            if not _may_travel(name, value):
                raise TopologyError(
                    f"registry={{{name!r}: …}} holds a secret, which would travel to other processes, such as Spark's executors, in "
                    "the open; give it as env:NAME or file:/path that they can read (user and password of a URL as "
                    "'basic.auth.user.info')"
                )
        return registry

    def _link(self, registry: Registry) -> "_Link":
        key: object = id(registry)
        if isinstance(registry, str):
            key = registry
        elif isinstance(registry, Mapping):
            key = frozenset((name, repr(value)) for name, value in registry.items())
        if key not in self._links:
            # The client is kept, so that its id can't be given to another one.
            self._links[key] = _linked(registry), registry
        return self._links[key][0]


class _Link:
    """A registry's client, what messages call it, and the settings of its serialisers."""

    def __init__(self, client: Any, shown: str, settings: Mapping[str, Any]) -> None:
        self.shown = shown
        self.client = _Client(client, self)
        # Their own default asks the registry for associations first, which older registries do not know.
        strategy = {"subject.name.strategy": topic_subject_name_strategy}
        named = any(name.startswith("subject.name.strategy") for name in settings)
        self.serializer = {**({} if named else strategy), **settings}
        self.serializer.pop("schema.id.deserializer", None)
        self.deserializer = {
            name: value
            for name, value in {**({} if named else strategy), **settings}.items()
            if name.startswith(_DESERIALIZER_PREFIXES)
        }

    def schema_text(self, frame: bytes) -> str:
        """Return the schema of a frame's first bytes, in the form that Protobuf's deserialiser asks for."""
        if frame[0]:
            found = self.client.get_schema_by_guid(str(UUID(bytes=frame[1:])), fmt="serialized")
        else:
            found = self.client.get_schema(int.from_bytes(frame[1:], "big"), fmt="serialized")
        return str(found.schema_str)


class _Client:
    """A client whose failures to get an answer are ours; what the registry answers passes as it is."""

    def __init__(self, client: Any, link: _Link) -> None:
        self._client = client
        self._link = link

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if not callable(value):
            return value

        @wraps(value)
        def ask(*args: Any, **kwargs: Any) -> Any:
            try:
                return value(*args, **kwargs)
            except RegistryReply:
                raise
            except Exception as error:  # noqa: BLE001 - HTTP, TLS, DNS, tokens: whatever kept the answer away
                problem = _problem(error)
            raise SchemaRegistryError(
                f"{self._link.shown} can't be reached ({problem}), tried several times; start it, or correct "
                "registry= of the serde"
            )

        setattr(self, name, ask)
        return ask


class _Codec:
    """A format's serialisers over one registry.

    Each topic, and each of its two parts, has a serialiser of its own: one for several subjects writes the id that the
    last of them got.
    """

    def __init__(
        self,
        link: _Link,
        make_serializer: Callable[[], Any],
        deserializer: Any,
        *,
        reason: Callable[[Exception], str] | None = None,
        check: Callable[[Any], Any] | None = None,
        refusal: Callable[[Any], str] | None = None,
        check_data: Callable[[bytes], None] | None = None,
    ) -> None:
        self._link = link
        self._make_serializer = make_serializer
        self._deserializer = deserializer
        self._reason = reason or _class_only
        self._check = check
        self._refusal = refusal
        self._check_data = check_data
        self._spare = _made(
            make_serializer
        )  # now, so that wrong settings are an error of the build
        self._parts: dict[tuple[str, bool], tuple[SerializationContext, Any]] = {}
        self._making = threading.Lock()

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:
        """Return the bytes, with the id of the schema in front; the first record of a topic registers it."""
        checked = value if self._check is None else self._check(value)
        context, serializer = self._part(topic, is_key=is_key)
        try:
            return bytes(serializer(checked, context))
        except Exception as error:  # noqa: BLE001 - sorted out below, without the data that its text may quote
            failed = self._failed(error, topic, None)
            if isinstance(failed, CodecError) and self._refusal is not None:
                failed = CodecError(self._refusal(value))
        raise failed

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:
        """Return the value, read by the schema that wrote it and brought into the serde's."""
        if len(data) <= _FRAME_BYTES or data[0] not in _MAGIC_BYTES:
            raise CodecError(
                "they do not begin with a schema's id: no serialiser with a registry wrote them"
            )
        try:
            if self._check_data is not None:
                self._check_data(data)
            return self._deserializer(data, self._part(topic, is_key=is_key)[0])
        except Exception as error:  # noqa: BLE001 - as above
            failed = self._failed(error, topic, data)
        raise failed

    def _part(self, topic: str, *, is_key: bool) -> tuple[SerializationContext, Any]:
        part = self._parts.get((topic, is_key))
        if part is None:
            context = SerializationContext(
                topic, MessageField.KEY if is_key else MessageField.VALUE
            )
            with self._making:  # key ranges serialise in several threads
                part = self._parts.get((topic, is_key))
                if part is None:
                    serializer, self._spare = self._spare or self._make_serializer(), None
                    part = self._parts[topic, is_key] = context, serializer
        return part

    def _failed(self, error: Exception, topic: str, data: bytes | None) -> Exception:
        """Return what to raise; `data` is what was read, None when something was written."""
        if isinstance(error, StreamsError | CodecError):
            return error
        if not isinstance(error, RegistryReply):
            return CodecError(self._reason(error))
        if data is not None and error.error_code in _NOT_FOUND:
            number = int.from_bytes(data[1:_FRAME_BYTES], "big")
            return CodecError(
                f"schema {number} is not in {self._link.shown}: another one wrote them"
            )
        status, text = error.http_status_code, str(error.error_message)[:_MESSAGE_MAX]
        return SchemaRegistryError(
            f"{self._link.shown}, topic {topic!r}: HTTP {status}, {text!r}; {_next_step(status)}"
        )


def _next_step(status: int) -> str:
    match status:
        case 401 | 403:
            return "give credentials that may do this, as registry={'url': …, 'basic.auth.user.info': 'env:NAME'}"
        case 404:
            return "register the schema, or leave auto.register.schemas on"
        case 409:
            return "make the schema compatible with those of its subject, or change the subject's compatibility"
        case 422:
            return "correct the schema"
        case _:
            return "see to the registry; nothing was skipped"


def _may_travel(name: str, value: Any) -> bool:
    if name == "url":
        return isinstance(value, str) and all(
            redacted_url(each.strip()) == each.strip() for each in value.split(",")
        )
    return name.startswith(_HARMLESS_PREFIXES) or (isinstance(value, str) and is_reference(value))


def _linked(registry: Registry) -> _Link:
    if isinstance(registry, str):
        registry = {"url": registry}
    if not isinstance(registry, Mapping):
        if not callable(getattr(registry, "get_schema", None)):
            raise TopologyError(
                f"registry= is of type {type(registry).__name__}; give its URL, a dict of settings with 'url', or a "
                "SchemaRegistryClient"
            )
        return _Link(registry, "the schema registry", {})
    settings = {
        name: value for name, value in registry.items() if name.startswith(_SERIALIZER_PREFIXES)
    }
    given = {name: value for name, value in registry.items() if name not in settings}
    url = given.get("url")
    if not isinstance(url, str) or not url.startswith(("http://", "https://", "mock://")):
        raise TopologyError("registry= has no URL that begins with http:// or https://; give one")
    shown = "schema registry " + ",".join(redacted_url(part.strip()) for part in url.split(","))
    properties = {"timeout": _TIMEOUT_S, **resolve_secrets(given, "registry")}
    return _Link(
        _made(lambda: SchemaRegistryClient.new_client(_without_user(properties))), shown, settings
    )


def _without_user(properties: dict[str, Any]) -> dict[str, Any]:
    """Move user and password from the URL, which the HTTP client logs, to their own property."""
    urls = [part.strip() for part in properties["url"].split(",")]
    first = urlsplit(urls[0])
    if first.username is None or "basic.auth.user.info" in properties:
        return properties
    clean = ",".join(
        urlunsplit(urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]))
        for url in urls
    )
    user = f"{unquote(first.username)}:{unquote(first.password or '')}"
    return {**properties, "url": clean, "basic.auth.user.info": user}


def _made(make: Callable[[], Any]) -> Any:
    """Return a client or serialiser; its complaints about settings become ours."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise TopologyError(f"registry=: {error}; correct it") from None


def _problem(error: Exception) -> str:
    text = str(error)
    # A URL may hold a password.
    return type(error).__name__ + (f": {text}" if text and "://" not in text else "")


def _class_only(error: Exception) -> str:
    return f"raised {type(error).__name__}"


def _json_reason(error: Exception) -> str:
    cause = error.__context__
    if isinstance(error, ConfluentError) and hasattr(cause, "json_path"):
        return json_schema_reason(cause)
    return _class_only(error)


#: The adapter of this process.
FORMATS: Final = ConfluentFormats()
