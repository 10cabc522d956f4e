"""Confluent Schema Registry: the adapter of confluent-kafka's serialisers.

It implements `tidewheel.streams.serdes.schema_port` and is imported with the first registry serde;
a missing extra is then an ImportError at the user's line. The registry's failures become
`SchemaRegistryError`, a record's (another format, an unknown id) `CodecError`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import UUID

from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError as RegistryReply
from confluent_kafka.serialization import MessageField, SerializationContext
from confluent_kafka.serialization import SerializationError as ConfluentError

from tidewheel.state_stores.bulk_restore.urls import redacted_url
from tidewheel.streams.config.secrets import is_reference, resolve_secrets
from tidewheel.streams.errors import SchemaRegistryError, StreamsError, TopologyError
from tidewheel.streams.kafka.registry.protobuf_writers import (
    ProtobufWriters,
    message_indexes,
    message_name,
)
from tidewheel.streams.kafka.registry.schema_references import NOT_FOUND, References
from tidewheel.streams.serdes.avro_json import AvroJson
from tidewheel.streams.serdes.avro_values import AvroValues, sorted_maps
from tidewheel.streams.serdes.plain_codecs import PlainJsonSchema, json_schema_reason
from tidewheel.streams.serdes.schema_port import (
    CodecError,
    JsonForm,
    Reference,
    Registry,
    SchemaCodec,
    SchemaSource,
)
from tidewheel.streams.serdes.strict_json import dumps, loads

#: Prefixes of serialiser settings, which users give in one map with the client's, as in Java.
_SERIALIZER_PREFIXES: Final = (
    "auto.register.", "normalize.", "use.", "subject.name.strategy", "reference.subject.", "skip.known.", "validate",
    "schema.id.",
)  # fmt: skip
#: Prefixes of those that deserialisers also get. Not `use.latest.`: deserialisers convert values to
#: the serde's schema.
_DESERIALIZER_PREFIXES: Final = ("subject.name.strategy", "schema.id.deserializer")

#: Settings without secrets, sent to other processes unchanged. Others must be references (such as
#: `file:/path`) or URLs without credentials.
_HARMLESS_PREFIXES: Final = (
    *_SERIALIZER_PREFIXES, "timeout", "max.retries", "retries.", "cache.", "ssl.ca.location", "ssl.certificate.location",
    "ssl.key.location", "basic.auth.credentials.source", "bearer.auth.credentials.source", "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id", "bearer.auth.scope",
)  # fmt: skip

_TIMEOUT_S: Final = 10
"""Default of `timeout`; confluent-kafka's own default waits forever."""
_MESSAGE_MAX: Final = 300
_FRAME_BYTES: Final = 5
_GUID_FRAME_BYTES: Final = 17
_MAGIC_BYTES: Final = (0, 1)
#: Settings that choose the schema to write with.
_CHOOSES_SCHEMA: Final = ("use.schema.id", "use.latest.version", "use.latest.with.metadata")
#: Settings that a serde with `subject=` sets itself.
_OF_A_SUBJECT: Final = (*_CHOOSES_SCHEMA, "auto.register.schemas", "subject.name.strategy")

#: Files that confluent-kafka adds to each Protobuf descriptor pool.
_BUILT_IN_FILES: Final = ("google/protobuf/", "google/type/", "confluent/")

_TYPES: Final = {
    "AVRO": ("an Avro schema", "Serdes.avro(subject=…)"),
    "JSON": ("a JSON Schema", "Serdes.json_schema(subject=…)"),
    "PROTOBUF": ("a Protobuf schema", "Serdes.protobuf(Class, subject=…)"),
}


