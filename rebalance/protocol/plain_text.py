"""Text without characters that steer a terminal or hide in a name."""

import re
from typing import Final

#: Body of a character class: control and format characters, such as ESC, bidi controls and
#: zero-width spaces; line and paragraph separators; surrogates. All readers must reject the same
#: records, so the list is fixed: `str.isprintable` changes with Python's version.
UNPRINTABLE: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u0600-\\u0605\\u061c\\u06dd\\u070f\\u0890\\u0891\\u08e2\\u180e"
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ud800-\\udfff\\ufeff\\ufff9-\\ufffb"
    "\\U000110bd\\U000110cd\\U00013430-\\U0001343f\\U0001bca0-\\U0001bca3"
    "\\U0001d173-\\U0001d17a\\U000e0001\\U000e0020-\\U000e007f"
)
_UNPRINTABLE: Final = re.compile(f"[{UNPRINTABLE}]")


def plain_text(text: str) -> str:
    r"""Return text with a space for each unprintable character.

    >>> plain_text("no\ndisk \x1b[2J")
    'no disk  [2J'
    """
    return text if text.isprintable() else _UNPRINTABLE.sub(" ", text)


def plain_lines(text: str) -> str:
    r"""Return text of several lines with a space for each other unprintable character.

    >>> plain_lines("no\ndisk \x1b[2J")
    'no\ndisk  [2J'
    """
    return "\n".join(map(plain_text, text.split("\n")))
