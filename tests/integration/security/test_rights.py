"""An application runs with exactly the documented rights; without each one an error names it."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster import PATIENCE_S, until
from tests.integration.conftest import StartApp
from tests.integration.programs.jobs import JOBS
from tests.integration.security.documented_rights import Names, application_rights
from tests.integration.security.secured_app import SecuredApp, lines_of, stop
from tests.integration.security.secured_broker import Decision, Right, SecuredBroker, User
from tidewheel import KafkaStreams
from tidewheel.streams.worker.application.run_options import RunOptions

pytestmark = [pytest.mark.timeout(600), pytest.mark.fault("SECURITY")]

#: What the first word of the page's last column means: the worker ends, or it logs and runs.
_ENDS = "error"
#: For the parametrisation; each test has names of its own.
_PAGE = Names("shop", source="in", sink="out", dead="dead")
_RIGHTS = list(application_rights(_PAGE))
#: Kafka includes DESCRIBE in these; a principal may have it without them.
_INCLUDE_DESCRIBE = ("READ", "WRITE")
_CASES = [(index, False) for index in range(len(_RIGHTS))] + [
    (index, True)
    for index, right in enumerate(_RIGHTS)
    if right.kind == "Topic" and right.operation in _INCLUDE_DESCRIBE
]


def _names(app: SecuredApp) -> Names:
    return Names(app.application_id, source=app.source, sink=app.sink, dead=app.dead)


@pytest.fixture
def app(secured: SecuredBroker, application_id: str, tmp_path: Path) -> SecuredApp:
    return SecuredApp(broker=secured, folder=tmp_path, application_id=application_id)


def _is_covered(decision: Decision, rights: list[Right]) -> bool:
    return any(
        right.kind == decision.kind
        and right.operation == decision.operation
        and (
            decision.name.startswith(right.name) if right.prefixed else decision.name == right.name
        )
        for right in rights
    )


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
def test_a_group_runs_with_the_documented_rights_and_uses_each_of_them(
    secured: SecuredBroker, app: SecuredApp
) -> None:
    rights = list(application_rights(_names(app)))
    user = secured.user(rights)
    settings = app.settings_file(user)
    with app.start(settings, "--workers", "2") as run:
        app.until_running(run, 2)
        secured.plain.send(app.source, [(b"k", b"\xff")])
        app.until_counted(50)
        (killed, _) = run.workers
        with app.start(settings, slot="b") as joined:  # learners restore, then tasks move
            app.until_running(joined, 1)
            app.until_counted(50)
            assert stop(joined) == 0
        run.kill_worker(killed)  # the group fences its producers
        run.until_said("started (process", 3)
        app.until_counted(50)
        until(
            lambda: any(each.operation == "DELETE" for each in secured.decisions(user)),
            "a repartition topic is purged",
        )
        assert stop(run) == 0
    with app.start(settings, "--fixed-assignment") as run:
        app.until_running(run, 1)
        assert stop(run) == 0
    decisions = secured.decisions(user)
    assert [each for each in decisions if not each.is_allowed] == []
    used = {right for right in rights if any(_is_covered(each, [right]) for each in decisions)}
    assert set(rights) - used == set()
    code, said = app.call(settings, "status", app.target, "--json")
    assert code in (0, 1)  # alarms
    assert "not-checked" not in [alarm["name"] for alarm in lines_of(said)[0]["alarms"]]


@pytest.fixture
def start(start_app: StartApp, app: SecuredApp) -> Callable[[User], KafkaStreams]:
    def begin(user: User) -> KafkaStreams:
        settings = {
            "application_id": app.application_id,
            "bootstrap_servers": app.broker.address,
            "state_dir": str(app.folder / "state"),
            "commit_interval_ms": 50,
            "statestore_cache_max_bytes": 0,
            "settling_ms": 0,
            "repartition_purge_interval_ms": 500,
            "deserialization_exception_handler": "continue",
            "dead_letter_queue_topic": app.dead,
            **user.settings,
        }
        job = JOBS["word_count"](app.source, app.sink)
        return start_app(job, settings, options=RunOptions(), wait=False)

    return begin


@pytest.mark.nightly("TIDEWHEEL_FAULTS")
@pytest.mark.parametrize(
    ("index", "describe"),
    _CASES,
    ids=[f"{_RIGHTS[index]}{' but DESCRIBE' if describe else ''}" for index, describe in _CASES],
)
def test_without_each_right_a_message_names_it(
    secured: SecuredBroker,
    app: SecuredApp,
    start: Callable[[User], KafkaStreams],
    index: int,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    *,
    describe: bool,
) -> None:
    caplog.set_level(logging.INFO)
    documented = application_rights(_names(app))
    missing = list(documented)[index]
    rights = [right for right in documented if right != missing]
    rights += [missing._replace(operation="DESCRIBE")] if describe else []
    secured.plain.send(app.source, [(b"k", b"to be or not"), (b"k", b"\xff")])
    running = start(secured.user(rights))
    said = ""

    def is_named() -> bool:
        nonlocal said
        said += capfd.readouterr().err  # the watchdog's log
        ended = "" if running.error is None else str(running.error)
        text = ended if documented[missing].startswith(_ENDS) and ended else caplog.text + said
        # READ and WRITE include DESCRIBE, which some requests need first.
        operations = missing.operation if describe else f"{missing.operation}|DESCRIBE"
        resource = "the cluster" if missing.kind == "Cluster" else re.escape(missing.name)
        return any(
            re.search(rf"\bgrant\b.*\b({operations})\b", line) and re.search(resource, line)
            for line in text.splitlines()
        )

    until(is_named, f"a message names {missing}", PATIENCE_S)
    if not documented[missing].startswith(_ENDS):
        secured.plain.wait_until_consumed(app.application_id, app.source)
        assert running.error is None
    elif not missing.prefixed:
        until(lambda: running.error is not None, "the worker ends")
