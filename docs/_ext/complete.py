"""Fail if a page was read and not written, which Sphinx does not notice by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        names = sorted(app.env.found_docs)
        missing = [name for name in names if not Path(app.builder.get_outfilename(name)).is_file()]
        if missing:
            raise ExtensionError(f"pages were not written: {', '.join(missing)}")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
