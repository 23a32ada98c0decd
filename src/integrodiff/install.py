"""How to install what is missing, in words that work for a release and for a clone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from json import loads


def install_hint(extra: str) -> str:
    """Return the command that adds an optional part of the package, named by its extra."""
    return f"install it with: pip install {_requirement(extra)}"


def install_first(what: str, package: str, extra: str) -> str:
    """Return that something needs a package, and the command that installs it."""
    return f"{what} needs the package {package}: pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    """Return what pip takes: the folder of a clone, or the name of the package."""
    try:
        origin = distribution("integrodiff").read_text("direct_url.json")
    except PackageNotFoundError:
        origin = None
    details = loads(origin) if origin else {}
    url = str(details.get("url", ""))
    if not url.startswith("file://") or "archive_info" in details:
        return f"'integrodiff[{extra}]'"
    option = "--editable " if details.get("dir_info", {}).get("editable") else ""
    return f"{option}'{url.removeprefix('file://')}[{extra}]'"
