"""References between a registry's schemas, each fetched once.

Checked here, because confluent-kafka's serialisers loop forever on circular references and do not
name a missing schema.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka.schema_registry.error import SchemaRegistryError as RegistryReply

from tidewheel.streams.errors import SchemaRegistryError

#: Protobuf's own files, which are not in the registry.
_BUILT_IN: Final = ("google/protobuf/", "google/type/", "confluent/")
#: The registry's codes for a missing subject, version or schema.
NOT_FOUND: Final = range(40400, 40500)

_At = tuple[str, int]


class References:
    def __init__(self, get_version: Callable[..., Any], shown: str) -> None:
        self._get_version = get_version
        self._shown = shown
        self._texts_by_version: dict[_At, tuple[str, Mapping[str, str]]] = {}
        self._checked: set[Any] = set()

    def check(self, schema: Any) -> None:
        """Raise `SchemaRegistryError` if a reference cannot be resolved; fetch each schema once."""
        if schema.references and schema not in self._checked:
            self.texts(schema)
            self._checked.add(schema)

    def texts(self, schema: Any) -> dict[str, str]:
        return self._texts(schema, ())

    def _texts(self, schema: Any, path: tuple[_At, ...]) -> dict[str, str]:
        texts: dict[str, str] = {}
        for reference in schema.references or ():
            if reference.name.startswith(_BUILT_IN):
                continue
            version: _At = (reference.subject, reference.version)
            if version in path:
                circle = " → ".join(map(_shown, (*path[path.index(version) :], version)))
                raise SchemaRegistryError(
                    f"{self._shown}: schemas refer to each other in a circle ({circle}); register one of them without "
                    "its reference"
                )
            if version not in self._texts_by_version:
                schema_version = self._fetch(reference, version, schema.schema_type)
                self._texts_by_version[version] = (
                    schema_version.schema_str,
                    self._texts(schema_version, (*path, version)),
                )
            text, inner = self._texts_by_version[version]
            texts |= {**inner, reference.name: text}
        return texts

    def _fetch(self, reference: Any, version: _At, schema_type: str) -> Any:
        # Protobuf's deserialiser needs the "serialized" form. The client caches a schema in the
        # form first requested, so always request this one.
        form = {"fmt": "serialized"} if schema_type == "PROTOBUF" else {}
        try:
            schema = self._get_version(*version, deleted=True, **form).schema
        except RegistryReply as error:
            is_missing = error.error_code in NOT_FOUND
            problem = "does not have" if is_missing else f"refuses (HTTP {error.http_status_code})"
            step = "register it again" if is_missing else "allow these credentials to read it"
        else:
            if schema.schema_type == schema_type:
                return schema
            problem = f"has as a schema of type {schema.schema_type} instead of {schema_type}"
            step = "correct the reference"
        raise SchemaRegistryError(
            f"{self._shown}: a schema refers to {reference.name!r}, which is {_shown(version)}, and the registry {problem} it; "
            f"{step}"
        )


def _shown(version: _At) -> str:
    return f"subject {version[0]!r} version {version[1]}"
