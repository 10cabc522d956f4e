"""Cutting a task's keys into ranges: decisions and values, pure. What runs the ranges is `tasks.ranges`."""
