"""Bytes of keys: ends of ranges. Pure."""


def after(key: bytes) -> bytes:
    r"""Return the smallest key greater than `key`: turns an inclusive end into an exclusive one.

    >>> after(b"a")
    b'a\x00'
    """
    return key + b"\x00"


def prefix_end(prefix: bytes) -> bytes | None:
    r"""Return the smallest key greater than every key that starts with `prefix`; None if there is none.

    >>> prefix_end(b"a\xff")
    b'b'
    >>> prefix_end(b"\xff") is None
    True
    """
    trimmed = prefix.rstrip(b"\xff")
    if not trimmed:
        return None
    return trimmed[:-1] + bytes((trimmed[-1] + 1,))
