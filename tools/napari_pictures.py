"""Draw the pictures of the plugin for the docs: napari on a virtual screen, driven as by a person.

Needs napari, a binding of Qt, and a screen; without one it starts Xvfb. ``make napari`` runs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SIZE = (1280, 800)


@contextmanager
def virtual_screen() -> Iterator[None]:
    """Start Xvfb, unless there is a screen."""
    if os.environ.get("DISPLAY"):
        yield
        return
    program = shutil.which("Xvfb")
    if program is None:
        sys.exit("there is no screen, and no Xvfb: apt-get install xvfb")
    reading, writing = os.pipe()
    width, height = _SIZE
    server = subprocess.Popen(
        [program, "-displayfd", str(writing), "-screen", "0", f"{width}x{height}x24"],
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        os.environ["DISPLAY"] = f":{stream.readline().strip()}"
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def draw(folder: Path) -> None:
    """Open the sample with cells, preview it, denoise it, and write what the screen shows."""
    os.environ["NAPARI_CONFIG"] = str(Path(tempfile.mkdtemp()) / "settings.yaml")
    os.environ["QT_QPA_PLATFORM"] = "xcb"
    import napari
    from qtpy.QtWidgets import QApplication

    viewer = napari.Viewer(show=True)
    viewer.window.resize(*_SIZE)
    (layer,) = viewer.open_sample("integrodiff", "cells")
    _, panel = viewer.window.add_plugin_dock_widget("integrodiff", "Denoise")

    def wait() -> None:
        until = time.monotonic() + 300
        while panel.is_running:
            QApplication.processEvents()
            time.sleep(0.01)
            if time.monotonic() > until:
                sys.exit("the plugin did not finish within five minutes")

    QApplication.processEvents()
    panel.start.native.click()
    wait()
    # Before and after beside each other.
    grid = viewer.canvas.grid if hasattr(viewer, "canvas") else viewer.grid
    grid.shape, grid.enabled = (2, 2), True
    viewer.layers["cells, noise 20 denoised, removed noise"].visible = True
    viewer.dims.set_point(0, 12 * layer.scale[0])
    viewer.reset_view()
    for _ in range(20):
        QApplication.processEvents()
        time.sleep(0.05)
    viewer.screenshot(str(folder / "napari.png"), canvas_only=False, flash=False)
    sys.stdout.write(panel.message + "\n")
    viewer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures are written")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with virtual_screen():
        draw(arguments.folder)
