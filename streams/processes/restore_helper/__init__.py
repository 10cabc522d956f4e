"""The restore helper: processes that build sorted runs outside the worker's interpreter."""