class ConfluentFormats:
    """Codec factory; codecs of one registry share a client and its cached schemas."""

    def __init__(self) -> None:
        self._links: dict[object, tuple[_Link, object]] = {}

    def fetched(self, source: SchemaSource, schema_type: str, registry: Registry) -> SchemaSource:
        link = self._link(registry)
        if source.subject is not None:
            registered = link.registered(source.subject, source.version, schema_type)
            return source._replace(text=registered.schema.schema_str, version=registered.version)
        numbered = tuple(
            reference
            if reference.version is not None
            else reference._replace(
                version=link.registered(reference.subject, None, schema_type).version
            )
            for reference in source.references
        )
        return source._replace(references=numbered)

    def avro(self, source: SchemaSource, registry: Registry) -> SchemaCodec:
        from confluent_kafka.schema_registry import avro  # noqa: PLC0415 - needs the extra

        link = self._link(registry)
        used = link.used(source, "AVRO")
        values = AvroValues(used.text, used.named)
        # Otherwise fields missing in the schema are silently left out.
        conf_options = {"validate.strict.allow.default": True, **used.serializer}
        reading = {**used.deserializer}
        reading["schema.id.deserializer"] = _payload_reader(
            reading.get("schema.id.deserializer", dual_schema_id_deserializer),
            _AvroWriters(
                link, reading.get("subject.name.strategy"), pinned=source.subject is not None
            ),
        )
        write: Any = avro.AvroSerializer
        read: Any = avro.AvroDeserializer
        return _Codec(
            link,
            "AVRO",
            lambda: write(used.client, used.schema, conf=conf_options),
            _checked_call(lambda: read(link.client, used.schema, conf=reading)),
            check=values.checked_payload if values.is_bytes else values.checked,
            check_read=values.of_payload if values.is_bytes else None,
            refusal=values.refusal,
            in_order=values.in_order,
            json_form=AvroJson(values),
        )

    def protobuf(
        self, message_type: type[Any], source: SchemaSource, registry: Registry
    ) -> SchemaCodec:
        from confluent_kafka.schema_registry import protobuf  # noqa: PLC0415 - needs the extra

        link = self._link(registry)
        used = link.used(source, "PROTOBUF")
        if source.subject is not None:
            _check_message(message_type.DESCRIPTOR, source, used.text)
        # confluent-kafka before 2.13 requires it; the deprecated format was a bug.
        old = {"use.deprecated.format": False}
        writing, reading = {**old, **used.serializer}, {**old, **used.deserializer}
        write: Any = protobuf.ProtobufSerializer
        read: Any = protobuf.ProtobufDeserializer
        # confluent-kafka cannot parse the schema of a built-in file; without a client it does not
        # try.
        is_built_in = message_type.DESCRIPTOR.file.name.startswith(_BUILT_IN_FILES)
        reading_client = None if is_built_in else link.client
        return _Codec(
            link,
            "PROTOBUF",
            lambda: write(message_type, used.client, writing),
            _checked_call(lambda: read(message_type, reading, reading_client)),
            check_data=ProtobufWriters(message_type.DESCRIPTOR.full_name, link.schema_text).check,
            key_bytes=_with_sorted_maps,
        )

    def json_schema(self, source: SchemaSource, registry: Registry) -> SchemaCodec:
        from confluent_kafka.schema_registry import json_schema  # noqa: PLC0415 - needs the extra

        link = self._link(registry)
        used = link.used(source, "JSON")
        checks = PlainJsonSchema(used.text, used.named)
        writing, reading = dict(used.serializer), dict(used.deserializer)
        validates = writing.get("validate", True) is not False
        # Validation by confluent-kafka fetches any unknown `$ref`, so it is off, unless
        # confluent-kafka also chooses the schema.
        chosen = any(writing.get(name) for name in _CHOOSES_SCHEMA)
        if not chosen:
            writing["validate"] = reading["validate"] = False
        write: Any = json_schema.JSONSerializer
        read: Any = json_schema.JSONDeserializer
        return _Codec(
            link,
            "JSON",
            lambda: write(used.schema, used.client, conf=writing, json_encode=dumps),
            _checked_call(
                lambda: read(
                    used.schema, schema_registry_client=link.client, conf=reading, json_decode=loads
                )
            ),
            reason=_json_reason,
            check=checks.checked if validates and not chosen else None,
            check_read=None if chosen else checks.checked,
            in_order=sorted_maps,
        )

    def portable_registry(self, registry: Registry) -> Registry:
        if not isinstance(registry, str | Mapping):
            raise TopologyError(
                f"registry= is a {type(registry).__name__}, which can't be sent to other processes, such as Spark's executors; give "
                "its URL, or a dict of settings with 'url'"
            )
        properties: Mapping[str, Any] = {"url": registry} if isinstance(registry, str) else registry
        for name, value in properties.items():
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
            # Keeps `registry` alive: its id must not be reused.
            self._links[key] = _linked(registry), registry
        return self._links[key][0]


