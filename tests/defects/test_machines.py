"""Defects of a machine at its limits: no memory, no threads, signals. Real limits, in children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs the limits of Linux"),
]

TOO_LITTLE_MEMORY = """
import resource
from dataclasses import replace
import numpy as np
import integrodiff

model = replace(integrodiff.load_model("iad"), steps=1)
image = np.random.default_rng(0).normal(128, 30, (3000, 3000)).astype(np.float32)

def denoise(image):
    return integrodiff.denoise(image, 25, model=model, data_range=255, engine="native", threads=8)

expected = denoise(image[:64, :64])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
for more in [*range(0, 200, 20), 4000]:
    resource.setrlimit(resource.RLIMIT_AS, (used + (more << 20), resource.RLIM_INFINITY))
    try:
        denoise(image)
        print("result", flush=True)
    except MemoryError:
        print("MemoryError", flush=True)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert np.array_equal(denoise(image[:64, :64]), expected)
"""

NO_MORE_THREADS = """
import os, resource, shutil, sys
from pathlib import Path
import integrodiff
from integrodiff.cli import main

# A model of its own: another user may not be allowed to enter the folder of the package.
shutil.copy(next(Path(integrodiff.__file__).parent.rglob("iad.json")), "model.json")
sys.argv = (
    "integrodiff denoise in.npy out.npy --sigma 9 --data-range 255 --engine native "
    "--model model.json"
).split()
try:
    main()  # loads all that another user may not be allowed to read
except SystemExit as end:
    assert end.code == 0
os.remove("out.npy")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)  # the limit does not hold for root
resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))
main()
"""


def child(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "INTEGRODIFF_THREADS": "8"}
    command = [sys.executable, "-W", "ignore", "-c", code]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, capture_output=True, text=True, timeout=200, env=environment, **options
    )


def test_too_little_memory_is_a_memory_error() -> None:
    """At any limit the run ends with a result or MemoryError, never with the process."""
    done = child(TOO_LITTLE_MEMORY)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"MemoryError", "result"}


def test_a_file_is_denoised_where_no_more_threads_can_start() -> None:
    """Not in the folder of the tests, which another user may not enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        np.save(folder / "in.npy", np.random.default_rng(0).normal(128, 30, (200, 200)))
        done = child(NO_MORE_THREADS, cwd=folder)
        if "PermissionError" in done.stderr:
            pytest.skip("cannot become another user")
        assert done.returncode == 0, done.stderr
        assert {path.name for path in folder.iterdir()} == {"in.npy", "model.json", "out.npy"}


# As in a terminal; programs in the background start with some signals ignored.
START = """
import signal
from integrodiff.cli import main
signal.signal(signal.SIGHUP, signal.SIG_DFL)
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_no_partial_file(tmp_path: Path, number: int, code: int) -> None:
    source = tmp_path / "in.npy"
    # Large enough for the signal to arrive in time, also on a busy machine.
    np.save(source, np.random.default_rng(0).normal(128, 30, (800, 800)))
    words = ["denoise", "in.npy", "out.npy", "--sigma", "20", "--data-range", "255", "-q"]
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", START, *words, "--engine", "numpy"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".*.part*")):
            assert time.monotonic() < deadline, "nothing is being written"
            time.sleep(0.01)
        process.send_signal(number)
        _, message = process.communicate(timeout=60)
    assert list(tmp_path.iterdir()) == [source]
    assert process.returncode == code, message
