"""The measured programs: each job once per system, each written as its documentation teaches."""
