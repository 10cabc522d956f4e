"""`python -m streams` is `tidewheel`."""

import sys

from streams.cli import main

if __name__ == "__main__":
    sys.exit(main())
