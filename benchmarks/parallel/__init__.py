"""The suite `parallel`: one partition and slow functions, at several parallelising factors."""
