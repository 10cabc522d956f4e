"""What the commands for state in bulk share."""

import pytest

from streams.cli.bulk import names_of
from streams.errors import ConfigError


@pytest.mark.parametrize("text", ["", " ", " , "])
def test_a_list_of_stores_without_a_name_is_refused(text: str) -> None:
    """All stores would be too many, and none is no work."""
    with pytest.raises(ConfigError, match=f"--stores '{text}' names no store"):
        names_of(text)