class _Link:
    def __init__(self, client: Any, shown: str, settings: Mapping[str, Any]) -> None:
        self.shown = shown
        self.client = _Client(client, self)
        self.references = References(self.client.get_version, shown)
        # confluent-kafka's default strategy first queries the registry's associations. Older
        # registries lack them, and any answer but 404 makes the serialiser fail.
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
        """Return the schema of a record's first bytes, in the form for Protobuf's deserialiser."""
        return str(self.writer_schema(frame, fmt="serialized").schema_str)

    def writer_schema(self, frame: bytes, **form: str) -> Any:
        if frame[0]:
            return self.client.get_schema_by_guid(str(UUID(bytes=frame[1:])), **form)
        return self.client.get_schema(int.from_bytes(frame[1:], "big"), **form)

    def registered(self, subject: str, version: int | None, schema_type: str) -> Any:
        """Return a subject's registered version (None: latest); raise if its format differs."""
        form = {"fmt": "serialized"} if schema_type == "PROTOBUF" else {}
        subject_text = f"subject {subject!r}" + (
            f" version {version}" if version is not None else ""
        )
        try:
            registered = self.client.get_version(
                subject, "latest" if version is None else version, **form
            )
        except RegistryReply as error:
            status, text = error.http_status_code, str(error.error_message)[:_MESSAGE_MAX]
            problem = f"{self.shown}, {subject_text}: HTTP {status}, {text!r}"
            if error.error_code in NOT_FOUND:
                step = "register its schema, or correct the subject and its version"
            else:
                step = _next_step(status)
        else:
            if registered.schema.schema_type == schema_type:
                return registered
            what, serde = _TYPES.get(
                registered.schema.schema_type,
                (f"of type {registered.schema.schema_type}", "another serde"),
            )
            raise TopologyError(f"{self.shown}: {subject_text} is {what}; use {serde}")
        raise SchemaRegistryError(f"{problem}; {step}")

    def used(self, source: SchemaSource, schema_type: str) -> "_Used":
        text = source.text or ""
        if source.subject is None:
            if not source.references:
                return _Used(text, text, {}, self.client, self.serializer, self.deserializer)
            schema: Any = Schema(
                text, schema_type, [_reference(reference) for reference in source.references]
            )
            named = self.references.texts(schema)
            return _Used(text, schema, named, self.client, self.serializer, self.deserializer)
        registered = self.registered(source.subject, source.version, schema_type)
        schema, subject = registered.schema, source.subject
        named = self.references.texts(schema)
        if text.lstrip().startswith('"'):
            # Avro's serialiser needs the long form of a bare type such as `"string"`.
            schema = Schema(f'{{"type": {text}}}', schema_type, schema.references)
        strategy = {"subject.name.strategy": lambda _context, _name: subject}
        writing = {**_without(self.serializer, _OF_A_SUBJECT), **strategy}
        reading = {**_without(self.deserializer, _OF_A_SUBJECT), **strategy}
        writing["auto.register.schemas"] = False
        client: Any = _Pinned(self.client, registered)
        if schema.rule_set is not None:
            # Rules, such as encryption, apply only to a schema chosen by a setting.
            writing["use.schema.id"] = registered.schema_id
            client = self.client
        return _Used(text, schema, named, client, writing, reading)


