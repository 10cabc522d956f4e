import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.state_stores.names import (
    check_application_id,
    check_internal_topics,
    check_store_name,
    check_topic_name,
)

OURS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
KAFKAS = re.compile(r"[a-zA-Z0-9._-]{1,249}")
names = (
    st.text(max_size=8)
    | st.text(alphabet="aZ09._-/é\n", max_size=4)
    | st.integers(195, 255).map("x".__mul__)
)


@given(names)
def test_names_follow_the_rules(name: str) -> None:
    for check, allowed in (
        (check_application_id, OURS.fullmatch(name) is not None),
        (check_store_name, OURS.fullmatch(name) is not None),
        (check_topic_name, KAFKAS.fullmatch(name) is not None and name not in {".", ".."}),
    ):
        if allowed:
            assert check(name) == name
        else:
            with pytest.raises(ValueError, match=r"store name|application id|topic name"):
                check(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a/../b", "has '/' at position 1"),
        ("word counts", "has ' ' at position 4"),
        ("caf\u00e9", "has '\u00e9' at position 3"),
        ("a\n", r"has '\\n' at position 1"),
        ("..", "starts with '.'"),
        ("-a", "starts with '-'"),
        ("", "is empty"),
        ("x" * 201, "has 201 characters; 200 are allowed"),
    ],
)
def test_a_refused_name_is_explained(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"store name .*{says}" if name else says):
        check_store_name(name)


def test_topic_names_that_are_too_long_are_refused() -> None:
    check_internal_topics("app", ["s" * 200], ["r" * 200])
    check_internal_topics("a" * 40, ["s" * 198], [])
    with pytest.raises(ValueError, match=r"store .*250 characters, 1 more than Kafka's 249"):
        check_internal_topics("a" * 40, ["s" * 199], [])
    with pytest.raises(ValueError, match=r"repartition .*shorten"):
        check_internal_topics("a" * 100, [], ["r" * 150])
