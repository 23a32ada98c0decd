"""``integrodiff reproduce``: numbers in all its files, messages, exit codes, and training."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from full_disk import full_disk
from image_samples import crops
from PIL import Image
from typer.testing import Result

from integrodiff import FullLaw, ScaleGrid, learning, load_model
from integrodiff.learning.evaluation import mean_psnr
from integrodiff.learning.recipes import RECIPES, Recipe
from integrodiff.reproduction import ablation, evaluation, published, table1
from integrodiff.reproduction.targets import TARGETS, training_levels

pytestmark = pytest.mark.slow

LEVELS = [f"{level:g}" for level in published.LEVELS]
SUFFIXES = {name: (".csv", ".json", ".md", *[".png"] * TARGETS[name].draws) for name in TARGETS}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small image as the cameraman; small images in the place of BSDS500."""
    monkeypatch.setattr(learning, "bsds500", lambda split, folder, count: crops(count))
    folder = tmp_path / "data"
    (folder / "set12").mkdir(parents=True)
    pixels = crops().pixels[0].astype(np.uint8)
    Image.fromarray(pixels).save(folder / "set12" / "cameraman.png")
    return folder


def reproduce(data: Path | None, output: Path, *words: object) -> Result:
    named = () if data is None else ("--data", data)
    return run("reproduce", *words, *named, "--output", output, "--jobs", 1)


def results_of(folder: Path, name: str) -> tuple[Any, list[dict[str, str]], str]:
    """JSON, rows of the CSV file, and Markdown."""
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    text = (folder / f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text), rows, (folder / f"{name}.md").read_text(encoding="utf-8")


