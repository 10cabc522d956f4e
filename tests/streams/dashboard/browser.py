"""A real Chromium on the dashboard's page, and measurements of what it shows."""

import base64
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Generator
from typing import Final

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Route, ViewportSize, sync_playwright

from checks.browser import HELP, find_chromium
from tidewheel.streams.dashboard.poller import GroupPoller, PolledGroup
from tidewheel.streams.dashboard.web import build_app
from tidewheel.streams.web.http_server import server_config

PATIENCE_S: Final = 60.0
#: Letters without colours at their edges: pictures are smaller, and the same on each screen.
_SAME_EVERYWHERE: Final = ["--disable-lcd-text", "--font-render-hinting=none"]
#: Font of the pictures: others have other line breaks.
FONT: Final = "DejaVu Sans"

#: Texts with less contrast than 4.5:1 against what is below them, and the number of texts.
CONTRAST: Final = """() => {
  const rgba = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const paint = (element) => {
    const style = getComputedStyle(element);
    const isShape = element instanceof SVGGeometryElement;
    return rgba(isShape ? (style.fill === "none" ? "rgba(0,0,0,0)" : style.fill) : style.backgroundColor);
  };
  const faint = [];
  let count = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim()) continue;
    const element = node.parentElement;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getClientRects()[0];
    if (!box) continue;
    const stack = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const at = stack.indexOf(element);
    if (at < 0) continue; // hidden, or scrolled out of its box
    const below = [...stack.slice(element instanceof SVGElement ? at + 1 : at)];
    const back = below.map(paint).find((color) => color.length < 4 || color[3] === 1);
    const style = getComputedStyle(element);
    const front = rgba(element instanceof SVGElement ? style.fill : style.color);
    const [one, other] = [light(front), light(back || [255, 255, 255])].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    count += 1;
    if (ratio < 4.5) faint.push(`${ratio.toFixed(2)}: ${node.data}`);
  }
  return { count, faint };
}"""

#: Mean difference of two pictures of 0 to 255, when each is shrunk to cells of 16 pixels.
DIFFERENCE: Final = """async (sources) => {
  const images = await Promise.all(sources.map(async (source) => {
    const image = new Image();
    image.src = source;
    await image.decode();
    return image;
  }));
  const [width, height] = ["naturalWidth", "naturalHeight"].map((side) => images[0][side]);
  if (images[1].naturalWidth !== width || images[1].naturalHeight !== height) return 255;
  const [small, low] = [Math.ceil(width / 16), Math.ceil(height / 16)];
  const pixels = images.map((image) => {
    const canvas = new OffscreenCanvas(small, low).getContext("2d");
    canvas.imageSmoothingQuality = "high";
    canvas.drawImage(image, 0, 0, small, low);
    return canvas.getImageData(0, 0, small, low).data;
  });
  return pixels[0].reduce((sum, value, i) => sum + Math.abs(value - pixels[1][i]), 0) / (small * low * 3);
}"""


@contextlib.contextmanager
def running_chromium() -> Generator[Browser]:
    path = find_chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(HELP)
        pytest.skip(HELP)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=_SAME_EVERYWHERE, timeout=1_000 * PATIENCE_S
        )
        yield browser
        browser.close()


@contextlib.contextmanager
def served(
    fetch_status: Callable[[], PolledGroup], *, token: str | None = None, interval_s: float = 0.2
) -> Generator[str]:
    """Serve a dashboard; yield its address."""
    poller = GroupPoller(fetch_status, interval_s)
    server = uvicorn.Server(server_config(build_app("shop", poller, token=token)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            poller.end()
            server.should_exit = True
            thread.join(PATIENCE_S)
    assert not thread.is_alive()


class OpenPage:
    """A page, and what Chromium complained about: errors, refused scripts, dialogs."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.set_default_timeout(1_000 * PATIENCE_S)
        page.on("console", lambda message: self._complain(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self._dismiss(dialog.message, dialog.dismiss))

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _dismiss(self, message: str, dismiss: Callable[[], None]) -> None:
        self.complaints.append(f"dialog {message}")
        dismiss()


@contextlib.contextmanager
def opened(
    browser: Browser,
    address: str,
    *,
    size: tuple[int, int] = (1280, 900),
    scheme: str = "light",
    now_ms: int | None = None,
    is_shown: bool = True,
    is_picture: bool = False,
) -> Generator[OpenPage]:
    """Open the dashboard.

    Args:
        now_ms: Time that the page's clock stands at.
        is_shown: Wait until the page shows the group.
        is_picture: Use the pictures' font instead of the machine's own.
    """
    context = browser.new_context(
        viewport=ViewportSize(width=size[0], height=size[1]),
        color_scheme="dark" if scheme == "dark" else "light",
        locale="en-US",
        timezone_id="UTC",
    )
    opened_page = OpenPage(context.new_page())
    if now_ms is not None:
        opened_page.page.clock.set_fixed_time(now_ms / 1_000)
    if is_picture:
        opened_page.page.route("**/page.css", _with_font)
    opened_page.page.goto(address)
    if is_shown:
        opened_page.page.wait_for_selector("#main:not([hidden])")
    yield opened_page
    context.close()


def has_font(page: Page) -> bool:
    """Return True if the font of the pictures is installed."""
    return bool(
        page.evaluate(
            """(font) => {
              const canvas = new OffscreenCanvas(1, 1).getContext("2d");
              const widths = ["serif", "monospace"].map((other) => {
                canvas.font = `72px "${font}", ${other}`;
                return canvas.measureText("The members, ill WWW").width;
              });
              return widths[0] === widths[1];
            }""",
            FONT,
        )
    )


def _with_font(route: Route) -> None:
    style = route.fetch().text()
    fonts = f"{style}\nbody {{ font-family: '{FONT}'; --mono: '{FONT} Mono'; }}"
    route.fulfill(body=fonts, content_type="text/css")


def difference(browser: Browser, one: bytes, other: bytes) -> float:
    """Return the mean difference of two PNGs, 0 to 255; 255 if their sizes differ."""
    page = browser.new_page()
    sources = [f"data:image/png;base64,{base64.b64encode(each).decode()}" for each in (one, other)]
    measured = float(page.evaluate(DIFFERENCE, sources))
    page.close()
    return measured
