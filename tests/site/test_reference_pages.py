"""Tables of metrics, errors and exit codes have all that the code has."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from checks.generated_parts import PARTS
from checks.parts.errors import errors_table, exit_codes_table, public_errors
from checks.parts.metrics import KAFKA_STREAMS_NAMES, LEVELS, group_table, served_families
from tests.streams.dashboard.polled_groups import flights_group
from tests.streams.web.processes import thread
from tests.streams.web.test_figures import PROCESS
from tidewheel.streams import errors
from tidewheel.streams.dashboard.metrics import metrics_text as group_text
from tidewheel.streams.dashboard.poller import PollResult
from tidewheel.streams.exit_codes import ExitCode
from tidewheel.streams.web.prometheus import metrics_text
from tidewheel.streams.worker.figures import families


def _names(table: str) -> list[str]:
    return re.findall(r"(?m)^\| `([\w.]+)` ", table)


def _served(text: bytes) -> set[str]:
    found = text_string_to_metric_families(text.decode())
    return {f"{each.name}_total" if each.type == "counter" else each.name for each in found}


def test_each_metric_of_a_worker_is_in_one_table() -> None:
    listed = [name for level in LEVELS for name in _names(PARTS[f"metrics-{level}"][1]())]
    assert len(listed) == len(set(listed)) > 80
    running = families([thread(0, {}, {})], PROCESS)
    assert _served(metrics_text("shop", running)) == set(listed)


def test_each_metric_of_the_dashboard_is_in_its_table() -> None:
    poll = PollResult(number=1, at_s=0.0, polled=flights_group())
    served = _served(group_text("flights", poll))
    assert len(served) > 10
    assert served <= set(_names(group_table()))


def test_names_of_kafka_streams_belong_to_metrics_that_exist() -> None:
    assert KAFKA_STREAMS_NAMES.keys() < {family.name for family in served_families()}


def test_each_public_error_is_in_the_table_with_its_next_step() -> None:
    listed = _names(errors_table())
    assert sorted(listed) == sorted(public_errors())
    assert set(errors.__all__) < set(listed)


@pytest.mark.parametrize("code", ExitCode)
def test_each_exit_code_is_in_the_table(code: ExitCode) -> None:
    assert f"| {code.value} | {code.meaning} |" in exit_codes_table()
