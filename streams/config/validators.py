"""Checks of single options: conversion of user values.

Checks accept keywords, environment variables and TOML values. They are idempotent.
"""

import dataclasses
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar, cast, get_args

from pydantic import PlainValidator

from tidewheel.rebalance.assignors.builtin import BUILT_IN
from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.streams.config.client_properties import BadPropertyError
from tidewheel.streams.config.names import (
    import_object,
    importable_name,
    is_importable_name,
)
from tidewheel.streams.config.secrets import TOKEN_CHARACTERS_MIN, is_reference, is_token
from tidewheel.streams.config.sources import is_utf8
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.definitions.store_suppliers import (
    DslStoreFormat,
    DslStoreSuppliers,
    DslStoreType,
)
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.serdes import SERDE_NAMES, Serde, as_serde, serde_named
from tidewheel.streams.user_functions import accepts, function_name, is_async
from tidewheel.tasks.durations import parse_ms
from tidewheel.tasks.kafka.internal_topics import fault_of_repartition_config
from tidewheel.tasks.processing.api.timestamps import NAMED_EXTRACTORS
from tidewheel.tasks.processing.engine.processor_wrapper import ProcessorWrapper

T = TypeVar("T")

#: Application ids and other names that become a directory, topic or transactional id.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SIZE: Final = re.compile(r"([0-9][0-9_]*)(?:\.([0-9]+))?\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)?")
_UNIT_BYTES: Final = {
    "B": 1, "kB": 1_000, "KB": 1_000, "MB": 1_000**2, "GB": 1_000**3,
    "KiB": 1_024, "MiB": 1_024**2, "GiB": 1_024**3,
}  # fmt: skip
_ADDRESS: Final = re.compile(r"(?:[A-Z_]+://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s,:/\[\]]+):([0-9]{1,5})")
_PORT_MAX: Final = 65_535
_HOST: Final = re.compile(r"[0-9A-Za-z._:%-]{1,253}")
#: Matches `s3:/bucket` and `file:/path`, which would be read as directories, but not
#: `simplecache::s3://bucket`.
_HALF_A_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(?!//|:)")
_FILE_OF_A_HOST: Final = re.compile(r"file://[^/]")
_LABEL_CHARACTERS_MAX: Final = 255
_STORE_TYPES: Final = get_args(DslStoreType)
_STORE_FORMATS: Final = get_args(DslStoreFormat)
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
#: Partitioner names; `tidewheel.streams.topology.key_placement` implements them.
INPUT_PARTITIONERS: Final = ("murmur2", "crc32", "fnv1a", "unknown")

TASK_ASSIGNORS: Final = (*BUILT_IN, "fixed")
#: Topology optimisations, Kafka Streams' names with underscores.
OPTIMIZATIONS: Final = (
    "merge_repartition_topics",
    "reuse_ktable_source_topics",
    "single_store_self_join",
)


def parse_bytes(value: object) -> int:
    """Return a size in bytes from an int or text with a unit; raise ValueError otherwise.

    >>> parse_bytes("64 MiB"), parse_bytes("1.5KiB"), parse_bytes(1024)
    (67108864, 1536, 1024)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a size in bytes, as 1048576 or "64 MiB"')
    whole, fraction, unit = match.groups()
    factor = _UNIT_BYTES[unit or "B"]
    size_bytes = int(whole) * factor
    if fraction is not None:
        size_bytes += int(fraction) * factor // 10 ** len(fraction)
    return size_bytes


def integer(
    minimum: int, maximum: int | None = None, *, words: Collection[str] = ()
) -> PlainValidator:
    bounds = f"of at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
    requirement = f"must be a whole number {bounds}" + "".join(f", or {word!r}" for word in words)

    def check(value: object) -> int | str:
        if isinstance(value, str):
            if value in words:
                return value
            try:
                value = int(value)
            except ValueError:
                raise ValueError(requirement) from None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(requirement)  # noqa: TRY004 - pydantic reports ValueError
        return _in_range(value, minimum, maximum, requirement)

    return PlainValidator(check)


def power_of_two(maximum: int) -> PlainValidator:
    requirement = f"must be a power of two from 1 to {maximum}"

    def check(value: object) -> int:
        number = int(value) if isinstance(value, str) and value.isdecimal() else value
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(requirement)  # noqa: TRY004 - pydantic reports ValueError
        if number > 0 and number & (number - 1):
            raise ValueError(requirement)
        return _in_range(number, 1, maximum, requirement)

    return PlainValidator(check)


def milliseconds(minimum: int) -> PlainValidator:
    requirement = f"must be a duration of at least {minimum} ms, as 500 or '500ms'"

    def check(value: object) -> int:
        if isinstance(value, str):
            try:
                value = parse_ms(value)
            except ValueError as error:
                raise ValueError(f"{requirement}: it {error}") from None
        if not isinstance(value, int | timedelta) or isinstance(value, bool):
            raise ValueError(requirement)  # noqa: TRY004 - pydantic reports ValueError
        if isinstance(value, timedelta):
            try:
                value = to_ms(value, minimum_ms=minimum, error=ConfigError)
            except ConfigError:
                raise ValueError(requirement) from None
        return _in_range(value, minimum, None, requirement)

    return PlainValidator(check)


def size(minimum: int) -> PlainValidator:

    def check(value: object) -> int:
        return _in_range(
            parse_bytes(value), minimum, None, f"must be a size of at least {minimum} bytes"
        )

    return PlainValidator(check)


def _in_range(value: int, minimum: int, maximum: int | None, requirement: str) -> int:
    if value < minimum or (maximum is not None and value > maximum):
        raise ValueError(requirement)
    return value


def check_boolean(value: object) -> bool:
    text = str(value).lower()
    if isinstance(value, bool | str) and text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError("must be true or false")


def one_of(*choices: str) -> PlainValidator:
    def check(value: object) -> str:
        if isinstance(value, str) and value in choices:
            return value
        raise ValueError(_must_be_one_of(value, choices))

    return PlainValidator(check)


def _must_be_one_of(value: object, choices: Iterable[str]) -> str:
    choices_text = ", ".join(repr(choice) for choice in choices)
    hint = did_you_mean(value, choices) if isinstance(value, str) else ""
    return f"must be one of {choices_text}" + (f"; {hint}" if hint else "")


def optional(check: Callable[[Any], T]) -> PlainValidator:
    return PlainValidator(lambda value: None if value is None else check(value))


def check_name(value: object) -> str:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    raise ValueError(
        "must be 1 to 200 letters, digits, '.', '_' or '-', starting with a letter or digit, because directories, "
        "topics and transactional ids are named after it"
    )


def check_topic(value: object) -> str:
    if isinstance(value, str) and _TOPIC.fullmatch(value) and value not in {".", ".."}:
        return value
    raise ValueError("must be a topic name: 1 to 249 letters, digits, '.', '_' or '-'")


def check_label(value: object) -> str:
    if isinstance(value, str) and 0 < len(value) <= _LABEL_CHARACTERS_MAX and value.isprintable():
        return value
    raise ValueError(f"must be text of 1 to {_LABEL_CHARACTERS_MAX} printable characters")


def _address(value: str) -> bool:
    match = _ADDRESS.fullmatch(value)
    return match is not None and 0 < int(match[1]) <= _PORT_MAX


def check_servers(value: object) -> str:
    if isinstance(value, str):
        value = value.split(",")
    if isinstance(value, list | tuple):
        servers = [str(server).strip() for server in value]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - a list of anything
        if servers and all(map(_address, servers)):
            return ",".join(servers)
    raise ValueError(
        "must be brokers as 'host:port,host:port', such as localhost:9092, or a list of them"
    )


def check_endpoint(value: object) -> str:
    if isinstance(value, str) and _address(value):
        return value
    raise ValueError("must be the 'host:port' at which other members reach this process")


def check_port(value: object) -> int:
    text = str(value)
    if isinstance(value, int | str) and text.isdecimal() and int(text) <= _PORT_MAX:
        return int(text)
    raise ValueError(f"must be a port, from 1 to {_PORT_MAX}, or 0 for a free one")


def check_host(value: object) -> str:
    if isinstance(value, str) and _HOST.fullmatch(value):
        return value
    raise ValueError("must be an address or host name of this machine, as '127.0.0.1' or '0.0.0.0'")


def check_secret(value: object) -> str:
    if isinstance(value, str) and (is_reference(value) or is_token(value)):
        return value
    raise ValueError(
        f"must be {TOKEN_CHARACTERS_MIN} or more ASCII characters without blanks, as `openssl rand -hex 16` prints "
        "them, or a reference to them, as 'file:/run/secrets/token' or 'env:NAME'"
    )


def _absolute(path: str | os.PathLike[str]) -> Path:
    try:
        absolute = Path(path).expanduser().absolute()
    except RuntimeError:
        raise ValueError(
            "must be a path; no home directory is known for the user after '~', so write the whole path"
        ) from None
    if not is_utf8(str(absolute)):
        # Commands print it, and it travels to other processes as JSON.
        raise ValueError(
            f"must be a path in UTF-8, and {str(absolute)!a} has other bytes; rename the folder"
        )
    return absolute


def check_directory(value: object) -> Path:
    if isinstance(value, str | os.PathLike) and str(value) and "\0" not in str(value):  # pyright: ignore[reportUnknownArgumentType] - PathLike of anything
        # Absolute, so helper processes and later `chdir` calls don't change the directory.
        return _absolute(value)  # pyright: ignore[reportUnknownArgumentType] - PathLike of anything
    raise ValueError("must be the path of a directory")


def check_location(value: object) -> str:
    text = str(value) if isinstance(value, str | os.PathLike) else ""  # pyright: ignore[reportUnknownArgumentType] - PathLike of anything
    if not text:
        raise ValueError("must be a directory or an fsspec URL, as 's3://bucket/snapshots'")
    if _HALF_A_URL.match(text):
        raise ValueError(
            "must be a directory or an fsspec URL with two slashes, as 's3://bucket/snapshots' or 'file:///snapshots'; "
            "for a directory of that name write './' before it"
        )
    if _FILE_OF_A_HOST.match(text):
        raise ValueError(
            "must have three slashes if it is a file URL, as 'file:///snapshots': the part after two slashes is a host"
        )
    # Absolute: Spark executors read and write snapshots here from other working directories.
    return text if ":" in text.partition("/")[0] else str(_absolute(text))


def check_replicas(value: object) -> int:
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = None
    if isinstance(number, int) and not isinstance(number, bool) and (number == -1 or number >= 1):
        return number
    raise ValueError("must be a number of replicas from 1, or -1 for the cluster's default")


def check_tags(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("must be a table of texts, as {'zone': 'a'}")  # noqa: TRY004 - pydantic reports ValueError
    # Members send names and tags to the leader, in a message that limits both texts.
    return MappingProxyType({check_name(key): check_label(tag) for key, tag in value.items()})  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - a mapping of anything, checked here


def check_topic_config(value: object) -> Mapping[str, str]:
    fault = fault_of_repartition_config(value)
    if fault:
        raise ValueError(fault)
    return MappingProxyType(dict(cast("Mapping[str, str]", value)))


def check_partitioners(value: object) -> Mapping[str, str]:
    table = check_tags(value)
    for topic, name in table.items():
        if name not in INPUT_PARTITIONERS:
            raise ValueError(f"{topic}: {_must_be_one_of(name, INPUT_PARTITIONERS)}")
    return table


def check_optimization(value: object) -> Literal["all", "none"] | frozenset[str]:
    if value in ("all", "none"):
        return value
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
    if not isinstance(value, Collection):
        raise ValueError(_must_be_one_of(value, ("all", "none", *OPTIMIZATIONS)))  # noqa: TRY004 - pydantic reports ValueError
    names = frozenset(str(name).replace(".", "_") for name in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - a collection of anything
    for name in sorted(names.difference(OPTIMIZATIONS)):
        raise ValueError(_must_be_one_of(name, ("all", "none", *OPTIMIZATIONS)))
    return names


def check_assignor(value: object) -> str:
    if isinstance(value, str):
        if value in TASK_ASSIGNORS or is_importable_name(value):
            return value
        raise ValueError(f'{_must_be_one_of(value, TASK_ASSIGNORS)}, or a "module:name"')
    if callable(value):
        return _reported(importable_name, value)
    raise ValueError(f'{_must_be_one_of(value, TASK_ASSIGNORS)}, or a "module:name" or its object')


def _callable(value: object, arguments: int, requirement: str) -> Any:
    if isinstance(value, str):
        if not is_importable_name(value):
            raise ValueError(f'must be {requirement}, or the "module:name" of one')
        value = _reported(import_object, value)
    if not callable(value):
        raise ValueError(f'must be {requirement}, or the "module:name" of one')  # noqa: TRY004 - pydantic reports ValueError
    if not accepts(value, arguments):
        raise ValueError(f"must be {requirement}; {function_name(value)} can't be called so")
    return value


def check_handler(value: object) -> Any:
    if value in ("fail", "continue"):
        return value
    return _callable(
        value, 3, "'fail', 'continue' or a function (context, record, exception) -> ErrorResponse"
    )


def check_extractor(value: object) -> Any:
    named = NAMED_EXTRACTORS.get(value) if isinstance(value, str) else value
    if inspect.isclass(named) and accepts(named, 0):
        value = named()
    extractor = _callable(value, 2, "a function (record, highest timestamp so far) -> ms")
    if is_async(extractor):
        raise ValueError("must be a plain function; an async one is not awaited here")
    return extractor


def check_wrapper(value: object) -> Any:
    if isinstance(value, str) and is_importable_name(value):
        value = _reported(import_object, value)
    if isinstance(value, ProcessorWrapper):
        return value
    if inspect.isclass(value) and issubclass(value, ProcessorWrapper):
        if not accepts(value, 0):
            raise ValueError(
                f"must be made without arguments, which {value.__qualname__} is not; give an object of it"
            )
        return value
    raise ValueError(
        'must be a ProcessorWrapper class or an object of one, or the "module:name" of either'
    )


def check_store_suppliers(value: object) -> Any:
    if isinstance(value, str) and value not in _STORE_TYPES and is_importable_name(value):
        value = _reported(import_object, value)
    if value in _STORE_TYPES or isinstance(value, DslStoreSuppliers):
        return value
    if inspect.isclass(value) and issubclass(value, DslStoreSuppliers) and accepts(value, 0):
        return value
    raise ValueError(
        "must be 'rocksdb', 'in_memory', or a DslStoreSuppliers class that is made without arguments, an object of one, "
        'or the "module:name" of either'
    )


def check_store_format(value: object) -> str:
    if isinstance(value, str) and value.upper() in _STORE_FORMATS:
        return value.upper()
    raise ValueError(_must_be_one_of(value, _STORE_FORMATS))


def check_serde(value: object) -> Serde[Any]:
    if isinstance(value, str):
        named = serde_named(value)
        if named is not None:
            return named
        if not is_importable_name(value):
            raise ValueError(f'{_must_be_one_of(value, SERDE_NAMES)}, or a "module:name"')
        value = _reported(import_object, value)
    serde: Any = value
    return _reported(as_serde, serde)


def _reported(function: Callable[[Any], T], value: Any) -> T:
    """Return the function's result; convert our errors to the ValueError that pydantic collects."""
    try:
        return function(value)
    except StreamsError as error:
        raise ValueError(str(error)) from error


def check_rocksdb(value: object) -> RocksDBOptions:
    if isinstance(value, RocksDBOptions):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("must be RocksDBOptions(...) or a table of its options")  # noqa: TRY004 - pydantic reports ValueError
    fields = {field.name for field in dataclasses.fields(RocksDBOptions)}
    options: dict[str, Any] = {}
    for key, option in value.items():  # pyright: ignore[reportUnknownVariableType] - a mapping of anything, checked here
        name = str(key)  # pyright: ignore[reportUnknownArgumentType] - a mapping of anything
        if name not in fields:
            hint = did_you_mean(name, fields) or f"known are {', '.join(sorted(fields))}"
            raise BadPropertyError(name, f"is no option of RocksDB here; {hint}")
        options[name] = _rocksdb_value(name, option)
    for name, option in options.items():
        try:  # one option at a time, so the message can name its source
            RocksDBOptions(**{name: option})
        except (ValueError, TypeError) as error:
            raise BadPropertyError(name, str(error)) from None
    return RocksDBOptions(**options)


def _rocksdb_value(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        if name.endswith("_bytes"):
            return parse_bytes(value)
        if name.endswith("_ms"):
            return parse_ms(value)
    except ValueError as error:
        raise BadPropertyError(name, str(error)) from None
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            continue
    return value
