"""The page in a real Chromium: what it shows, keys, contrast, and names that attack viewers."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.streams.dashboard.browser import (
    CONTRAST,
    FONT,
    OpenPage,
    difference,
    has_font,
    opened,
    running_chromium,
    served,
)
from tests.streams.dashboard.polled_groups import (
    ATTACKS,
    flights_group,
    forged_group,
    large_group,
    polled_group,
)
from tidewheel.streams.dashboard.poller import PolledGroup

_PICTURES: Final = Path(__file__).parents[3] / "docs" / "images"
#: Set it to write the pictures of the documents again.
_REWRITE: Final = "TIDEWHEEL_REWRITE_PICTURES"
#: Mean difference, 0 to 255, that another Chromium makes in the edges of letters and lines.
_TOLERANCE: Final = 1.5
_HEIGHTS: Final = {1280: 2150, 390: 3500}
_VIEWS: Final = [(width, scheme) for width in _HEIGHTS for scheme in ("light", "dark")]
TOKEN: Final = "correct-horse-battery"  # noqa: S105 - of these tests


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def flights() -> PolledGroup:
    return flights_group()


@pytest.fixture
def shown(chromium: Browser, flights: PolledGroup) -> Iterator[OpenPage]:
    with (
        served(lambda: flights) as address,
        opened(chromium, address, now_ms=flights.status.read_ms) as shown,
    ):
        yield shown
        assert shown.complaints == []


@pytest.mark.parametrize(("width", "scheme"), _VIEWS)
def test_the_page_looks_as_in_its_picture(
    chromium: Browser, flights: PolledGroup, width: int, scheme: str
) -> None:
    picture = _PICTURES / f"dashboard-{width}-{scheme}.png"
    size = (width, _HEIGHTS[width])
    now_ms = flights.status.read_ms
    with (
        served(lambda: flights, interval_s=60) as address,  # one poll: no curves yet
        opened(
            chromium, address, size=size, scheme=scheme, now_ms=now_ms, is_picture=True
        ) as shown,
    ):
        if not has_font(shown.page):
            assert not os.environ.get("CI")
            pytest.skip(f"the pictures need the font {FONT} (Debian: fonts-dejavu-core)")
        screenshot = shown.page.screenshot()
        shown.page.locator("#graph-section, #timeline").evaluate_all(
            "(nodes) => nodes.forEach((node) => { node.style.visibility = 'hidden'; })"
        )
        without = shown.page.screenshot()
        assert shown.complaints == []
    if os.environ.get(_REWRITE):
        picture.write_bytes(screenshot)
    kept = picture.read_bytes()
    assert difference(chromium, kept, screenshot) < _TOLERANCE, f"{_REWRITE}=1 writes them again"
    assert difference(chromium, kept, without) > 2 * _TOLERANCE


@pytest.mark.parametrize(("width", "scheme"), [*_VIEWS, (320, "light"), (720, "dark")])
def test_the_page_fits_its_width_and_its_texts_have_contrast(
    chromium: Browser, flights: PolledGroup, width: int, scheme: str
) -> None:
    with (
        served(lambda: flights) as address,
        opened(
            chromium, address, size=(width, 9_000), scheme=scheme, now_ms=flights.status.read_ms
        ) as shown,
    ):
        shown.page.locator("details").evaluate_all(
            "(all) => all.forEach((d) => { d.open = true; })"
        )
        shown.page.locator("#timeline").press("Home")
        measured = shown.page.evaluate(CONTRAST)
        scrolled = shown.page.evaluate("document.documentElement.scrollWidth")
        assert shown.complaints == []
    assert scrolled <= width
    assert measured["faint"] == []
    assert measured["count"] > 150


def test_members_have_names_and_processes(shown: OpenPage) -> None:
    rows = [
        [cell.strip() for cell in row.locator("th, td").all_text_contents()[:2]]
        for row in shown.page.locator("#members tbody tr").all()
    ]
    assert ["worker-1/0 (7e65c5) *", "4711"] in rows
    assert ["worker-2/0 (03fa1b)", "4891"] in rows


def test_the_graph_has_nodes_topics_and_stores_with_the_figures_of_the_tasks(
    shown: OpenPage,
) -> None:
    texts = shown.texts("#graph text")
    for name in ("flights", "delays-repartition", "KSTREAM-MAPVALUES-0000000007", "arrivals"):
        assert name in texts
    assert "Sub-topology 0: 4 of 4 running" in texts
    assert "20,840 records/s, lag 3,360" in texts
    shown.page.click("#graph-text summary")
    row = shown.texts("#graph-table tbody tr:nth-child(2) > *")
    assert row == [
        "Sub-topology 1", "delays-repartition", "delays-by-carrier", "delays", "4 of 4", "10,416",
        "124",
    ]  # fmt: skip
    label = shown.page.locator("#graph svg").get_attribute("aria-label")
    assert label is not None
    assert "Sub-topology 3 reads weather and writes rain-by-airport." in label


def test_the_graph_shows_no_figures_of_silent_members_or_of_another_topology(
    chromium: Browser, flights: PolledGroup
) -> None:
    status = flights.status
    silent = replace(
        flights,
        status=replace(
            status,
            topology_hash="0123456789abcdef",
            tasks=tuple(replace(task, stale=task.task[0] == "0") for task in status.tasks),
        ),
    )
    with served(lambda: silent) as address, opened(chromium, address) as shown:
        texts = shown.texts("#graph text")
        assert "Sub-topology 0: 0 of 4 running" in texts
        assert "no figures yet" in texts
        assert "20,840 records/s, lag 3,360" not in texts
        expect(shown.page.locator("#graph-notice")).to_contain_text("0123456789abcdef")


def test_without_the_program_the_graph_shows_what_the_group_tells(chromium: Browser) -> None:
    polled = polled_group()
    with served(lambda: polled) as address, opened(chromium, address) as shown:
        texts = shown.texts("#graph text")
        assert {"4 tasks", "counts", "Sub-topology 0: 1 of 4 running"} <= set(texts)
        expect(shown.page.locator("#graph-hint")).to_be_visible()


def test_the_time_line_has_each_event_in_the_lane_of_its_member(
    shown: OpenPage, flights: PolledGroup
) -> None:
    lanes = shown.texts("#timeline .lanes text")
    assert lanes == [
        "Group", "Alarms", "worker-1/0 (7e65c5)", "worker-2/0 (03fa1b)", "worker-3/0 (c41d9e)",
        "worker-4/0 (a90b33)",
    ]  # fmt: skip
    marks = [mark for episode in flights.history for mark in episode.marks]
    labels = [
        label
        for option in shown.page.get_by_role("option", include_hidden=True).all()
        if (label := option.get_attribute("aria-label")) and option.locator("path").count()
    ]
    assert len(marks) > 15
    for mark in marks:
        lane = mark.lane or "Group"
        assert [label for label in labels if label.startswith(lane) and mark.text in label], mark
    assert any("long-call" in label for label in labels if label.startswith("Alarms"))


def test_the_time_line_is_read_by_keyboard(shown: OpenPage, flights: PolledGroup) -> None:
    timeline, moment = shown.page.locator("#timeline"), shown.page.locator("#moment")
    timeline.press("Home")
    expect(moment).to_contain_text("Group: 12:00:00.000")
    first = timeline.get_attribute("aria-activedescendant")
    timeline.press("ArrowRight")
    assert timeline.get_attribute("aria-activedescendant") != first
    timeline.press("ArrowLeft")
    assert timeline.get_attribute("aria-activedescendant") == first
    timeline.press("End")
    chosen = shown.page.locator(f"#{timeline.get_attribute('aria-activedescendant')}")
    assert chosen.get_attribute("aria-selected") == "true"
    timeline.press("ArrowLeft")
    timeline.press("Enter")
    opened_episodes = shown.page.locator("#history details[open]")
    expect(opened_episodes).to_have_count(1)
    expect(opened_episodes.locator("summary")).to_be_focused()
    expect(opened_episodes.locator("pre")).to_contain_text("worker-2/0 (03fa1b)")


def test_a_shorter_span_of_the_time_line_leaves_out_what_is_older(
    chromium: Browser, flights: PolledGroup
) -> None:
    hours = flights.status.read_ms + 3 * 3_600_000
    later = replace(flights, alarms=(), status=replace(flights.status, read_ms=hours))
    with served(lambda: later) as address, opened(chromium, address) as shown:
        marks = shown.page.locator("#timeline .marks > g")
        assert marks.count() > 0
        shown.page.select_option("#span", "3600000")
        expect(marks).to_have_count(0)
        shown.page.select_option("#span", "21600000")
        expect(marks).not_to_have_count(0)


def test_the_token_is_asked_for_and_stays_out_of_the_address(chromium: Browser) -> None:
    with (
        served(polled_group, token=TOKEN) as address,
        opened(chromium, address, is_shown=False) as shown,
    ):
        page = shown.page
        for token in ("wrong-wrong-wrong-wrong", TOKEN):
            expect(page.locator("#token")).to_be_focused()
            assert not page.locator("#main").is_visible()
            page.fill("#token", token)
            page.click("#ask button")
        expect(page.locator("#main")).to_be_visible()
        expect(page.locator("#ask")).to_be_hidden()
        assert TOKEN not in page.url
        assert TOKEN not in page.content()
        page.reload()
        expect(page.locator("#main")).to_be_visible()


def test_the_page_says_that_the_dashboard_was_stopped(
    chromium: Browser, flights: PolledGroup
) -> None:
    with served(lambda: flights) as address:
        opening = opened(chromium, address)
        shown = opening.__enter__()
    expect(shown.page.locator("#notice")).to_be_visible()
    assert shown.page.title().startswith("(stale) flight-delays")
    opening.__exit__(None, None, None)


@pytest.mark.parametrize("attack", ATTACKS)
def test_forged_names_are_text_only(chromium: Browser, attack: str) -> None:
    polled = forged_group(attack)
    with served(lambda: polled) as address, opened(chromium, address) as shown:
        page = shown.page
        page.locator("#timeline").press("Home")
        told = page.evaluate(
            """(attack) => {
              const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
              let count = 0;
              while (walker.nextNode()) count += walker.currentNode.data.includes(attack);
              const handlers = [...document.querySelectorAll("*")].flatMap((node) =>
                node.getAttributeNames().filter((name) => name.startsWith("on") || name === "href" && node.id !== ""));
              return [count, document.scripts.length, document.images.length, handlers];
            }""",
            attack,
        )
        assert told[0] >= 12, "application, members, owners, racks, alarms, graph, time line"
        assert told[1:] == [1, 0, []]
        assert page.locator("#application").text_content() == attack
        assert shown.complaints == []


@pytest.mark.parametrize(
    "mutant",
    [
        "node.innerHTML = text;",
        "node.insertAdjacentHTML('beforeend', text);",
        "document.write(text);",
        "node.append(document.createRange().createContextualFragment(text));",
    ],
)
def test_chromium_refuses_a_script_that_makes_markup_of_text(
    chromium: Browser, mutant: str
) -> None:
    polled = forged_group('<img src=x onerror="alert(1)">')
    statement = "if (node.textContent !== text) node.textContent = text;"

    def broken(route: Route) -> None:
        script = route.fetch().text()
        assert script.count(statement) == 1
        route.fulfill(
            body=script.replace(statement, mutant), content_type="text/javascript; charset=utf-8"
        )

    with (
        served(lambda: polled) as address,
        opened(chromium, "about:blank", is_shown=False) as shown,
    ):
        shown.page.route("**/elements.js", broken)
        with shown.page.expect_console_message(lambda message: "TrustedHTML" in message.text):
            shown.page.goto(address)
        expect(shown.page.locator("img")).to_have_count(0)
        assert not any("dialog" in complaint for complaint in shown.complaints)


def test_a_large_group_is_shown_in_bounded_space(chromium: Browser) -> None:
    polled = large_group(tasks=1_200, members=300)
    with served(lambda: polled) as address, opened(chromium, address) as shown:
        page = shown.page
        assert page.locator("#tasks tbody tr").count() == 100
        assert page.locator("#timeline .lanes > g").count() <= 26
        expect(page.locator("#timeline-more")).to_contain_text("members")
        assert page.locator("#members tbody tr").count() == 100
        assert page.locator("*").count() < 12_000
        assert page.evaluate("document.documentElement.scrollWidth") <= 1_280
        page.fill("#filter", "1_1177")
        expect(page.locator("#tasks tbody tr")).to_have_count(1)
        page.fill("#filter", "")
        page.click("#tasks .more button")
        expect(page.locator("#tasks tbody tr")).to_have_count(1_200)
        assert shown.complaints == []
