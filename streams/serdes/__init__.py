"""Conversion of keys and values to bytes and back; names are imported at first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidewheel.streams.serdes.catalogue import (
        SERDE_NAMES,
        PlainT,
        SerdeInto,
        SerdeLike,
        SerdeMethods,
        SerdeOf,
        Serdes,
        as_serde,
        serde_named,
    )
    from tidewheel.streams.serdes.serde import Serde, for_keys

__all__ = [
    "SERDE_NAMES",
    "PlainT",
    "Serde",
    "SerdeInto",
    "SerdeLike",
    "SerdeMethods",
    "SerdeOf",
    "Serdes",
    "as_serde",
    "for_keys",
    "serde_named",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "serde" if name in {"Serde", "for_keys"} else "catalogue"
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value
