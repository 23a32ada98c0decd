"""The benchmarks: their contract, their verdicts with made-up numbers, and their counts."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import engine_speed
import integrodiff
import peer_table
import run
import timing
import vector_code
import volumes
from denoisers import PEERS
from frontier import TestSet
from integrodiff.engines import ENGINES, thread_count
from integrodiff.reproduction._results import Result
from peers import Method

needs_native = pytest.mark.skipif(
    ENGINES["native"].unavailable() is not None, reason="the compiled engine is not built"
)


def timed(seconds: list[float], threads: int = 1, processor: list[float] | None = None) -> Result:
    """A row as if it had been timed."""
    return timing.Timing(threads, 1.0, seconds, processor or seconds).as_result()


# ---- the contract ----


def test_turns_interleave_and_the_first_does_not_count() -> None:
    calls: list[str] = []
    contestants = {name: timing.Contestant(partial(calls.append, name)) for name in "ab"}
    found = timing.take_turns(contestants, 3)
    assert calls == ["a", "b"] * 4
    assert all(len(t.wall) == len(t.processor) == 3 for t in found.values())
    assert all(t.first > 0 for t in found.values())


def test_slow_contestants_run_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "PATIENCE", -1.0)
    found = timing.take_turns({"a": timing.Contestant(lambda: None)}, 9)
    assert len(found["a"].wall) == timing.SLOW_REPEATS


def test_nobody_pays_for_the_idle_threads_of_another() -> None:
    def stay_awake() -> None:
        end = time.monotonic() + 0.1
        while time.monotonic() < end:
            pass

    def leave_a_thread() -> None:
        threading.Thread(target=stay_awake).start()

    contestants = {
        "restless": timing.Contestant(leave_a_thread),
        "next": timing.Contestant(partial(time.sleep, 0.02)),
    }
    found = timing.take_turns(contestants, 3)
    assert max(found["next"].processor) < 0.01


def test_thread_limits_hold_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INTEGRODIFF_THREADS", raising=False)
    with timing.limited(1):
        assert thread_count() == 1
        with timing.limited(2):
            assert thread_count() == 2
        assert thread_count() == 1
    assert "INTEGRODIFF_THREADS" not in os.environ


def test_one_thread_is_judged_by_the_processor_and_several_by_the_wall() -> None:
    one, two = timed([2.0, 4.0, 6.0], 1, [1.0, 1.0, 1.0]), timed([1.0, 2.0, 4.0], 2, [9.0] * 3)
    assert timing.seconds(one) == 1.0
    assert timing.seconds(two) == 2.0
    assert timing.ratios(one, two)["median"] == 2.0  # 2 / 1, 4 / 2 and 6 / 4, by the wall
    assert timing.ratios(one, timed([5.0] * 3, 1, [2.0, 4.0]))["median"] == 0.375


def test_summary_has_the_quartiles() -> None:
    assert timing.summary([1, 2, 3, 4, 5]) == {"median": 3.0, "quartiles": [2.0, 4.0]}
    assert timing.range_text(timing.summary([1, 2, 3, 4, 5])) == "3 (2 to 4)"


@pytest.mark.parametrize(("value", "met"), [(19.9, False), (20.0, True)])
def test_aims_are_compared(value: float, met: bool) -> None:
    row = timing.aim("speed", value, at_least=20)
    assert (row["met"], row["wanted"]) == (met, "at least 20")
    assert ("**missed**" in timing.aims_table([row])) is not met
    assert timing.aim("cost", value, at_most=19.95)["met"] is not met


def test_facts_name_the_machine_and_the_versions() -> None:
    found = timing.facts({"repeats": 1}, ["no-such-package"])
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["no-such-package"] == "missing"
    assert {"processor", "processors", "seed", "load", "native", "settings"} <= set(found)
    assert "no-such-package missing" in timing.facts_text(found)
    quiet, busy = ({**found, "processors": 2, "load": [load] * 3} for load in (0.9, 1.1))
    assert "The machine was busy" not in timing.facts_text(quiet)
    assert "The machine was busy" in timing.facts_text(busy)
    json.dumps(found, allow_nan=False)


# ---- engines ----


@pytest.mark.long
@needs_native
def test_parts_write_json_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timing, "_LONGEST_WAIT", 1)  # times do not matter here
    path = tmp_path / "new" / "bench.json"
    words = (
        f"speed scaling --json {path} --models iad pm --repeats 1 --threads 1 2 --speed-peers tv"
    )
    run.main(f"{words} --size 24 --sizes 16 32".split())
    document = json.loads(path.read_text())
    assert set(document) == {"speed", "scaling"}
    rows = document["speed"]["rows"]
    assert {(row["model"], row["engine"], row["threads"]) for row in rows} >= {
        ("iad", "native", 1),
        ("iad", "numpy", 1),
        ("iad", engine_speed.TWO_AT_ONCE, 2),
        ("pm", "native", 1),
        ("TV, Chambolle", PEERS["tv"].release(), 1),
    }
    for row in rows:
        assert len(row["seconds"]) == len(row["processor_seconds"]) == 1
        pixels = 24 * 24 * (2 if row["engine"] == engine_speed.TWO_AT_ONCE else 1)
        assert row["megapixels_per_second"] == pytest.approx(
            pixels / 1e6 / timing.seconds(row), rel=1e-4
        )
    assert [row["size"] for row in document["scaling"]["rows"]] == [16, 16, 32, 32]
    printed = capsys.readouterr().out
    assert "| iad, numpy" in printed
    assert "| 32 x 32" in printed

    run.main(f"scaling --json {path} --repeats 1 --sizes 16 --threads 1 2".split())
    again = json.loads(path.read_text())
    assert again["speed"] == document["speed"]
    found = [(row["size"], row["threads"]) for row in again["scaling"]["rows"]]
    assert found == [(16, 1), (16, 2)]


def test_a_part_must_be_named() -> None:
    with pytest.raises(SystemExit):
        run.main([])


def test_missing_engines_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("native", "torch", "cuda"):
        monkeypatch.setattr(type(ENGINES[name]), "unavailable", lambda self: "not here")
    part = engine_speed.measure_speed(["pm"], 16, [1], 1)
    assert part["missing"] == dict.fromkeys(("native", "torch", "cuda"), "not here")
    assert [row["engine"] for row in part["rows"]] == ["numpy"]
    assert "Missing: native: not here." in engine_speed.speed_table(part)


def test_exact_evaluation_is_timed_where_there_is_such_a_switch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without(image: object, sigma: float) -> None: ...
    def switched(image: object, sigma: float, *, exact: bool = False) -> None: ...

    monkeypatch.setattr(integrodiff, "denoise", without)
    assert engine_speed.variants() == {"native": {}}
    assert engine_speed.exactly() == {}
    monkeypatch.setattr(integrodiff, "denoise", switched)
    assert engine_speed.variants()["native, exact"] == {"exact": True}
    assert engine_speed.exactly() == {"exact": True}


def speed_row(engine: str, threads: int, wall: float, processor: float) -> Result:
    row = {"model": "iad", "engine": engine, **timed([wall] * 3, threads, [processor] * 3)}
    return {**row, "megapixels_per_second": 1 / timing.seconds(row)}


def test_speed_aims_take_the_best_of_the_other_engine() -> None:
    rows = [
        speed_row("native", 1, 2.0, 1.0),
        speed_row("native", 2, 1.0, 2.0),
        speed_row("numpy", 1, 30.0, 21.0),
        speed_row("numpy", 2, 900.0, 900.0),  # threads that wait for each other
        speed_row("torch", 1, 10.0, 10.0),
        speed_row(engine_speed.TWO_AT_ONCE, 2, 1.6, 3.2),
    ]
    found = {row["what"]: (row["reached"], row["met"]) for row in engine_speed.speed_aims(rows)}
    assert found == {
        "iad: times the speed of numpy, threads: 1": (21.0, True),
        "iad: times the speed of numpy, threads: 2": (30.0, False),
        "iad: times the speed of torch, threads: 1": (10.0, False),
        "iad: two threads to one": (2.0, True),
        "iad: speed of two threads to that of two images at once": (0.8, False),
        "iad: megapixels per second, one thread": (1.0, False),
    }


def test_scaling_aim_compares_the_extremes() -> None:
    rows = [
        {"threads": 1, "nanoseconds_per_pixel": cost, "size": size}
        for size, cost in ((128, 100.0), (256, 90.0), (512, 140.0))
    ]
    (found,) = engine_speed.scaling_aims(rows)
    assert found["reached"] == pytest.approx(140 / 90, rel=1e-5)
    assert not found["met"]


def test_images_that_do_not_fit_are_skipped() -> None:
    assert engine_speed.too_large(16) is None
    assert "GB of memory" in str(engine_speed.too_large(10**8))


# ---- peers ----


@pytest.mark.parametrize(
    ("decibels", "times", "expected"),
    [
        (0.1, 0.9, peer_table.FASTER_AND_BETTER),
        (0.0, 4.9, peer_table.NOT_SLOW_ENOUGH),
        (0.0, 5.0, peer_table.SLOW_AND_BETTER),
        (-0.1, 0.9, peer_table.FASTER_AND_WORSE),
        (-0.1, 1.0, peer_table.BEATEN),
    ],
)
def test_verdicts(decibels: float, times: float, expected: str) -> None:
    assert peer_table.verdict(decibels, times) == expected


def peer_row(title: str, decibels: list[float], time: float, **changes: Any) -> Result:
    """A row of two images of BSD68 at s = 15 and 25, and one crop of BSDS500 at s = 20."""
    first, second, crop = decibels
    psnr = {"bsd68": {"15": [first] * 2, "25": [second] * 2}, "bsds500": {"20": [crop]}}
    row = {"title": title, "model": False, "engine": "made up", "slow": False, "psnr": psnr}
    return {**row, **timed([time] * 3), "megapixels_per_second": 1 / time, **changes}


def made_up() -> Result:
    slow = {"bsd68": {"15": [33.0], "25": [31.0]}, "bsds500": {"20": [29.0]}}
    rows = {
        "iad": peer_row("IAD", [31.0, 29.0, 28.0], 1.0, model=True),
        "fast": peer_row("fast", [30.5, 28.5, 27.9], 0.1, model=True),
        "tv": peer_row("TV", [30.0, 28.0, 27.75], 0.5),
        "winner": peer_row("Winner", [31.5, 29.5, 28.5], 0.5),
        "mixed": peer_row("Mixed", [31.2, 28.0, 27.0], 2.0),
        "slow": peer_row("Slow", [0, 0, 0], 10.0, slow=True, psnr=slow),
    }
    settings = {
        "bsd68": {"images": 2},
        "bsds500": {"images": 1},
        "slow_images": 1,
        "timed": "first image of bsd68, s = 25",
    }
    return {"facts": timing.facts(settings), "missing": {"bm3d": "not here"}, "rows": rows}


def test_table_is_sorted_and_prints_losses() -> None:
    text = peer_table.peers_table(made_up())
    lines = [line for line in text.splitlines() if "made up" in line]
    order = ["TV", "Mixed", "**fast**", "**IAD**", "Winner", "Slow"]
    assert [line[2:].split(",")[0] for line in lines] == order
    assert peer_table.FASTER_AND_BETTER in lines[4]
    assert "+1.67" in lines[5]
    assert "33.00*" in lines[5]
    assert peer_table.SLOW_AND_BETTER in lines[5]
    assert f"Mixed on BSD68 s = 15: {peer_table.NOT_SLOW_ENOUGH}." in text
    assert "Missing: bm3d: not here." in text


def test_peer_aims_count_losses_for_every_model() -> None:
    found = {row["what"]: row for row in peer_table.peer_aims(made_up()["rows"])}
    assert found["iad: peers that are faster and better"]["reached"] == 1
    assert not found["iad: peers that are faster and better"]["met"]
    assert found["fast: peers that are faster and better"]["met"]
    assert found["iad: dB above TV-Chambolle, BSDS500 crops, s = 20"]["met"]
    assert not found["fast: dB above TV-Chambolle, BSDS500 crops, s = 20"]["met"]


def test_slow_peers_are_compared_on_their_own_images() -> None:
    ours = peer_row("IAD", [0, 0, 0], 1.0)
    ours["psnr"] = {"bsd68": {"15": [30.0, 20.0]}}
    theirs = peer_row("Slow", [0, 0, 0], 1.0)
    theirs["psnr"] = {"bsd68": {"15": [29.0]}}
    assert peer_table.differences(theirs, ours) == {"bsd68 15": -1.0}


def test_use_of_more_threads_is_told() -> None:
    part = made_up()
    part["rows"]["winner"].update(timed([0.5] * 3, 1, [0.95] * 3))
    assert "Winner used 1.9 threads, not one." in peer_table.peers_table(part)


def test_missing_and_untuned_peers_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        type(PEERS["bm3d"]), "unavailable", lambda self: "gone" if self.slow else None
    )
    methods, missing = peer_table.contestants(["pm"], ["tv", "bm3d"], tmp_path / "none.json")
    assert [method.name for method in methods] == ["pm"]
    assert missing["bm3d"] == "gone"
    assert "no settings" in missing["tv"]
    assert "bm3d is missing: gone" in capsys.readouterr().out


def test_measured_peers() -> None:
    def half(noisy: NDArray[Any], _: float) -> NDArray[Any]:
        return noisy / 2

    methods = [Method(name, name.upper(), half, 1, "none", "1", name) for name in ("mine", "bm3d")]
    images = [np.full((8, 8), 100.0, np.float32), np.full((8, 8), 50.0, np.float32)]
    sets = [TestSet("bsd68", images, (15,)), TestSet("bsds500", images, (20,))]
    part = peer_table.measure_peers(methods, {"tv": "not here"}, sets, 1, 2)
    mine, slow = part["rows"]["mine"], part["rows"]["bm3d"]
    assert (mine["model"], mine["slow"], slow["model"], slow["slow"]) == (True, False, False, True)
    assert len(mine["psnr"]["bsd68"]["15"]) == 2
    assert slow["psnr"]["bsd68"]["15"] == mine["psnr"]["bsd68"]["15"][:1]
    assert len(mine["seconds"]) == 2
    assert "Missing: tv: not here." in peer_table.peers_table(part)
    json.dumps(part, allow_nan=False)


# ---- vector instructions ----

CODE = """
0000000000000000 <void integrodiff::avx2::blur<float>(float const*)>:
       0:\tvfmadd231ps %ymm1,%ymm2,%ymm3
       4:\tvaddps (%rax),%ymm1,%ymm2
       8:\tvmulss %xmm1,%xmm2,%xmm3
       c:\tvmovaps %ymm1,(%rax)
