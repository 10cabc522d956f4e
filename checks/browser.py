"""Finds the Chromium for the tests of the dashboard, or installs it: `python -m checks.browser`.

Without one, and without the rights to install it, the module prints the next step. The tests that
need it are then skipped, and fail in continuous integration (`CI` is set).
"""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from checks import debian

VARIABLE: Final = "TIDEWHEEL_CHROMIUM"
HELP: Final = (
    "there is no Chromium, which tests of the dashboard need: install it (Debian: apt-get install "
    f"chromium fonts-dejavu-core), or set {VARIABLE} to the path of a Chromium or Chrome"
)
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MAC: Final = "/Applications/{0}.app/Contents/MacOS/{0}"
_PATHS: Final = (_MAC.format("Chromium"), _MAC.format("Google Chrome"))
#: The pictures in the documents have this font.
_PACKAGES: Final = ("chromium", "fonts-dejavu-core")


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome, or None."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return shutil.which(chosen)
    return next(filter(None, map(shutil.which, (*_NAMES, *_PATHS))), None)


def main(arguments: Sequence[str] | None = None) -> int:
    return debian.provide(
        "checks.browser",
        arguments,
        find=find_chromium,
        packages=_PACKAGES,
        size_mb=100,
        advice=HELP,
    )


if __name__ == "__main__":
    sys.exit(main())
