"""URLs as they may be shown: users, passwords and signatures are left out. Pure."""

import re
from typing import Final
from urllib.parse import urlsplit

#: A URL in a text, up to what can't be a part of it.
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"`]+")


def shown_url(url: str) -> str:
    """Return a URL without what may be secret.

    >>> shown_url("s3://key:secret@bucket/states?token=x")
    's3://bucket/states'
    >>> shown_url("s3://key:secret@[bucket/states")
    's3://***'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL at all, so nobody knows what in it is secret
        return f"{url.partition(':')[0]}://***"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def shown_text(text: str) -> str:
    """Return a text, none of whose URLs has what may be secret; names and paths stay as they are.

    >>> shown_text("[PATH_NOT_FOUND] Path does not exist: wasbs://me:key@host/a.csv?sig=abc. SQLSTATE: 42K03")
    '[PATH_NOT_FOUND] Path does not exist: wasbs://host/a.csv SQLSTATE: 42K03'
    >>> shown_text("/data/a@b.csv?"), shown_text("shop.products")
    ('/data/a@b.csv?', 'shop.products')
    """
    return _URL.sub(lambda found: shown_url(found.group()), text)
