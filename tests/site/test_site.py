"""Pages in a real Chromium: widths, colours, requests; the search; links and navigation."""

import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from checks.repository_files import ROOT, code_blocks
from checks.site.building import broken_links
from tests.streams.dashboard.browser import PATIENCE_S, OpenPage

_VIEWS: Final = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
_PAGES: Final = (
    "", "getting-started/", "tutorial/", "dsl/", "configuration/", "guides/http/", "guides/sinks/", "performance/",
    "guides/metrics/", "guides/errors-and-exit-codes/", "running/", "comparison/", "guides/concepts/", "guides/coming-from-quix/", "guides/monitoring/", "recipes/", "recipes/top-n/",
    "errors/", "api/streams-and-tables/", "api/stores/", "repository/ARCHITECTURE/",
)  # fmt: skip

#: Questions of a new user, in words that they would type, and the page that answers each.
QUESTIONS: Final = {
    "install tidewheel": "getting-started/",
    "exactly once": "guides/concepts/",
    "exit codes": "guides/errors-and-exit-codes/",
    "session windows": "dsl/",
    "dead letter": "errors/",
    "test without a broker": "testing/",
    "prometheus metrics": "guides/metrics/",
    "write to postgres": "recipes/exactly-once-to-a-database/",
    "commit_interval_ms": "configuration/",
    "upgrade": "guides/upgrading/",
    "deploy kubernetes": "guides/deploying/",
    "delete a person's data": "guides/erasure/",
    "full disk": "operations/",
    "remove duplicates": "recipes/deduplication/",
    "replay dead letters": "recipes/dead-letter-replay/",
    "call an http service": "recipes/http-enrichment/",
    "faust": "guides/coming-from-faust/",
    "quix": "guides/coming-from-quix/",
    "alerts": "guides/monitoring/",
    "change the topology": "recipes/changed-topology/",
    "MissingSourceTopicError": "guides/errors-and-exit-codes/",
    "tidewheel_task_records_lag": "guides/metrics/",
}

#: Pages for users, by purpose. Each explains, with an example.
USER_PAGES: Final = {
    "start": "getting-started.md",
    "concepts": "guides/concepts.md",
    "DSL": "dsl.md",
    "processors": "processor-api.md",
    "testing": "testing.md",
    "running": "running.md",
    "deploying": "guides/deploying.md",
    "monitoring": "guides/monitoring.md",
    "securing": "security.md",
    "upgrading": "guides/upgrading.md",
    "tuning": "guides/tuning.md",
    "reliability": "reliability.md",
    "CDC join": "recipes/cdc-join.md",
    "sessions": "recipes/sessions.md",
    "deduplication": "recipes/deduplication.md",
    "top n": "recipes/top-n.md",
    "rate alert": "recipes/rate-alert.md",
    "HTTP enrichment": "recipes/http-enrichment.md",
    "backfill": "recipes/backfill.md",
    "replay of dead letters": "recipes/dead-letter-replay.md",
    "erasure": "recipes/erasure.md",
    "exactly once to a database": "recipes/exactly-once-to-a-database.md",
    "changed topology": "recipes/changed-topology.md",
    "from Kafka Streams": "guides/coming-from-kafka-streams.md",
    "from Quix Streams": "guides/coming-from-quix.md",
    "from Faust": "guides/coming-from-faust.md",
    "settings": "configuration.md",
    "metrics": "guides/metrics.md",
    "errors and exit codes": "guides/errors-and-exit-codes.md",
}
_WORDS_MIN: Final = 150


@pytest.mark.parametrize(("width", "scheme"), _VIEWS)
def test_pages_fit_their_width_and_load_nothing_from_elsewhere(
    chromium: Browser, address: str, width: int, scheme: str
) -> None:
    page = _page(chromium, width, scheme)
    shown = OpenPage(page)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    backgrounds: set[str] = set()
    for name in _PAGES:
        page.goto(f"{address}{name}")
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shown.complaints == []
    assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []
    (background,) = backgrounds
    light = sum(map(float, re.findall(r"[\d.]+", background)[:3])) / 3
    assert (light > 200) == (scheme == "light")
    page.context.close()


@pytest.mark.parametrize(("words", "wanted"), QUESTIONS.items(), ids=lambda value: value)
def test_the_search_finds_answers_to_questions_of_a_new_user(
    chromium: Browser, address: str, words: str, wanted: str
) -> None:
    page = _page(chromium, 1280, "light")
    page.goto(address)
    found = _found(page, address, words)
    assert wanted in found[:3], found
    page.context.close()


def test_a_broken_link_and_a_foreign_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="here"><a href="b.html#there">b</a><a href="c.html">c</a><a href="#here">a</a>'
        '<script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here">a</a>')
    assert list(broken_links(tmp_path, sorted(tmp_path.glob("*.html")))) == [
        "a.html: loads https://example.org/x.js from elsewhere",
        "a.html: b.html#there: no such anchor",
        "a.html: c.html: no such page",
    ]


def test_every_document_is_in_the_navigation_once() -> None:
    named = re.findall(r"[\w/.-]+\.md\b", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    documents = {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }
    assert len(named) == len(set(named))
    assert documents == {name for name in named if not name.startswith(("api/", "repository/"))}


@pytest.mark.parametrize("page", USER_PAGES.values(), ids=USER_PAGES)
def test_a_page_for_users_is_in_the_navigation_and_has_content(page: str) -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert re.search(rf"\b{re.escape(page)}$", navigation, re.MULTILINE)
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert len(text.split()) > _WORDS_MIN
    assert [*code_blocks(text)] or page == "reliability.md"  # a page of measured results


@pytest.mark.parametrize("page", [page for page in USER_PAGES.values() if "recipes/" in page])
def test_a_recipe_is_a_program_with_its_test(page: str) -> None:
    blocks = [*code_blocks((ROOT / "docs" / page).read_text(encoding="utf-8"))]
    programs = [block.text for block in blocks if block.language == "python"]
    assert any("def test_" in program for program in programs)
    assert all(block.comment is None for block in blocks if block.language == "python")  # all run


def _page(chromium: Browser, width: int, scheme: str) -> Page:
    context = chromium.new_context(
        viewport=ViewportSize(width=width, height=900),
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.set_default_timeout(1_000 * PATIENCE_S)
    return page


def _found(page: Page, address: str, words: str) -> list[str]:
    """Return the pages of the results, best first, each once."""
    field = page.locator("input[role=combobox]")
    field.wait_for(state="attached")  # the page's script has run
    page.keyboard.press("Control+k")
    field.fill(words)
    results = page.locator("a[role=option]")
    results.first.wait_for()
    addresses = results.evaluate_all("(all) => all.map((result) => result.href)")
    pages = [each.removeprefix(address).partition("?")[0].partition("#")[0] for each in addresses]
    return list(dict.fromkeys(pages))
