"""The documentation site: its sources, its pages in Chromium, its search."""
