"""Sources of settings: the command line, keywords, environment variables, a TOML file.

The first source that has an option wins.

Tables (`kafka`, `consumer`, `producer`, `admin`, `client_tags`, `rocksdb`) are merged key by key: a password
may come from the environment, the rest from a file. Unknown names are errors; in the environment
only names similar to an option's are, because clusters inject their own variables.
"""

import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import msgspec
import orjson

from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.errors import ConfigError

PREFIX: Final = "TIDEWHEEL_"
#: Variable with the path of the settings file.
FILE_VARIABLE: Final = "TIDEWHEEL_CONFIG_FILE"
#: Settings file in the working directory, read if it exists.
FILE_NAME: Final = "tidewheel.toml"
#: Tidewheel's variables that are not options, ignored here.
OTHER_VARIABLES: Final = frozenset({
    FILE_VARIABLE,
    "TIDEWHEEL_CACHE_DIR",
    "TIDEWHEEL_IVY_JAR",
    "TIDEWHEEL_IVY_SETTINGS",
})  # fmt: skip
#: Prefix of variables for tests and benchmarks, ignored here.
TEST_PREFIX: Final = "TIDEWHEEL_TEST_"
#: Endings of variables that Kubernetes injects for each service (`enableServiceLinks`). Those of a
#: service named `tidewheel…` start like options, and are ignored.
_SERVICE_LINK: Final = re.compile(
    r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
#: Prefixes of librdkafka's security properties. Only `kafka`, `consumer`, `producer` and `admin` take these,
#: so a variable such as TIDEWHEEL_SASL_PASSWORD is an error.
_CLIENT_PROPERTY: Final = ("sasl", "ssl", "security")

_log = logging.getLogger(__name__)

CLIENTS: Final = frozenset({"kafka", "consumer", "producer", "admin"})
#: Tables with dotted keys; in names of environment variables underscores replace the dots.
_DOTTED: Final = CLIENTS | {"repartition_topic_config"}
_TABLES_DEEP_MAX: Final = 20
_FILE_MAX_BYTES: Final = 1 << 20
TABLES: Final = _DOTTED | {"client_tags", "input_partitioners", "rocksdb"}

COMMAND_LINE: Final = "command line"
KEYWORD: Final = "keyword"
DEFAULT: Final = "default"


class Settings(msgspec.Struct, frozen=True):
    """Unchecked values, and their origins by "option" and, in tables, "option.key"."""

    values: dict[str, Any]
    origins: dict[str, str]


#: (option, key in a table or None, value, origin)
_Setting = tuple[str, str | None, Any, str]


def collect(
    options: Collection[str],
    keywords: Mapping[str, Any],
    file: Path | None,
    environ: Mapping[str, str] | None = None,
    command_line: Mapping[str, Any] = MappingProxyType({}),
) -> Settings:
    """Return the merged settings; the first source with an option, or a table's key, wins."""
    settings = Settings({}, {})
    environment = _from_environment(options, os.environ if environ is None else environ)
    from_file = _from_file(options, file) if file is not None else iter(())
    for source in (
        _from_keywords(options, command_line, COMMAND_LINE),
        _from_keywords(options, keywords, KEYWORD),
        environment,
        from_file,
    ):
        # An option that is no dict is complete: it hides the values of later sources.
        closed = {
            option
            for option, value in settings.values.items()
            if option not in TABLES or not isinstance(value, dict)
        }
        for option, key, value, origin in source:
            if option not in closed:
                _add(settings, option, key, value, origin)
    return settings


def settings_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file named by the environment, else the working directory's, else None."""
    named = environ.get(FILE_VARIABLE)
    if named:
        return expanded(named)
    path = Path(FILE_NAME)
    return path if path.is_file() else None


def expanded(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"settings file {str(path)!r}: no home directory is known for the user after '~'; write the whole path"
        ) from None


def _add(settings: Settings, option: str, key: str | None, value: Any, origin: str) -> None:
    if key is None:
        if value == {}:  # an empty table adds no key
            value = settings.values.get(option, value)
        settings.values[option] = value
        settings.origins.setdefault(option, origin)
        return
    table = settings.values.setdefault(option, {})
    settings.origins.setdefault(option, origin)
    if key not in table:
        table[key] = value
        settings.origins[f"{option}.{key}"] = origin


def _from_keywords(
    options: Collection[str], keywords: Mapping[str, Any], origin: str
) -> Iterator[_Setting]:
    for option, value in keywords.items():
        if option not in options:
            raise _unknown(option, origin, options)
        yield from _spread(option, value, origin)


def _from_environment(options: Collection[str], environ: Mapping[str, str]) -> Iterator[_Setting]:
    # Longer names first, so TIDEWHEEL_CONSUMER__X, which sets one key, wins over
    # TIDEWHEEL_CONSUMER (JSON).
    names = [name for name in environ if name.upper().startswith(PREFIX)]
    for name in sorted(names, key=lambda name: (-len(name), name)):
        text = environ[name]
        if not is_utf8(text):
            raise ConfigError(
                f"environment variable {name!a} has bytes that are not UTF-8; write its value in UTF-8, and rename a "
                "file or folder with such a name"
            )
        if name.upper() in OTHER_VARIABLES or name.upper().startswith(TEST_PREFIX):
            continue
        option, nested, key = name[len(PREFIX) :].lower().partition("__")
        origin = f"environment variable {name}"
        if option not in options:
            if _is_meant_as_option(option, options):
                raise _unknown(option, origin, options, shown=name)
            _log.debug("environment variable %s is no option of Tidewheel; it is ignored", name)
            continue
        if nested and (option not in TABLES or not key):
            raise _unknown(option, origin, options, shown=name)
        if not text:  # an empty value in a shell or compose file means unset
            continue
        if nested:
            yield option, _property_name(key) if option in _DOTTED else key, text, origin
        elif option in TABLES:
            yield from _spread(option, _json_table(text, origin), origin)
        else:
            yield option, None, text, origin


def _is_meant_as_option(option: str, options: Collection[str]) -> bool:
    """Return True if an unknown variable is a misspelt option, not another program's variable."""
    if _SERVICE_LINK.fullmatch(option.upper()):
        return False
    return bool(
        did_you_mean(option, options)
        or option.startswith((*_CLIENT_PROPERTY, *(f"{table}_" for table in TABLES)))
    )


def _from_file(options: Collection[str], file: Path) -> Iterator[_Setting]:
    import tomllib  # noqa: PLC0415 - most applications have no file

    try:
        with file.open("rb") as stream:
            data = stream.read(_FILE_MAX_BYTES + 1)
        if len(data) > _FILE_MAX_BYTES:
            raise ConfigError(
                f"settings file {str(file)!r} has more than {_FILE_MAX_BYTES:,} bytes; correct the path"
            )
        content = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(
            f"settings file {str(file)!r} can't be read ({error.strerror}); correct the path, which --config or {FILE_VARIABLE} gives"
        ) from error
    except (ValueError, RecursionError) as error:
        # Shows no secrets: the error quotes at most one character.
        raise ConfigError(f"settings file {str(file)!r} is not TOML: {error}; correct it") from None
    for option, value in content.items():
        origin = f"{file}, key {option}"
        if option not in options:
            raise _unknown(option, origin, options)
        yield from _spread(option, value, origin)


def _spread(option: str, value: Any, origin: str) -> Iterator[_Setting]:
    if option not in TABLES or not isinstance(value, Mapping):
        yield option, None, value, origin
        return
    table: Mapping[Any, Any] = cast("Any", value)
    if not table:
        yield option, None, {}, origin
    keys = set[Any]()
    for key, item in _flat(table) if option in _DOTTED else table.items():
        if key is None:
            raise ConfigError(
                f"{option} ({origin}): more than {_TABLES_DEEP_MAX} tables are nested; write names with dots"
            )
        if key in keys:
            raise ConfigError(f"{option}[{key!r}] ({origin}) is given twice; remove one of them")
        keys.add(key)
        yield option, key, item, origin


def _flat(table: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[Any, Any]]:
    """Yield nested tables as dotted names: TOML reads `security.protocol = "SSL"` as a nested table.

    The name is None if too many are nested.
    """
    for key, value in table.items():
        name = f"{prefix}{key}" if prefix else key
        if not isinstance(value, Mapping) or not isinstance(key, str):
            yield name, value
        elif prefix.count(".") > _TABLES_DEEP_MAX:
            yield None, value
        else:
            yield from _flat(value, f"{name}.")  # pyright: ignore[reportUnknownArgumentType] - a mapping of anything


def _property_name(key: str) -> str:
    """Return librdkafka's name for a variable's suffix: SASL_PASSWORD -> sasl.password."""
    if key == "log_level" or key.endswith("_cb"):
        return key
    return key.replace("_", ".")


def _json_table(text: str, origin: str) -> dict[str, Any]:
    try:
        table = orjson.loads(text)
    except orjson.JSONDecodeError:
        table = None
    if not isinstance(table, dict):
        # The text may contain secrets, so it is not quoted.
        raise ConfigError(
            f'{origin} is not a JSON object; write {{"name": "value"}}, or one variable per key as '
            f"{origin.removeprefix('environment variable ')}__NAME"
        )
    return cast("dict[str, Any]", table)


def _unknown(
    option: str, origin: str, options: Collection[str], *, shown: str | None = None
) -> ConfigError:
    hint = did_you_mean(option, options)
    table = next((table for table in TABLES if option.startswith(f"{table}_")), None)
    if table is not None and shown is not None:
        key = option.removeprefix(f"{table}_").upper()
        hint = f"a key of {table} follows two underscores; write {PREFIX}{table.upper()}__{key}"
    if not hint:
        looks_like_kafka = "." in option or option.startswith(_CLIENT_PROPERTY)
        hint = (
            "librdkafka properties go into kafka, or into consumer, producer or admin"
            if looks_like_kafka
            else "`tidewheel config show` lists all options; correct or remove it"
        )
    name = option if shown is None else shown
    where = "" if shown is not None else f" ({origin})"
    kind = "environment variable" if shown is not None else "option"
    return ConfigError(f"unknown {kind} {name}{where}: {hint}")


def is_utf8(text: str) -> bool:
    """Return False for text of the system with other bytes, which Python has as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
