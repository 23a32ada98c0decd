"""The built page, a server of it, and node to run its modules or to drive it in Chromium."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeAlias

import pytest

from integrodiff.cli.page import page_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "page"
HERE = Path(__file__).resolve().parent
_BROWSERS = ("/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome")

Node: TypeAlias = Callable[..., Any]


@pytest.fixture(scope="session")
def built_page() -> Path:
    """Build the page, if anything has changed."""
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("the compiler to WebAssembly, ziglang from PyPI, is not installed")
    command = [sys.executable, str(PAGE / "build.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return PAGE / "dist"


@pytest.fixture(scope="session")
def node(built_page: Path) -> Node:
    """Run a script of this folder on the modules of the built page; return what it prints."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("node is not installed")

    def run(script: str, *arguments: str | Path, patience: int = 120) -> Any:
        command = [program, str(HERE / script), str(built_page), *map(str, arguments)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATIENCE": str(patience)},
            timeout=patience + 180,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="session")
def drive(node: Node, built_page: Path) -> Node:
    """Drive the page in Chromium: a scenario of drive.mjs with its arguments."""
    browser = os.environ.get("CHROMIUM")
    if browser is None and not any(map(os.path.exists, _BROWSERS)):
        pytest.skip("Chromium is not installed")
    if not (PAGE / "node_modules" / "playwright-core").is_dir():
        pytest.skip("playwright-core is not installed; run `npm ci` in the folder page")

    def run(
        scenario: str,
        *arguments: str | Path,
        isolated: bool = True,
        patience: int = 120,
        folder: Path = built_page,
    ) -> Any:
        with served(folder, isolated=isolated) as address:
            return node("drive.mjs", scenario, address, *arguments, patience=patience)

    return run


@contextmanager
def served(folder: Path, *, isolated: bool) -> Iterator[str]:
    """Serve the page while the block runs."""
    with page_server(folder, isolated=isolated) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()
