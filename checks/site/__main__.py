"""Builds the site strictly: `python -m checks.site [--output FOLDER]`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from checks.repository_files import ROOT
from checks.site.building import SiteError, build


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.site")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build" / "site", help="folder (default: build/site)"
    )
    output: Path = parser.parse_args(arguments).output.resolve()
    try:
        pages = build(output)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(pages)} pages: {output / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
