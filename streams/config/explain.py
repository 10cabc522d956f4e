"""Messages of bad settings: the option, its value, its source and the accepted values."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from tidewheel.streams.config.client_properties import BadPropertyError
from tidewheel.streams.config.display import short
from tidewheel.streams.config.secrets import shown
from tidewheel.streams.config.sources import CLIENTS, DEFAULT, FILE_NAME, KEYWORD, PREFIX, Settings
from tidewheel.streams.errors import ConfigError

_EXAMPLES = {"application_id": "word-count"}


def explained(
    error: ValidationError, settings: Settings, defaults: Mapping[str, Any]
) -> ConfigError:
    """Return one error that lists all wrong settings."""
    problems: list[str] = []
    for detail in error.errors(include_url=False):
        option = str(detail["loc"][0])
        if detail["type"] == "missing":
            problems.append(_missing(option))
            continue
        reason = detail.get("ctx", {}).get("error", detail["msg"])
        if isinstance(reason, BadPropertyError):
            problems.append(f"{_property(option, reason.key, settings)}: {reason}")
            continue
        usual = f"; the default is {short(option, defaults[option])}" if option in defaults else ""
        problems.append(
            f"{labelled(option, settings.values.get(option), settings.origins)}: {reason}{usual}"
        )
    return joined(problems)


def labelled(option: str, value: Any, origins: Mapping[str, str]) -> str:
    """Return "option=value (origin)", with secrets hidden.

    >>> labelled("commit_interval_ms", 100, {})
    'commit_interval_ms=100 (default)'
    """
    return f"{option}={short(option, value)} ({origins.get(option, DEFAULT)})"


def joined(problems: list[str]) -> ConfigError:
    if len(problems) == 1:
        return ConfigError(problems[0])
    return ConfigError("\n  ".join([f"{len(problems)} settings are wrong:", *problems]))


def _property(option: str, key: str, settings: Settings) -> str:
    table = cast("dict[str, Any]", settings.values.get(option))  # an option with keys is a table
    value = table.get(key)
    text = short("", shown(key, value) if option in CLIENTS else value)
    origin = settings.origins.get(f"{option}.{key}", settings.origins.get(option, KEYWORD))
    return f"{option}[{key!r}]={text} ({origin})"


def _missing(option: str) -> str:
    example = _EXAMPLES.get(option, "...")
    return (
        f'{option} is missing: give StreamsConfig({option}="{example}"), set {PREFIX}{option.upper()}, or write '
        f'{option} = "{example}" to {FILE_NAME}'
    )
