"""Values of a command line."""

import pytest

from tidewheel import ConfigError
from tidewheel.rebalance.model import TaskId
from tidewheel.streams.cli.arguments import check_http_port, parse_assignments, parse_tasks


def test_a_secret_in_a_malformed_setting_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_assignments(["=hush"])
    assert "hush" not in str(raised.value)
    assert parse_assignments(["a=b=c", "admin.sasl.password=x"]) == {
        "a": "b=c",
        "admin": {"sasl.password": "x"},
    }


def test_tasks_are_named_once_each() -> None:
    assert parse_tasks("0_1,1_0") == (TaskId(0, 1), TaskId(1, 0))
    for text in ("", "0_1,0_1", "first", "0-1", "0_1/2of2", "0_1/0of3", "0_1/0of1"):
        with pytest.raises(ConfigError, match="--tasks"):
            parse_tasks(text)


def test_tasks_may_be_shards_that_have_no_keys_in_common() -> None:
    shards = ("0_1/0of2", "0_1/2of4", "0_1/3of4", "0_2", "1_1")
    assert parse_tasks(",".join(shards)) == tuple(map(TaskId.parse, shards))


@pytest.mark.parametrize(
    "tasks",
    [
        "0_1,0_1/0of2",
        "0_1/1of2,0_1",
        "0_1/0of2,0_1/0of2",
        "0_1/3of4,0_0,0_1/1of2",
        "0_1,0_1/63of64",
    ],
)
def test_tasks_with_keys_in_common_are_rejected(tasks: str) -> None:
    with pytest.raises(ConfigError, match="--tasks"):
        parse_tasks(tasks)


@pytest.mark.parametrize("given", [65_534, "65534"])
def test_the_port_of_each_worker_exists(given: object) -> None:
    for settings, workers in (({"http_port": given}, 2), ({"http_port": 0}, 9), ({}, 9)):
        check_http_port(settings, workers)
    with pytest.raises(ConfigError, match="65533 or lower"):
        check_http_port({"http_port": given}, 3)
