"""Settings for display, with secrets hidden."""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, Final, cast

import msgspec

from tidewheel.state_stores.bulk_restore.urls import HIDDEN, redacted_url
from tidewheel.state_stores.rocksdb.options import meanings
from tidewheel.streams.config.secrets import is_reference, redacted
from tidewheel.streams.config.sources import CLIENTS, DEFAULT, TABLES
from tidewheel.streams.serdes import Serde
from tidewheel.streams.user_functions import function_name

_CHARACTERS_MAX: Final = 100


@cache
def attribute_docstrings(of: type) -> dict[str, str]:
    """Return the docstrings below a class's annotated attributes, on one line.

    Empty without source. Pydantic's `use_attribute_docstrings` is not used: it parses the source at
    import, 23 ms of CPU in every process.

    >>> from tidewheel.streams.config import StreamsConfig
    >>> attribute_docstrings(StreamsConfig)["num_standby_replicas"]
    'Copies of each store kept up to date on other members.'
    """
    try:
        source = dedent(inspect.getsource(of))
    except OSError:
        return {}
    docstrings: dict[str, str] = {}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef), "it is the source of a class"
    for above, below in pairwise(definition.body):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                docstrings[name] = " ".join(text.split())
            case _:
                pass
    return docstrings


class OptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `tidewheel config show`, with secrets hidden."""

    option: str
    value: str
    source: str
    description: str


def displayed(option: str, value: Any) -> Any:
    """Return an option's value for display and JSON, with secrets hidden."""
    shown: Any
    match value:
        case Mapping():
            table = dict(cast("Mapping[str, Any]", value))
            shown = redacted(table) if option in CLIENTS else table
        case _ if option in CLIENTS:  # unchecked and no table: may contain secrets
            shown = HIDDEN
        case _ if option == "http_token":
            is_shown = value is None or (isinstance(value, str) and is_reference(value))
            shown = value if is_shown else HIDDEN
        case str() if option == "snapshot_location":
            shown = redacted_url(value)
        case frozenset():
            shown = sorted(cast("frozenset[str]", value))
        case Path():
            shown = str(value)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            shown = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        case _ if callable(value):
            shown = _callable_name(value)
        case Serde(name=name):
            shown = name
        case _:
            shown = value
    return shown


def short(option: str, value: Any) -> str:
    text = repr(displayed(option, value))
    return text if len(text) <= _CHARACTERS_MAX else f"{text[:_CHARACTERS_MAX]}…"


def rows(
    values: Mapping[str, Any],
    origins: Mapping[str, str],
    descriptions: Mapping[str, str],
) -> Iterator[OptionRow]:
    """Yield a row per option, and per key of non-empty tables."""
    for option, value in values.items():
        source = origins.get(option, DEFAULT)
        shown = displayed(option, value)
        description = descriptions.get(option, "")
        if option not in TABLES or not shown:
            text = str(shown)
            yield OptionRow(option=option, value=text, source=source, description=description)
            continue
        docstrings = meanings() if option == "rocksdb" else {}
        for key, item in shown.items():
            # If keys have origins of their own, a key without one has its default value. A table
            # passed as one object (`RocksDBOptions`) has one origin for all keys.
            default_source = (
                DEFAULT if any(name.startswith(f"{option}.") for name in origins) else source
            )
            yield OptionRow(
                option=f"{option}.{key}",
                value=str(item),
                source=origins.get(f"{option}.{key}", default_source),
                description=_first_sentence(docstrings[key]) if key in docstrings else description,
            )


def _first_sentence(text: str) -> str:
    return f"{text.rstrip('.').partition('. ')[0]}."


def _callable_name(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None)
    return f"{module}:{function_name(function)}" if module else function_name(function)
