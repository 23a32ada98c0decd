"""``integrodiff page``: the server of the page, on the loopback address alone."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from command_line import run

from integrodiff.cli.page import HOST, page_folder, page_server


@contextmanager
def served(folder: Path, *, isolated: bool = True) -> Iterator[int]:
    with page_server(folder, isolated=isolated) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def answer(port: int, path: str, host: str = HOST) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path, headers={"Host": f"{host}:{port}"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "single.wasm").write_bytes(b"\0asm")
    (tmp_path / "main.js").write_text("")
    return tmp_path


@pytest.mark.slow
def test_headers_isolate_the_page(folder: Path) -> None:
    with served(folder) as port:
        page = answer(port, "/")
        assert page.status == 200
        assert page.getheader("Cross-Origin-Opener-Policy") == "same-origin"
        assert page.getheader("Cross-Origin-Embedder-Policy") == "require-corp"
        assert page.getheader("X-Content-Type-Options") == "nosniff"
        assert answer(port, "/kernels/single.wasm").getheader("Content-Type") == "application/wasm"
        assert answer(port, "/main.js").getheader("Content-Type") == "text/javascript"
    with served(folder, isolated=False) as port:
        assert answer(port, "/").getheader("Cross-Origin-Opener-Policy") is None


@pytest.mark.slow
def test_nothing_else_is_served(folder: Path) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    with served(folder) as port:
        assert answer(port, "/../secret.txt").status == 404
        assert answer(port, "/%2e%2e/secret.txt").status == 404
        assert answer(port, "/kernels/").status == 404
        # A name of another site that was made to lead to this machine.
        assert answer(port, "/", host="attacker.example").status == 421
        assert answer(port, "/", host="localhost").status == 200


def test_the_built_page_is_found(tmp_path: Path) -> None:
    package = tmp_path / "clone" / "src" / "integrodiff"
    package.mkdir(parents=True)
    assert page_folder(package) is None
    built = tmp_path / "clone" / "page" / "dist"
    built.mkdir(parents=True)
    assert page_folder(package) is None
    (built / "index.html").touch()
    assert page_folder(package) == built
    (package / "_page").mkdir()
    (package / "_page" / "index.html").touch()
    assert page_folder(package) == package / "_page"


def test_port_in_use() -> None:
    if page_folder() is None:
        pytest.skip("the page is not built; run `make page`")
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        found = run("page", "--no-browser", "--port", port)
    assert found.exit_code == 2
    assert f"port {port} cannot be used" in found.output
    assert "choose another --port" in found.output


@pytest.mark.slow
def test_command_serves_until_it_is_interrupted() -> None:
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from integrodiff.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "page", "--no-browser"]
    built = page_folder() is not None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        if built:
            port = int(address.strip().rstrip("/").rsplit(":", 1)[1])
            assert address == f"http://{HOST}:{port}/\n"
            assert answer(port, "/index.html").status == 200
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    if built:
        assert process.returncode == 130
        assert "images never leave the browser" in errors
    else:
        assert process.returncode == 2
        assert "run `make page`" in errors