class _Used(NamedTuple):
    """Schema, client and settings to make a codec's serialisers from.

    `schema` is the serialisers' form of `text`; `named` are referenced schemas by name.
    """

    text: str
    schema: Any
    named: Mapping[str, str]
    client: Any
    serializer: Mapping[str, Any]
    deserializer: Mapping[str, Any]


class _Pinned:
    """A client whose `lookup_schema` always returns one registered schema."""

    def __init__(self, client: "_Client", registered: Any) -> None:
        self._client = client
        self._registered = registered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lookup_schema(self, *_args: Any, **_kwargs: Any) -> Any:
        return self._registered


#: Client methods that fetch a record's schema. `_Client` checks its references before returning it:
#: confluent-kafka would follow circular ones forever.
_RETURN_SCHEMAS: Final = frozenset({"get_schema", "get_schema_by_guid"})


class _Client:
    """A registry client that raises `SchemaRegistryError` if the registry can't be reached."""

    def __init__(self, client: Any, link: _Link) -> None:
        self._client = client
        self._link = link

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if not callable(value):
            return value
        returns_schema = name in _RETURN_SCHEMAS

        @wraps(value)
        def ask(*args: Any, **kwargs: Any) -> Any:
            try:
                answer = value(*args, **kwargs)
            except RegistryReply:
                raise
            except Exception as error:  # noqa: BLE001 - any failure of HTTP, TLS, DNS or tokens
                problem = _problem(error)
            else:
                if returns_schema:
                    self._link.references.check(answer)
                return answer
            raise SchemaRegistryError(
                f"{self._link.shown} can't be reached ({problem}), tried several times; start it, or correct "
                "registry= of the serde"
            )

        setattr(self, name, ask)
        return ask


