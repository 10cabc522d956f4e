"""Entry point: `python -m tidewheel` equals `tidewheel`."""

import sys

from tidewheel.streams.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
