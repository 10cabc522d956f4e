"""URLs without users, passwords and signatures, for display. Pure."""

import re
from typing import Final
from urllib.parse import urlsplit

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"`]+")


def redacted_url(url: str) -> str:
    """Return a URL without secrets.

    >>> redacted_url("s3://key:secret@bucket/states?token=x")
    's3://bucket/states'
    >>> redacted_url("s3://key:secret@[bucket/states")
    's3://***'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL, so any part may be secret
        return f"{url.partition(':')[0]}://***"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def redacted_text(text: str) -> str:
    """Return a text with all URLs cleaned of secrets.

    >>> redacted_text("[PATH_NOT_FOUND] Path does not exist: wasbs://me:key@host/a.csv?sig=abc. SQLSTATE: 42K03")
    '[PATH_NOT_FOUND] Path does not exist: wasbs://host/a.csv SQLSTATE: 42K03'
    >>> redacted_text("/data/a@b.csv?"), redacted_text("shop.products")
    ('/data/a@b.csv?', 'shop.products')
    """
    return _URL.sub(lambda match: redacted_url(match.group()), text)