class _Codec:
    """A format's serialisers over one registry.

    One serialiser per topic and part (key, value): a shared one writes its last subject's id.
    """

    def __init__(
        self,
        link: _Link,
        schema_type: str,
        make_serializer: Callable[[], Any],
        deserializer: Any,
        *,
        reason: Callable[[Exception], str] | None = None,
        check: Callable[[Any], Any] | None = None,
        refusal: Callable[[Any], str] | None = None,
        check_data: Callable[[bytes], None] | None = None,
        check_read: Callable[[Any], Any] | None = None,
        in_order: Callable[[Any], Any] | None = None,
        key_bytes: Callable[[bytes, Any], bytes] | None = None,
        json_form: JsonForm | None = None,
    ) -> None:
        self.json_form = json_form
        self._link = link
        self._schema_type = schema_type
        self._make_serializer = make_serializer
        self._deserializer = deserializer
        self._reason = reason or _class_only
        self._check = check
        self._refusal = refusal
        self._check_data = check_data
        self._check_read = check_read
        self._in_order = in_order
        self._key_bytes = key_bytes
        self._spare = _checked_call(make_serializer)  # Made now, so wrong settings fail early.
        self._parts: dict[tuple[str, bool], tuple[SerializationContext, Any]] = {}
        self._making = threading.Lock()

    def encode(self, topic: str, value: Any, *, is_key: bool) -> bytes:
        """Return the bytes with the schema's id; a topic's first record registers it."""
        checked = value if self._check is None else self._check(value)
        context, serializer = self._part(topic, is_key=is_key)
        try:
            if is_key and self._in_order is not None:
                checked = self._in_order(checked)
            data = bytes(serializer(checked, context))
            return self._key_bytes(data, checked) if is_key and self._key_bytes else data
        except Exception as error:  # noqa: BLE001 - sorted out below, without the data that its text may quote
            failed = self._failed(error, topic, None)
            if isinstance(failed, CodecError) and self._refusal is not None:
                failed = CodecError(self._refusal(value))
        raise failed

    def sorted_key(self, data: bytes) -> bytes:
        """Return a stored key's bytes with sorted JSON maps; other formats stay unchanged."""
        if self._schema_type != "JSON" or not data or data[0] not in _MAGIC_BYTES:
            return data
        end = _GUID_FRAME_BYTES if data[0] else _FRAME_BYTES
        return data[:end] + dumps(loads(data[end:]), sort=True)

    def decode(self, topic: str, data: bytes, *, is_key: bool) -> Any:
        """Return the value, read by its writer's schema and converted to the serde's."""
        if len(data) < _FRAME_BYTES or data[0] not in _MAGIC_BYTES:
            raise CodecError(
                "they do not begin with a schema's id: no serialiser with a registry wrote them"
            )
        try:
            if self._check_data is not None:
                self._check_data(data)
            if len(data) == _FRAME_BYTES and self._schema_type == "AVRO":
                data = _Padded(data + b"\0")
            value = self._deserializer(data, self._part(topic, is_key=is_key)[0])
            return value if self._check_read is None else self._check_read(value)
        except Exception as error:  # noqa: BLE001 - as above
            failed = self._failed(error, topic, data)
        raise failed

    def _part(self, topic: str, *, is_key: bool) -> tuple[SerializationContext, Any]:
        part = self._parts.get((topic, is_key))
        if part is None:
            context = SerializationContext(
                topic, MessageField.KEY if is_key else MessageField.VALUE
            )
            with self._making:  # Key ranges serialise in several threads.
                part = self._parts.get((topic, is_key))
                if part is None:
                    serializer, self._spare = self._spare or self._make_serializer(), None
                    part = self._parts[topic, is_key] = context, serializer
        return part

    def _failed(self, error: Exception, topic: str, data: bytes | None) -> Exception:
        if isinstance(error, StreamsError | CodecError):
            return error
        if not isinstance(error, RegistryReply):
            return CodecError(self._other_format(data) or self._reason(error))
        if data is not None and error.error_code in NOT_FOUND:
            number = int.from_bytes(data[1:_FRAME_BYTES], "big")
            return CodecError(
                f"schema {number} is not in {self._link.shown}: another one wrote them"
            )
        status, text = error.http_status_code, str(error.error_message)[:_MESSAGE_MAX]
        return SchemaRegistryError(
            f"{self._link.shown}, topic {topic!r}: HTTP {status}, {text!r}; {_next_step(status)}"
        )

    def _other_format(self, data: bytes | None) -> str | None:
        """Return an error text if `data` was written in another format, else None."""
        if data is None:
            return None
        try:
            written = self._link.writer_schema(
                data[:_GUID_FRAME_BYTES] if data[0] else data[:_FRAME_BYTES]
            )
        except Exception:  # noqa: BLE001 - the first error is the one to report
            return None
        if written.schema_type == self._schema_type:
            return None
        what, serde = _TYPES.get(
            written.schema_type, (f"a {written.schema_type} schema", "its serde")
        )
        return f"{what} wrote them; read the topic with {serde}"


class _Padded(bytes):
    """A frame plus one byte: the Avro deserialiser rejects values of no bytes (empty records)."""


def _payload_reader(read_id: Any, writers: "_AvroWriters") -> Callable[[bytes, Any, Any], Any]:
    def read(data: bytes, context: Any, schema_id: Any) -> Any:
        payload = read_id(data[:-1] if isinstance(data, _Padded) else data, context, schema_id)
        writers.check(payload, context, schema_id)
        return payload

    return read


class _AvroWriters:
    """Check of records against the schemas that wrote them, by schema id."""

    def __init__(self, link: _Link, subject_of: Any, *, pinned: bool) -> None:
        self._link = link
        #: Strategy of ours; a user's may have other arguments.
        is_ours = pinned or subject_of is topic_subject_name_strategy
        self._subject_of = subject_of if is_ours else None
        #: None: the schema has no arrays whose items have no bytes, or its records are encrypted.
        self._values: dict[tuple[Any, Any], AvroValues | None] = {}

    def check(self, payload: Any, context: Any, schema_id: Any) -> None:
        key = (schema_id.id, schema_id.guid)
        if key not in self._values:
            self._values[key] = self._values_of(schema_id, context)
        values = self._values[key]
        if values is not None:
            values.check_size(payload.getvalue()[payload.tell() :])

    def _values_of(self, schema_id: Any, context: Any) -> AvroValues | None:
        if schema_id.id is None:
            schema = self._link.client.get_schema_by_guid(str(schema_id.guid))
        else:
            # The subject that the deserialiser requests next: the client caches the answer.
            subject = None if self._subject_of is None else self._subject_of(context, None)
            schema = self._link.client.get_schema(schema_id.id, subject)
        if schema.rule_set is not None and schema.rule_set.encoding_rules:
            return None  # only owners of the key can have written them
        values = AvroValues(schema.schema_str, self._link.references.texts(schema))
        return values if values.has_empty_items else None


