"""A hook of MkDocs: links from docs/ to other files of the repository.

The site contains only docs/. A link to a source file works on GitHub and in an editor; on the site
the hook replaces it by the path of the file. mkdocs.yml names this file.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"\[[^\]]*\]\(((?:\.\./)+[^)#\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace links that leave docs/ by paths; MkDocs calls this for each page."""
    return replace_links(markdown, page.file.src_uri)


def replace_links(markdown: str, source: str) -> str:
    """Replace links that leave docs/ by the path of their target.

    Args:
        markdown: the text of a page.
        source: the path of the page below docs/.
    """
    folder = posixpath.join("docs", posixpath.dirname(source))

    def path(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        return link[0] if target.startswith("docs/") else f"`{target}`"

    return LINK.sub(path, markdown)
