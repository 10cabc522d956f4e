"""Serialised keys and ends of key ranges. Pure."""

from typing import Any

from tidewheel.state_stores.errors import SerdeError
from tidewheel.state_stores.ports import SerdePort


def key_bytes(serde: SerdePort, topic: str, key: Any, store: str, *, noun: str = "key") -> bytes:
    """Return a key's bytes; raise ValueError for None, `SerdeError` if the serde rejects it."""
    try:
        data = None if key is None else serde.serialize(topic, key)
    except SerdeError as error:
        raise error.in_store(store) from error
    if data is None:
        raise ValueError(f"store {store}: a {noun} must not be None")
    return data


def after(key: bytes) -> bytes:
    r"""Return the smallest key greater than `key`.

    >>> after(b"a")
    b'a\x00'
    """
    return key + b"\x00"


def prefix_end(prefix: bytes) -> bytes | None:
    r"""Return the smallest key greater than all keys with this prefix; None if there is none.

    >>> prefix_end(b"a\xff")
    b'b'
    >>> prefix_end(b"\xff") is None
    True
    """
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        return None
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))
