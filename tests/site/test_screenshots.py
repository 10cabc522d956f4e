"""Pages look as in their kept pictures: the start page, a guide, an API page, the search."""

import os
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, ViewportSize

from checks.repository_files import ROOT
from tests.streams.dashboard.browser import CONTRAST, FONT, PATIENCE_S, difference, has_font

_PICTURES: Final = ROOT / "docs" / "images" / "site"
#: Set it to write the pictures again.
_REWRITE: Final = "TIDEWHEEL_REWRITE_PICTURES"
#: Mean difference, 0 to 255, that another Chromium makes in the edges of letters and lines.
_TOLERANCE: Final = 1.5
#: A page whose picture is the same after this time has settled (ms).
_SETTLING_MS: Final = 300
_SIZES: Final = {
    1280: ViewportSize(width=1280, height=800),
    390: ViewportSize(width=390, height=780),
}
_PAGES: Final = {"start": "", "guide": "guides/concepts/", "api": "api/windows/", "search": ""}
_VIEWS: Final = [
    (name, width, scheme) for name in _PAGES for width in _SIZES for scheme in ("light", "dark")
]
_STYLE: Final = f"""
  :root, body, input {{ --md-text-font-family: "{FONT}"; --md-code-font-family: "{FONT} Mono"; }}
  *, *::before, *::after {{ animation: none !important; transition: none !important; caret-color: transparent !important; }}
"""


@pytest.mark.parametrize(("name", "width", "scheme"), _VIEWS)
def test_a_page_looks_as_in_its_picture(
    chromium: Browser, address: str, name: str, width: int, scheme: str
) -> None:
    picture = _PICTURES / f"{name}-{width}-{scheme}.png"
    page = _shown(chromium, f"{address}{_PAGES[name]}", width, scheme)
    if not has_font(page):
        assert not os.environ.get("CI")
        pytest.skip(f"the pictures need the font {FONT} (Debian: fonts-dejavu-core)")
    if name == "search":
        _search(page, "cogroup")
    screenshot = _settled(page)
    page.locator(".md-content, [role=option]").evaluate_all(
        "(nodes) => nodes.forEach((node) => { node.style.visibility = 'hidden'; })"
    )
    without = _settled(page)
    page.context.close()
    if os.environ.get(_REWRITE):
        _write(picture, screenshot)
    kept = picture.read_bytes()
    assert difference(chromium, kept, screenshot) < _TOLERANCE, f"{_REWRITE}=1 writes them again"
    assert difference(chromium, kept, without) > 1.5 * _TOLERANCE


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(chromium: Browser, address: str, scheme: str) -> None:
    size = ViewportSize(width=1280, height=12_000)
    context = chromium.new_context(
        viewport=size, color_scheme="dark" if scheme == "dark" else "light"
    )
    page = context.new_page()
    page.set_default_timeout(1_000 * PATIENCE_S)
    for name in ("", "dsl/", "guides/metrics/", "comparison/", "api/windows/"):
        page.goto(f"{address}{name}")
        page.wait_for_load_state("networkidle")
        measured = page.evaluate(CONTRAST)
        assert measured["count"] > 100
        # The link that only a keyboard shows has no colours yet.
        assert [text for text in measured["faint"] if "Skip to content" not in text] == [], name
    context.close()


def _shown(chromium: Browser, address: str, width: int, scheme: str) -> Page:
    context = chromium.new_context(
        viewport=_SIZES[width],
        color_scheme="dark" if scheme == "dark" else "light",
        is_mobile=width == 390,
        has_touch=width == 390,
        locale="en-US",
    )
    page = context.new_page()
    page.set_default_timeout(1_000 * PATIENCE_S)
    page.goto(address)
    page.add_style_tag(content=_STYLE)
    page.wait_for_load_state("networkidle")
    return page


def _search(page: Page, words: str) -> None:
    field = page.locator("input[role=combobox]")
    field.wait_for(state="attached")  # the page's script has run
    page.keyboard.press("Control+k")
    field.fill(words)
    page.locator("a[role=option]").first.wait_for()


def _settled(page: Page) -> bytes:
    """Return the page's picture once it no longer changes: the search slides in."""
    before, screenshot = b"", page.screenshot()
    while screenshot != before:
        page.wait_for_timeout(_SETTLING_MS)
        before, screenshot = screenshot, page.screenshot()
    return screenshot


def _write(picture: Path, screenshot: bytes) -> None:
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_bytes(screenshot)
