"""The command line: `tidewheel`, also `python -m tidewheel`.

Each command is a module of its own. It is imported when called, so commands start fast.
"""
