"""Make the pictures of the page in docs/images: `python page/screenshots.py`.

Needs the built page, node with playwright-core (`npm ci` in this folder) and Chromium. The images
in the pictures are the samples: one in the public domain, the others generated.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread

from PIL import Image

from integrodiff.cli.page import page_server

PAGE = Path(__file__).resolve().parent
IMAGES = PAGE.parent / "docs" / "images"
COLOURS = 256


def main() -> None:
    """Serve the page, take the pictures, and reduce their colours."""
    with page_server(PAGE / "dist") as server, tempfile.TemporaryDirectory() as folder:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        command = ["node", str(PAGE / "screenshots.mjs"), address, folder]
        failed = subprocess.run(command, check=False).returncode
        server.shutdown()
        if failed:
            sys.exit("page/screenshots.py: no pictures were taken")
        for path in sorted(Path(folder).glob("*.png")):
            picture = Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            picture.save(IMAGES / path.name, optimize=True)
            print(f"{IMAGES / path.name}: {(IMAGES / path.name).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
