"""Commands that install optional packages, valid for a release and for a clone."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from json import loads


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of the package."""
    return f"install it with: pip install {_requirement(extra)}"


def install_first(what: str, package: str, extra: str) -> str:
    """Return a message that something needs a package, with the command that installs it."""
    return f"{what} needs the package {package}: pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    """Return the argument of ``pip install``: the folder of the clone, or the package name."""
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
