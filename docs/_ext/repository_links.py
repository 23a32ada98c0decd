"""Links of Markdown pages to files of the repository, in the built site.

Pages link to files beside `docs`, so that they can be read in the repository, too. In the site a
link to a file becomes a download, a link to a folder plain text, and a link to a page that is
included here a link to that page.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]

INCLUDED = {
    "README.md": "index",
    "CONTRIBUTING.md": "development/contributing",
    "CHANGELOG.md": "development/changelog",
    "SECURITY.md": "development/security",
    "CODE_OF_CONDUCT.md": "development/conduct",
    "benchmarks/README.md": "development/benchmarks",
}
"""Pages outside `docs`, and the pages that include them."""

_LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```|~~~|:::)")


def rewritten(text: str, folder: str) -> str:
    """Return a page with links that Sphinx can follow.

    Parameters
    ----------
    text : str
        The page in Markdown.
    folder : str
        Its folder, relative to the repository.
    """

    def target(match: re.Match[str]) -> str:
        words, path, anchor = match[1], match[2], match[3] or ""
        place = posixpath.normpath(posixpath.join(folder, path))
        if place in INCLUDED:
            return f"[{words}](/{INCLUDED[place]}.md{anchor})"
        if place.startswith("docs/") and place.endswith((".md", ".rst")):
            return f"[{words}](/{place.removeprefix('docs/')}{anchor})"
        if (ROOT / place).is_file():
            plain = words.replace("`", "")
            return f"{{download}}`{plain} </../{place}>`"
        return words

    lines, fenced = [], False
    for line in text.split("\n"):
        if _FENCE.match(line.strip()):
            fenced = not fenced
        lines.append(line if fenced else _LINK.sub(target, line))
    return "\n".join(lines)


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    path = Path(app.env.doc2path(docname))
    if path.suffix == ".md":
        folder = posixpath.normpath(posixpath.join("docs", posixpath.dirname(docname)))
        content[0] = rewritten(content[0], folder)


def _read_included(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    place = Path(app.srcdir, path).resolve()
    if place.suffix == ".md" and place.is_relative_to(ROOT):
        content[0] = rewritten(content[0], place.relative_to(ROOT).parent.as_posix())


def _copy_page(app: Sphinx, error: Exception | None) -> None:
    """Put the page in the browser beside the site, where it has been built."""
    page = ROOT / "page" / "dist"
    if error is None and page.is_dir():
        shutil.copytree(page, Path(app.outdir) / "live", dirs_exist_ok=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", _read)
    app.connect("include-read", _read_included)
    app.connect("build-finished", _copy_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