def cells(markdown: str, first: str) -> list[str]:
    """The cells of the row of a Markdown table that begins with this cell."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in markdown.splitlines()]
    (found,) = [row for row in rows if row and row[0] == first]
    return found[1:]


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# ---- results ----


@pytest.fixture
def everything(data: Path, tmp_path: Path) -> tuple[Path, Result]:
    output = tmp_path / "new" / "results"
    result = reproduce(data, output, "all")
    assert result.exit_code == 0, result.output
    return output, result


def test_all(everything: tuple[Path, Result]) -> None:
    output, result = everything
    expected = [name + suffix for name in TARGETS for suffix in SUFFIXES[name]]
    assert names(output) == sorted(expected)
    texts = [(output / f"{name}.md").read_text(encoding="utf-8") for name in TARGETS]
    assert result.stdout == "\n".join(texts)
    first, last = result.stderr.splitlines()
    assert first == "30 pairs of model and noise level, each on 2 test crops, in 1 process(es)"
    assert last.startswith(f"written to {output}: ")
    assert set(last.split(": ")[1].split(", ")) == set(expected)

    table, rows, text = results_of(output, "table1")
    assert "on the first 2 of the 100 test crops (the paper's numbers are for all 100)" in text
    assert table["test_images"]["count"] == table["first_crops"] == 2
    assert [(row["model"], row["s"]) for row in rows] == [
        (name, level) for name in table1.MODELS for level in (*LEVELS, "mean")
    ]
    for row in rows:
        for kind in ("ours", "paper", "difference"):
            assert float(row[kind]) == table["psnr"][row["model"]][kind][row["s"]]
    for name, title in published.TITLES.items():
        found = table["psnr"][name]
        assert list(found["paper"].values())[:-1] == list(published.TABLE_1[name])
        for kind in ("ours", "paper", "difference"):
            shown = cells(text, f"{title}, {kind}")[:7]
            assert [float(cell) for cell in shown] == pytest.approx(
                list(found[kind].values()), abs=0.0051
            )
        assert float(cells(text, f"{title}, ours")[-1]) <= 1
        psnr = mean_psnr(load_model(name), crops(), (50.0,), engine="numpy")[50.0]
        assert found["ours"]["50"] == pytest.approx(psnr, abs=1e-4)
        assert found["on_first_crops"]["50"] == pytest.approx(psnr, abs=1e-4)
        assert found["difference"]["50"] == pytest.approx(
            found["ours"]["50"] - found["paper"]["50"], abs=1e-9
        )
    assert len(table["checks"]) == 21
    for check in table["checks"]:
        assert check["holds"] == (check["difference"] > 0)
        word = "holds" if check["holds"] else "**fails**"
        assert f"- {word}: {check['check']} ({check['difference']:+.3f} dB)" in text


@pytest.mark.long
def test_ablation_and_figures(everything: tuple[Path, Result]) -> None:
    output, _ = everything
    result, rows, text = results_of(output, "ablation")
    counts = [result["parameters"][name] for name in ("iad-full", "iad")]
    assert [c["laws"] for c in counts] == [c["paper"] for c in counts] == [96, 3]
    assert [c["trained"] for c in counts] == [96, 4]
    assert [row["s"] for row in rows] == [*LEVELS, "mean"]
    table = results_of(output, "table1")[0]
    for row in rows:
        full, reduced = (result["psnr"][name][row["s"]] for name in ("iad-full", "iad"))
        assert float(row["gap"]) == result["gap"][row["s"]]
        assert float(row["gap"]) == pytest.approx(full - reduced, abs=1.1e-4)
        assert reduced == table["psnr"]["iad"]["ours"][row["s"]]
    assert result["difference"] == pytest.approx(result["gap"]["mean"] - 0.07)
    assert float(cells(text, "gap, ours")[-1]) == pytest.approx(result["gap"]["mean"], abs=6e-4)
    assert cells(text, "gap, paper")[-1] == "+0.07"

    result, rows, text = results_of(output, "figure1")
    assert len(rows) == 16
    weights = ScaleGrid(smallest=0.1, quadrature="variance").quadrature_weights
    for number, row in enumerate(rows):
        found = [result["free"][row["s"]][key][number % 8] for key in ("gammas", "lambdas")]
        assert [float(row["gamma"]), float(row["lambda"])] == found
        assert float(row["weight"]) == pytest.approx(weights[number % 8] * found[0] ** 2, rel=1e-4)
    assert cells(text, "paper, trained reduced model") == ["1.64", "2.46", "1.47"]
    law = load_model("iad").law  # type: ignore[attr-defined]
    assert result["laws"]["reduced"]["alpha"] == pytest.approx(law.alpha, rel=1e-5)

    result, rows, text = results_of(output, "figure2")
    assert [row["image"] for row in rows] == ["noisy", *published.TITLES]
    for row in rows:
        assert float(row["ours"]) == result["psnr"][row["image"]]["ours"]
        shown = cells(text, published.TITLES.get(row["image"], "noisy"))
        assert float(shown[0]) == pytest.approx(float(row["ours"]), abs=0.0051)
    assert result["psnr"]["iad"]["paper"] == 26.02
    assert result["remark"] in text
    for name in ("figure1.png", "figure2.png"):
        with Image.open(output / name) as picture:
            assert min(picture.size) > 300


def test_cells_are_computed_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[object] = []

    def count(model: object, batch: object, level: float, first: int) -> list[float]:
        computed.append((model, level, first))
        return [20.0 + len(computed), 20.0]

    monkeypatch.setattr(evaluation, "_batch_psnr", count)
    assert reproduce(data, tmp_path / "out", "table1", "ablation").exit_code == 0
    assert len(computed) == 30
    assert names(tmp_path / "out") == sorted(
        name + suffix for name in ("ablation", "table1") for suffix in SUFFIXES[name]
    )


@pytest.mark.long
def test_nothing_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from integrodiff import learning; from integrodiff.cli import app\n"
        "from image_samples import crops\n"
        "learning.bsds500 = lambda split, folder, count: crops(1)\n"
        f"words = ['reproduce', 'table1', 'ablation', 'figure1', '--output', {str(tmp_path)!r}]\n"
        "try: app([*words, '--jobs', '1'])\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    folder = Path(__file__).parents[1] / "support"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- with BSDS500 ----


@pytest.mark.long
def test_on_real_images(research_data: Path, tmp_path: Path) -> None:
    words = ("reproduce", "figure2", "table1", "--count", 1, "--output", tmp_path)
    result = run(*words, "--data", research_data)
    assert result.exit_code == 0, result.output
    table = results_of(tmp_path, "table1")[0]
    assert table["test_images"]["count"] == table["first_crops"] == 1
    assert table["test_images"]["source"].startswith("BSDS500 test")
    images = learning.bsds500("test", research_data, 1)
    psnr = mean_psnr(load_model("eed"), images, (30.0,), engine="numpy")[30.0]
    assert table["psnr"]["eed"]["ours"]["30"] == pytest.approx(psnr, abs=1e-3)
    cameraman = results_of(tmp_path, "figure2")[0]
    assert cameraman["image"]["shape"] == [256, 256]
    assert cameraman["psnr"]["iad"]["ours"] > cameraman["psnr"]["pm"]["ours"] > 23


# ---- training ----


@pytest.fixture
def quick_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps, scales and iterations, for speed."""
    pytest.importorskip("torch")

    def quick(start: Any) -> Any:
        if not hasattr(start, "scales"):
            return replace(start, steps=2)
        law = start.law
        if isinstance(law, FullLaw):
            law = FullLaw(gammas=law.gammas[:3], lambdas=law.lambdas[:3])
        return replace(start, steps=2, tau=0.05, law=law, scales=ScaleGrid(count=3))

    def recipe(full: Recipe) -> Recipe:
        return replace(full, starts=lambda level: [quick(s) for s in full.starts(level)[:1]])

    for name in list(RECIPES):
        monkeypatch.setitem(RECIPES, name, recipe(RECIPES[name]))
    settings = learning.FitSettings(phases=(None,), iterations=1)
    monkeypatch.setattr("integrodiff.learning.recipes.FitSettings", lambda: settings)


