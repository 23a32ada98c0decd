"""``integrodiff page``: serve the page that denoises in the browser, on this machine alone."""

from __future__ import annotations

import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from integrodiff.cli._terminal import ExitCode, exit_codes, note, stop

HOST = "127.0.0.1"

_TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".wasm": "application/wasm",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".tif": "image/tiff",
}


def page(
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, metavar="N", help="Port on 127.0.0.1; by default any free one."
        ),
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Denoise images in a web browser, on this machine.

    Serves the page on the loopback address 127.0.0.1 until Ctrl-C. Images are computed in the
    browser and never leave it; with this server the browser may use all processors.
    """
    with exit_codes():
        folder = page_folder()
        if folder is None:
            stop(
                ExitCode.USAGE,
                "the page was not built for this installation; in a clone of the repository run "
                "`make page`, and then this command again",
            )
        try:
            server = page_server(folder, port)
        except OSError as error:
            reason = error.strerror or error
            stop(ExitCode.USAGE, f"port {port} cannot be used ({reason}); choose another --port")
        with server:
            address = f"http://{HOST}:{server.server_address[1]}/"
            typer.echo(address)
            note("serving the page on this machine until Ctrl-C; images never leave the browser")
            if browser and not webbrowser.open(address):
                note(f"no browser was found; open {address}")
            server.serve_forever()


def page_folder(package: Path = Path(__file__).resolve().parents[1]) -> Path | None:
    """Return the folder of the built page: that of an installed package, or of the source tree."""
    for folder in (package / "_page", package.parents[1] / "page" / "dist"):
        if (folder / "index.html").is_file():
            return folder
    return None


def page_server(folder: Path, port: int = 0, *, isolated: bool = True) -> ThreadingHTTPServer:
    """Return a server of the page on the loopback address.

    If it is ``isolated``, browsers let the page share memory among its workers.
    """
    handler = partial(_Handler, directory=str(folder), isolated=isolated)
    return ThreadingHTTPServer((HOST, port), handler)


class _Handler(SimpleHTTPRequestHandler):
    """Serves files, and says nothing about it."""

    extensions_map: ClassVar[dict[str, str]] = {  # type: ignore[misc]
        **SimpleHTTPRequestHandler.extensions_map,
        **_TYPES,
    }

    def __init__(self, *arguments: Any, isolated: bool, **options: Any) -> None:
        self._isolated = isolated
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        """Serve a file, unless another site asks by a name that leads here."""
        if self._is_local():
            super().do_GET()

    def do_HEAD(self) -> None:
        """Serve the header of a file."""
        if self._is_local():
            super().do_HEAD()

    def _is_local(self) -> bool:
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host in (HOST, "localhost"):
            return True
        self.send_error(421, "this server answers for 127.0.0.1 alone")
        return False

    def end_headers(self) -> None:
        """Isolate the page from other sites, and let no file be taken for another type."""
        if self._isolated:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def list_directory(self, path: Any) -> None:
        """Show no folders."""
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
