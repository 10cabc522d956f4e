"""The command line: `tidewheel`, also `python -m tidewheel`.

Each command is a module of its own that is imported when it is called, to keep `tidewheel --help` fast.
"""