def _check_message(descriptor: Any, source: SchemaSource, schema: str) -> None:
    name, expected = "no message", descriptor.full_name
    with suppress(CodecError):
        name = message_name(schema, message_indexes(descriptor))
    if name != expected:
        raise TopologyError(
            f"Serdes.protobuf: subject {source.subject!r} version {source.version} has {name} in the place of {expected}; give "
            "the class that protoc generated from this schema"
        )


def _with_sorted_maps(data: bytes, message: Any) -> bytes:
    """Return key bytes with sorted maps; unchanged if a registry rule encrypted or changed them."""
    plain = message.SerializeToString()
    return (
        data[: len(data) - len(plain)] + message.SerializeToString(deterministic=True)
        if data.endswith(plain)
        else data
    )


def _reference(reference: Reference) -> Any:
    return SchemaReference(reference.name, reference.subject, reference.version)


def _without(settings: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if not name.startswith(prefixes)}


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
        return isinstance(value, str) and redacted_url(value) == value
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
    client_settings = {name: value for name, value in registry.items() if name not in settings}
    url = client_settings.get("url")
    urls = [part.strip() for part in url.split(",")] if isinstance(url, str) else [""]
    if not all(part.startswith(("http://", "https://", "mock://")) for part in urls):
        raise TopologyError(
            "registry= has no URL, or one that does not begin with http:// or https://; give it, or several "
            "with commas between them"
        )
    without_users = _without_users(urls)
    properties = {
        "timeout": _TIMEOUT_S,
        **without_users,
        **resolve_secrets({**client_settings, "url": without_users["url"]}, "registry"),
    }
    return _Link(
        _checked_call(lambda: SchemaRegistryClient.new_client(properties)),
        "schema registry " + ",".join(map(redacted_url, urls)),
        settings,
    )


def _without_users(urls: Sequence[str]) -> dict[str, str]:
    """Move user and password from the URLs, which the HTTP client logs, to their own property."""
    try:
        parts = [urlsplit(url) for url in urls]
        clean = [urlunsplit(each._replace(netloc=each.netloc.rpartition("@")[2])) for each in parts]
        users = {(each.username, each.password or "") for each in parts if each.username}
    except ValueError:  # its text may quote a password
        raise TopologyError("registry= has a URL that can't be parsed; correct it") from None
    if len(users) > 1:
        raise TopologyError(
            "registry= has URLs of different users, and one user logs in to all; give it as 'basic.auth.user.info'"
        )
    properties = {"url": ",".join(clean)}
    for name, password in users:
        properties["basic.auth.user.info"] = f"{unquote(name)}:{unquote(password)}"
    return properties


def _checked_call(make: Callable[[], Any]) -> Any:
    """Return a client or serialiser; convert its errors about settings."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise TopologyError(f"registry=: {error}; correct it") from None


def _problem(error: Exception) -> str:
    text = str(error)
    # A URL may contain a password.
    return type(error).__name__ + (f": {text}" if text and "://" not in text else "")


def _class_only(error: Exception) -> str:
    return f"raised {type(error).__name__}"


def _json_reason(error: Exception) -> str:
    cause = error.__context__
    if isinstance(error, ConfluentError) and hasattr(cause, "json_path"):
        return json_schema_reason(cause)
    return _class_only(error)


FORMATS: Final = ConfluentFormats()
