"""Metadata of the package that depends on the repository's address.

The address is one setting: `repository` of `[tool.hatch.metadata.hooks.custom]` in pyproject.toml.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

#: Markdown links and images; a target with a scheme or an anchor of the page itself stays.
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<target>[^)\s]+)\)")
_CHECKOUT_ONLY = re.compile(r"<!-- checkout only -->.*?<!-- end -->\n*", re.DOTALL)


class RepositoryMetadata(MetadataHookInterface):
    """Sets `urls`, and `readme` with absolute links: an index page has no files beside it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both fields to the `[project]` table."""
        repository = self.config["repository"]
        tag = f"v{metadata['version']}"
        metadata["urls"] = urls(repository, tag)
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": index_page(text, repository, tag),
        }


def urls(repository: str, tag: str) -> dict[str, str]:
    """Return the labelled addresses of `Project-URL`."""
    files = f"{repository}/blob/{tag}"
    return {
        "Homepage": repository,
        "Documentation": f"{files}/docs/index.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Security": f"{files}/SECURITY.md",
    }


def index_page(readme: str, repository: str, tag: str) -> str:
    """Return the README with links to the files of a release, without its checkout-only parts."""

    def absolute(link: re.Match[str]) -> str:
        view = "raw" if link["image"] else "blob"
        return f"{link['image']}[{link['text']}]({repository}/{view}/{tag}/{link['target']})"

    return _LINK.sub(absolute, _CHECKOUT_ONLY.sub("", readme))