@pytest.mark.usefixtures("quick_training")
def test_training(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out"
    words = ("ablation", "figure1", "--train", "--device", "cpu", "--train-count", 1)
    shown: list[object] = []

    def interrupt(plan: object, step: object) -> str:
        shown.append(step)
        if len(shown) == 3:
            raise KeyboardInterrupt
        return "a step"

    with monkeypatch.context() as patch:
        patch.setattr("integrodiff.cli._training_messages.step_text", interrupt)
        result = reproduce(data, output, *words)
    assert result.exit_code == 130
    assert f"repeat the command to continue from the checkpoint in {output}/" in result.stderr
    assert names(output / "models") == ["iad-smooth.json"]

    result = reproduce(data, output, *words)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("continues from its last checkpoint") == 2
    assert result.stderr.count(" iteration 1: ") == 9 - len(shown)
    assert names(output / "models") == ["iad-full.json", "iad-smooth.json", "iad.json"]
    saved = results_of(output, "ablation")[0]
    assert saved["models"]["iad-full"]["images"] == 1
    for name in ablation.MODELS:
        model = load_model(output / "models" / f"{name}.json")
        assert tuple(model.provenance["noise_levels"]) == training_levels(name)
        psnr = mean_psnr(model, crops(), (20.0,), engine="numpy")[20.0]
        assert saved["psnr"][name]["20"] == pytest.approx(psnr, abs=1e-4)
    assert saved["parameters"]["iad-full"] == {
        "laws": 36,
        "step_sizes": 6,
        "trained": 36,
        "paper": 96,
    }
    assert list(results_of(output, "figure1")[0]["free"]) == ["20", "50"]

    result = reproduce(data, output, *words[:-1], 2)
    assert result.exit_code == 4
    assert "belongs to another training" in result.stderr
    assert "choose another folder with --output" in result.stderr


# ---- refusals ----

REFUSED: list[tuple[tuple[object, ...], int, str]] = [
    (("table2",), 2, "unknown target 'table2': expected one of ablation, figure1, figure2, table1"),
    (("table1", "--count", 0), 2, "--count"),
    (("table1", "--jobs", 0), 2, "--jobs"),
    (("table1", "--train-count", 3), 2, "--train-count applies to training only; give --train"),
    (("table1", "--batch", 3), 2, "--batch applies to training only"),
    (("table1", "--device", "cpu"), 2, "--device applies to training only"),
    (("table1", "--train", "--device", "tpu"), 2, "--device must be one of 'auto', 'cpu', 'cuda'"),
    (("figure1", "--output", __file__), 4, "is not a folder; choose another one with --output"),
    (("figure1", "--output", f"{__file__}/below"), 4, "below: cannot be written"),
]


@pytest.mark.parametrize(("words", "code", "message"), REFUSED)
def test_refusals(
    data: Path, tmp_path: Path, words: tuple[object, ...], code: int, message: str
) -> None:
    before = names(tmp_path)
    result = run("reproduce", "--output", tmp_path / "out", "--data", data, *words)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert names(tmp_path) == before


@pytest.mark.parametrize("missing", ["matplotlib", "torch"])
def test_missing_packages(
    data: Path, tmp_path: Path, without_package: Callable[[str], None], missing: str
) -> None:
    without_package(missing)
    extra = "plot" if missing == "matplotlib" else "train"
    result = reproduce(data, tmp_path / "out", "figure1", "--train")
    assert result.exit_code == 2
    assert f"[{extra}]'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> Path:
        raise ConnectionError("BSDS500 could not be downloaded; name its folder by an option")

    monkeypatch.setattr("integrodiff.learning.download.download_bsds500", offline)
    monkeypatch.delenv("INTEGRODIFF_DATA", raising=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    damaged = tmp_path / "damaged" / "set12" / "cameraman.png"
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"hello")
    for target, folder, message in (
        ("table1", None, "name its folder by --data"),
        ("table1", empty, f"no BSDS500 images in {empty}"),
        ("figure2", None, "name the folder that holds it by --data"),
        ("all", empty, f"figure2 needs {empty}/set12/cameraman.png, which is not there"),
        ("figure2", damaged.parents[1], "cameraman.png cannot be read as an image"),
    ):
        result = reproduce(folder, tmp_path / "out", target)
        assert result.exit_code == 3
        assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_full_disk_leaves_old_results(data: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "figure1.json").write_text("old")
    with full_disk():
        result = reproduce(data, output, "figure1")
    assert result.exit_code == 4
    assert f"{output}: cannot be written: File too large" in result.stderr
    assert names(output) == ["figure1.json"]
    assert (output / "figure1.json").read_text() == "old"


def test_lost_process(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> list[float]:
        raise MemoryError

    monkeypatch.setattr(evaluation, "_batch_psnr", lost)
    result = reproduce(data, tmp_path / "out", "table1")
    assert result.exit_code == 1
    assert "not enough memory; reduce the number of processes with --jobs" in result.stderr
    assert not (tmp_path / "out").exists()


def test_help_is_complete_and_quick() -> None:
    code = (
        "import sys; sys.argv[1:] = ['reproduce', '--help']\nfrom integrodiff.cli import main\n"
        "try: main()\nexcept SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in (*TARGETS, "all"))
    for heavy in ("numpy", "scipy", "matplotlib", "PIL", "torch"):
        assert f"'{heavy}'" not in done.stderr
