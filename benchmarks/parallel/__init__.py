"""The suite `parallel`: one partition, and functions that take their time, at several parallelising factors."""
