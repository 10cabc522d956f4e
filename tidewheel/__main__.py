"""`python -m tidewheel` is `tidewheel`."""

import sys

from tidewheel.streams.cli import main

if __name__ == "__main__":
    sys.exit(main())
