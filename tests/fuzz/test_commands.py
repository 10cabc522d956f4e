"""Arguments of the command line: an exit code, never a traceback."""

import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.rebalance.leader.group_logs import two_members
from tests.streams.group.fake_group import APP, FakeConnection, FakeGroup, use
from tidewheel.streams.cli.app import main
from tidewheel.streams.exit_codes import ExitCode

_COMMANDS = [
    ["status", APP],
    ["group", "history", APP],
    ["group", "history", APP, "--since", "1h"],
    ["drain", APP, "a"],
    ["config", "show"],
    ["describe", "examples/word_count.py:topology"],
    ["top", APP, "--count", "1"],
]
_OPTIONS = [
    *("--json", "--config", "--bootstrap-servers", "--application-id", "--state-dir", "-c"),
    *("--since", "--limit", "--count", "--interval", "--timeout", "--member", "--", "--x=", "-"),
]
_TEXTS = st.text(st.characters(exclude_characters="\0"), max_size=20) | st.sampled_from(
    [
        *("", "9" * 400, "-1", "1e999", "nan", "../../etc/passwd", "~nobody-here/x", "a:b", ":"),
        *(
            "x.py:y",
            "os:system",
            "\udcff",
            "\x1b[2J",
            "[red]",
            "{}",
            "http://[::1",
            "a=b=c",
            "env:X",
        ),
        *("/dev/null", "shop\n", "0_0", "999999999999_1", "a" * 300, "1" * 500, "%s{0}"),
        string.printable.strip(),
    ]
)


@pytest.fixture(scope="module")
def group() -> FakeGroup:
    made = FakeGroup()
    made.write(two_members())
    return made


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(_COMMANDS),
    st.lists(st.sampled_from(_OPTIONS) | _TEXTS, max_size=3),
    st.data() | st.none(),
)
@example(["status", APP], ["--config", "~nobody-here/x"], None)
@example(["status"], ["\udcff"], None)
@example(["describe"], ["examples/\udcff.py:x"], None)
def test_any_arguments_give_an_exit_code(
    group: FakeGroup,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    more: list[str],
    data: st.DataObject | None,
) -> None:
    arguments = list(command)
    if data is not None and data.draw(st.booleans()):
        places = [index for index, text in enumerate(arguments) if text != APP]
        arguments[data.draw(st.sampled_from(places))] = data.draw(_TEXTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEWHEEL_STATE_DIR", str(tmp_path))
        patch.setenv("TIDEWHEEL_BOOTSTRAP_SERVERS", "127.0.0.1:1")
        use(patch, group, 2_000_000_000_000)
        patch.setattr(
            "tidewheel.streams.cli.group_access.connect", lambda _: FakeConnection(group.broker)
        )
        code = main([*arguments, *more])
    assert code in [*ExitCode]
    assert "Traceback" not in capsys.readouterr().err
