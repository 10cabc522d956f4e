"""The documentation site, built from docs/: `python -m checks.site`.

Documents are GitHub's Markdown, for readers in the repository. A copy of them is prepared for
Zensical, which makes the pages and the search. Nothing is fetched, now or by a reader's browser.
"""
