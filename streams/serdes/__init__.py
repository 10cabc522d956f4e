"""Serdes: how keys and values become bytes and come back (public names are re-exported by `streams`)."""

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
