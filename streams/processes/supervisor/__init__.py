"""The supervisor of `tidewheel run`: starts, restarts and stops worker processes."""
