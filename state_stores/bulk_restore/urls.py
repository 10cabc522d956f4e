"""URLs without users, passwords and signatures, for display. Pure."""

import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

#: Replaces a secret.
HIDDEN: Final = "***"

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"`]+")
#: Between the URLs of a list, and of fsspec's chains (`simplecache::s3://…`).
_NEXT_URL: Final = re.compile(r"(::|,)(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::))")


def redacted_url(url: str) -> str:
    """Return URLs without user, password, query and fragment: each may contain a secret.

    >>> redacted_url("s3://key:secret@bucket/states?token=x")
    's3://***@bucket/states?***'
    >>> redacted_url("simplecache::sftp://key:secret@host/states")
    'simplecache::sftp://***@host/states'
    """
    parts = _NEXT_URL.split(url)  # URLs, with a separator after each but the last
    parts[::2] = map(_redacted, parts[::2])
    return "".join(parts)


def _redacted(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL, so any part may be secret
        return HIDDEN
    _, user, host = parts.netloc.rpartition("@")
    return urlunsplit(
        (
            parts.scheme,
            f"{HIDDEN}@{host}" if user else parts.netloc,
            parts.path,
            HIDDEN if parts.query else "",
            HIDDEN if parts.fragment else "",
        )
    )


def redacted_text(text: str) -> str:
    """Return a text with all URLs cleaned of secrets.

    >>> redacted_text("[PATH_NOT_FOUND] Path does not exist: wasbs://me:key@host/a.csv?sig=abc. SQLSTATE: 42K03")
    '[PATH_NOT_FOUND] Path does not exist: wasbs://***@host/a.csv?*** SQLSTATE: 42K03'
    >>> redacted_text("/data/a@b.csv?"), redacted_text("shop.products")
    ('/data/a@b.csv?', 'shop.products')
    """
    return _URL.sub(lambda match: redacted_url(match.group()), text)