0000000000000020 <void integrodiff::avx2::blur<double>(double const*)>:
      20:\tvaddpd %ymm1,%ymm2,%ymm3
0000000000000040 <main>:
      40:\tmulps  %xmm1,%xmm2
""".splitlines()

PROFILE = """
ob=/lib/engine.so
fn=blur
0x0 0 100
0x4 0 100
calls=1 0x20 0
0x8 0 5000
0x8 0 3
0xc 0 100
ob=/lib/other.so
0x0 0 777
""".splitlines()


@pytest.mark.parametrize(
    ("instruction", "count"),
    [
        ("vfmadd231ps %zmm1,%zmm2,%zmm3", 16),
        ("vaddpd %ymm1,%ymm2,%ymm3", 4),
        ("mulps  %xmm1,%xmm2", 4),
        ("vsqrtss %xmm1,%xmm2,%xmm3", 1),
        ("vfnmadd213sd %xmm1,%xmm2,%xmm3", 1),
        ("vmovaps %ymm1,(%rax)", None),
        ("add    $0x8,%rsp", None),
        ("vpaddd %zmm1,%zmm2,%zmm3", None),
    ],
)
def test_lanes(instruction: str, count: int | None) -> None:
    assert vector_code.lanes(instruction) == count


def test_written_instructions() -> None:
    assert vector_code.count_written(CODE) == {("blur", "avx2"): {8: 2, 1: 1}}


def test_executed_instructions() -> None:
    runs = list(vector_code.executed(PROFILE, "/lib/engine.so"))
    assert runs == [(0, 100), (4, 100), (8, 3), (12, 100)]
    counts, total = vector_code.count_executed(CODE, runs)
    assert counts == {8: 200, 1: 3}
    assert total == 303


def test_scalar_functions_are_named() -> None:
    rows = [
        {"function": "blur", "instructions": "avx2", "packed": 9, "scalar": 1, "widest": 8},
        {"function": "slow", "instructions": "avx2", "packed": 0, "scalar": 9, "widest": 1},
    ]
    part = {"facts": timing.facts({"image": "tiny"}), "executed": [], "written": rows}
    text = vector_code.vectors_table(part)
    assert "**Not vectorised**: `slow` (avx2)." in text
    assert "9 + 1 (8)" in text
    part["written"] = rows[:1]
    assert "No function is without vector instructions." in vector_code.vectors_table(part)


# ---- the README ----


def test_report_goes_between_the_marks(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"before\n{run._BEGIN}old\n{run._END}after\n")
    document = {"peers": made_up()}
    run.write_report(document, path)
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert peer_table.peers_table(document["peers"]) in text


def test_readme_shows_the_committed_numbers() -> None:
    root = Path(run.__file__).resolve().parents[1]
    document = json.loads((root / "results" / "benchmarks.json").read_text())
    assert set(document) == set(run.TABLES)
    assert run.report(document) in (root / "benchmarks" / "README.md").read_text()


def test_readme_names_all_options() -> None:
    parser: argparse.ArgumentParser = run.options()
    text = (Path(run.__file__).parent / "README.md").read_text()
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                assert option in text


# ---- volumes ----


@pytest.mark.slow
@needs_native
def test_volumes_are_measured_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    volumes.main(["--sides", "16"])
    text = capsys.readouterr().out
    assert "| 16 | engine |" in text
    assert "| 16 | denoise |" in text
    assert "megavoxels per second at 16: " in text


def test_aims_of_volumes() -> None:
    def row(side: int, seconds: float, of_voxel: float, part: str = "engine") -> dict[str, Any]:
        speed = side**3 / seconds / 1e6
        return {
            "side": side,
            "part": part,
            "threads": 1,
            "seconds": seconds,
            "megavoxels_per_second": speed,
            "bytes_per_voxel": of_voxel,
            "peak": 4e9,
        }

    small, large = row(100, 1.0, 10.0), row(512, 402.6, 17.0)
    lines = volumes.aims([small, large, row(512, 500.0, 20.0, "denoise")])
    assert [line.endswith("**missed**") for line in lines] == [
        *(False, False),
        *(True, True),
        *(True, True),
    ]
