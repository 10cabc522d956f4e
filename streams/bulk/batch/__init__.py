"""Running a topology over data frames; users import `tidewheel.bulk`."""
