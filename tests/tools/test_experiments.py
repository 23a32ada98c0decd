"""The experiments that compare methods: peers, their table and plot, and Lipschitz estimates."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import compact_ingredients
import denoisers
import frontier
import peers
import polish_deep
import robustness
from denoisers import PEERS
from integrodiff import PeronaMalik, load_model
from integrodiff.learning.images import CleanImages, noise
from integrodiff.learning.parameters import Parameterisation
from integrodiff.models import DeepDiffusion
from integrodiff.viz.metrics import psnr
from peers import Method, Results

SIGMA = 25.0
COMMITTED = Path(peers.__file__).resolve().parents[1] / peers.TUNED
WEAK = ("bilateral", "dip-gauss", "dip-coherence")  # leave the finest noise, or outliers
TUNED = {
    15.0: {"strength": 0.6, "iterations": 2.0},
    25.0: {"strength": 0.8, "iterations": 4.0},
    50.0: {"strength": 1.0, "iterations": 8.0},
}


@pytest.fixture
def clean() -> NDArray[np.float32]:
    """A disc on a ramp."""
    y, x = np.mgrid[:32, :32]
    return np.array(60 + 2 * x + 90 * ((y - 15) ** 2 + (x - 12) ** 2 < 80), np.float32)


@pytest.fixture
def half() -> Method:
    """A method that divides by two."""
    return Method("half", "Half", lambda noisy, _: noisy / 2, 1, "none", "1", "half")


# ---- peers ----


@pytest.mark.parametrize("name", PEERS)
def test_peers_remove_noise(name: str, clean: NDArray[np.float32]) -> None:
    peer = PEERS[name]
    reason = peer.unavailable()
    if reason is not None:
        pytest.skip(reason)
    noisy = clean + noise(SIGMA, 0, clean.shape)
    before = noisy.copy()
    settings = peers.settings_at(peers.read_tuned(COMMITTED)[name], SIGMA)
    result = peer.run(noisy, SIGMA, **settings)
    assert result.shape == clean.shape
    assert np.issubdtype(result.dtype, np.floating)
    np.testing.assert_array_equal(noisy, before)
    bound = 0.9 if name in WEAK else 0.5
    assert np.mean((result - clean) ** 2) < bound * np.mean((noisy - clean) ** 2)


def test_grids_increase() -> None:
    for peer in PEERS.values():
        for values in peer.grid.values():
            assert list(values) == sorted(set(values))


def test_settings_between_levels() -> None:
    assert peers.settings_at(TUNED, 25.0) == pytest.approx({"strength": 0.8, "iterations": 4})
    assert peers.settings_at(TUNED, 10.0) == TUNED[15.0]
    assert peers.settings_at(TUNED, 60.0) == TUNED[50.0]
    between = peers.settings_at(TUNED, np.sqrt(25 * 50))
    assert between == pytest.approx({"strength": 0.9, "iterations": 6})


def test_missing_package_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(package: str) -> str:
        if package == "bm3d":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(denoisers, "version", version)
    assert peers.runnable_peers(["tv", "bm3d"]) == ["tv"]
    assert capsys.readouterr().out == (
        "bm3d is skipped: bm3d is not installed; get it with: pip install '.[bench]'\n"
    )


def test_tuning_is_stored_read_and_not_repeated(
    tmp_path: Path,
    clean: NDArray[np.float32],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    images = CleanImages(clean[None], ("disc",), "a disc")
    path = tmp_path / "new" / "peers.json"
    results = Results(path, "factors", {"images": 1})
    peers.tune("tv", images, results.row("tv", {"identity": "1"}), results.save)
    found = peers.read_tuned(path)["tv"]
    assert set(found) == set(peers.TUNING_LEVELS)
    for level, settings in found.items():
        noisy = clean + noise(level, 0, clean.shape)
        reached = {
            strength: psnr(PEERS["tv"].run(noisy, level, strength=strength), clean)
            for strength in PEERS["tv"].grid["strength"]
        }
        assert settings == {"strength": max(reached, key=reached.__getitem__)}
        row = json.loads(path.read_text())["rows"]["tv"]
        assert row["psnr"][f"{level:g}"] == pytest.approx(max(reached.values()), abs=1e-4)
    assert "tv" in peers.settings_table(results.rows)

    def refuse(*_: object) -> float:
        raise AssertionError("tuned again")

    monkeypatch.setattr(peers, "_mean_psnr", refuse)
    again = Results(path, "factors", {"images": 1})
    peers.tune("tv", images, again.row("tv", {"identity": "1"}), again.save)

    capsys.readouterr()
    (method,) = peers.tuned_peers(["tv", "nlm"], path)
    assert (method.name, method.parameters) == ("tv", 3)
    assert "nlm is skipped" in capsys.readouterr().out
    noisy = clean + noise(SIGMA, 0, clean.shape)
    expected = PEERS["tv"].run(noisy, SIGMA, **found[SIGMA])
    np.testing.assert_array_equal(method.denoise(noisy, SIGMA), expected)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("pm", 12),
        ("eed", 18),
        ("iid", 4),
        ("iad", 4),
        ("iad-full", 96),
        ("iad-power", 8),
        ("iad-plus", 12),
        ("iad-deep", 388),
    ],
)
def test_trained_numbers(name: str, count: int) -> None:
    assert peers.trained_numbers(load_model(name)) == count


def test_numbers_of_a_model_without_recipe() -> None:
    assert peers.trained_numbers(PeronaMalik(contrast=10, tau=0.1)) == 2


def test_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: calls.append(words))
    for name in peers._THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    peers.one_thread()
    assert calls == []
    monkeypatch.delenv("OMP_NUM_THREADS")
    peers.one_thread()
    assert calls[0][2]["OMP_NUM_THREADS"] == "1"


# ---- frontier ----


def document(tmp_path: Path, half: Method, clean: NDArray[np.float32]) -> Results:
    """A file with quoted rows and one that is measured on two images."""
    settings = {"bsd68": {"images": 2, "sha256": "0"}}
    results = Results(tmp_path / "frontier.json", "all", settings)
    frontier.add_quoted(results.rows)
    head = {
        "title": half.title,
        "quoted": False,
        "parameters": half.parameters,
        "engine": half.engine,
        "identity": half.identity,
        "seconds_per_megapixel": None,
    }
    part = frontier.TestSet("bsd68", [clean, clean + 1], frontier.BSD68_LEVELS)
    frontier.measure(half, [part], results.row(half.name, head), results.save)
    return results


def test_measured_row(tmp_path: Path, half: Method, clean: NDArray[np.float32]) -> None:
    results = document(tmp_path, half, clean)
    row = json.loads(results.path.read_text())["rows"]["half"]
    values = [
        psnr((image + noise(15, k, image.shape)) / 2, image)
        for k, image in enumerate((clean, clean + 1))
    ]
    assert row["psnr"]["bsd68"]["15"] == pytest.approx(np.mean(values), abs=1e-4)
    assert 0 < row["ssim"]["bsd68"]["50"] < row["ssim"]["bsd68"]["15"] < 1
    assert row["seconds_per_megapixel"] is None
    frontier.measure_times([half], [clean, clean + 1, clean], results.rows)
    assert results.rows["half"]["seconds_per_megapixel"] > 0
    assert results.rows["half"]["timed"]["images"] == 2

    def refuse(*_: object) -> NDArray[np.float32]:
        raise AssertionError("measured again")

    known = Method("half", "Half", refuse, 1, "none", "1", "half")
    document(tmp_path, known, clean)
    other = Method("half", "Half", refuse, 1, "none", "1", "another half")
    with pytest.raises(AssertionError, match="measured again"):
        document(tmp_path, other, clean)
    del results.rows["half"]["ssim"]["bsd68"]["25"]
    results.save()
    with pytest.raises(AssertionError, match="measured again"):
        document(tmp_path, known, clean)


def test_quoted_rows_are_never_overwritten(
    tmp_path: Path, half: Method, clean: NDArray[np.float32]
) -> None:
    results = document(tmp_path, half, clean)
    for name in frontier.QUOTED:
        assert name not in PEERS
        for again in (False, True):
            with pytest.raises(ValueError, match="quoted from a publication"):
                results.row(name, {"identity": "x"}, again=again)
    saved = json.loads(results.path.read_text())["rows"]
    assert {name: row for name, row in saved.items() if row["quoted"]} == frontier.QUOTED
    assert all(row["source"] for row in frontier.QUOTED.values())
    assert frontier.QUOTED["quoted: bm3d"]["psnr"]["bsd68"] == {
        "15": 31.07,
        "25": 28.57,
        "50": 25.62,
    }


def test_other_settings_need_another_file(
    tmp_path: Path, half: Method, clean: NDArray[np.float32]
) -> None:
    path = document(tmp_path, half, clean).path
    with pytest.raises(SystemExit, match="name another file"):
        Results(path, "all", {"bsd68": {"images": 68, "sha256": "1"}})


def test_table_and_plot(
    tmp_path: Path,
    half: Method,
    clean: NDArray[np.float32],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("matplotlib")
    source, target = document(tmp_path, half, clean).path, tmp_path / "frontier.png"
    words = ["frontier.py", "--plot", str(source), str(target)]
    monkeypatch.setattr("sys.argv", words)
    capsys.readouterr()
    frontier.main()
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].startswith("| method")
    assert lines[2].startswith("| Half ")
    similar = json.loads(source.read_text())["rows"]["half"]["ssim"]["bsd68"]["25"]
    assert f" {similar:.3f} |" in lines[2]
    assert [line.split(" |")[0] for line in lines[3:7]] == [
        f"| {name}".ljust(len(lines[3].split(" |")[0]))
        for name in ("BM3D (quoted)", "WNNM (quoted)", "TNRD (quoted)", "DnCNN (quoted)")
    ]
    assert "2 of the 68 images of BSD68" in printed
    assert "Table II" in printed
    assert target.read_bytes().startswith(b"\x89PNG")


# ---- robustness ----


def test_spectral_norm_of_a_linear_map() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(36, 36)))[0] for _ in range(2))
    values = np.linspace(0.1, 3.0, 36)
    matrix = torch.tensor(left @ np.diag(values) @ right)
    point = torch.zeros(6, 6, dtype=torch.float64)
    found = robustness.spectral_norm(lambda u: (matrix @ u.reshape(-1)).reshape(6, 6), point)
    assert found == pytest.approx(3.0, rel=1e-3)


def test_spectral_norm_of_a_tiny_step(clean: NDArray[np.float32]) -> None:
    torch = pytest.importorskip("torch")
    model = PeronaMalik(contrast=10, tau=1e-6, steps=2)
    point = torch.tensor(clean[:12, :12], dtype=torch.float64)
    assert robustness.spectral_norm(lambda u: model(u, SIGMA), point) == pytest.approx(1, abs=1e-3)


def test_secant_bound(clean: NDArray[np.float32]) -> None:
    weights = np.ones_like(clean)
    weights[3, 4] = 2.5
    # A symmetric map: the iteration finds its largest eigenvalue, and never more than that.
    found = robustness.secant_bound(lambda u: weights * u, clean, iterations=20)
    assert found == pytest.approx(2.5, rel=1e-3)
    assert found <= 2.5 * (1 + 1e-5)
    assert robustness.secant_bound(np.zeros_like, clean) == 0


def test_residual_bands() -> None:
    before = np.random.default_rng(0).normal(size=(32, 32))
    np.testing.assert_allclose(robustness.residual_bands(before / 2, before), [0.25] * 4)
    # The frequency 24/32 along one axis belongs to the last band.
    wave = np.cos(np.pi * 24 * (np.arange(32) + 0.5) / 32) + np.zeros((32, 1))
    bands = robustness.residual_bands(wave, before)
    assert bands[3] > 0
    np.testing.assert_allclose(bands[:3], 0, atol=1e-12)


def test_false_edges() -> None:
    ramp = np.zeros((32, 32)) + 4.0 * np.arange(32)
    threshold = robustness.edge_threshold([ramp])
    assert threshold == pytest.approx(12)
    assert robustness.false_edges(ramp, threshold) == 0
    step = np.zeros((32, 32))
    step[:, 16:] = 20
    assert robustness.false_edges(step, threshold) == pytest.approx(1 / 31)


def test_all_questions(tmp_path: Path, half: Method, clean: NDArray[np.float32]) -> None:
    images = CleanImages(clean[None], ("disc",), "a disc")
    settings: dict[str, Any] = {"images": 1, "levels": [SIGMA], "size": 16, "edge_threshold": 10.0}
    results = Results(tmp_path / "robustness.json", "all", settings)
    head = {"title": half.title, "identity": half.identity}
    robustness.measure(half, images, settings, results.row("half", head), results.save)
    found = json.loads(results.path.read_text())["rows"]["half"]["levels"]["25"]
    assert found["lipschitz"]["derivative"] is None
    assert found["lipschitz"]["secant"] == pytest.approx(0.5, rel=1e-4)
    assert found["lipschitz"]["small_secant"] == pytest.approx(0.5, rel=1e-2)
    assert set(found["told"]) == {"0.5", "1", "2"}
    assert len(found["pure_noise"]["bands"]) == 4
    assert set(found["jpeg"]) == {"noisy", "told"}
    assert set(found["textures"]) == {*robustness.TEXTURES, "ssim"}
    assert "| Half " in robustness.table(results.document, SIGMA)


def test_network(clean: NDArray[np.float32]) -> None:
    pytest.importorskip("torch")
    images = CleanImages(clean[None], ("disc",), "a disc")
    net = robustness.train_network(images, 0.2, batch=2, size=16)
    method = robustness.network_method(net, 0.2)
    assert method.parameters == sum(
        9 * before * after + after
        for before, after in [(2, 32), (32, 32), (32, 32), (32, 32), (32, 1)]
    )
    result = method.denoise(clean, SIGMA)
    assert result.shape == clean.shape
    assert robustness.lipschitz(method, [clean[:12, :12]], SIGMA)["derivative"] > 0


def test_network_is_trained_only_if_needed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = {"models": [], "peers": [], "engine": "numpy", "tuned": tmp_path / "none.json"}
    arguments = argparse.Namespace(**words, again=False, levels=[SIGMA], cnn_seconds=0.0)
    assert robustness.methods(arguments, {}) == []
    arguments.cnn_seconds = 5.0
    known = {
        "identity": robustness.network_identity(5.0),
        "levels": {"25": {question: {} for question in robustness.QUESTIONS}},
    }
    assert robustness.methods(arguments, known) == []


def test_model_of_the_accuracy_trials(capsys: pytest.CaptureFixture[str]) -> None:
    """It agrees with the stages where they have it, and its operators stay below their bounds."""
    pytest.importorskip("torch")
    import accuracy_trials

    accuracy_trials.check_command(argparse.Namespace())
    lines = capsys.readouterr().out.splitlines()
    differences = [float(line.split()[-1]) for line in lines if "difference" in line]
    differences += [float(line.split()[-1]) for line in lines if line.startswith("second order")]
    assert len(differences) == 4
    assert max(differences) < 1e-3
    operators = [line.replace(",", "").split() for line in lines if line.startswith("order")]
    assert len(operators) == 2
    for words in operators:
        asymmetry, lowest, highest, bound = (float(words[i]) for i in (3, 5, 7, 9))
        assert asymmetry < 1e-12
        assert lowest > -1e-12
        assert highest < bound


@pytest.mark.parametrize("laws", ["pairs", "steps"])
def test_training_and_package_have_the_same_model(
    laws: str, clean: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run in which only some channels act, and the model that is exported from it."""
    torch = pytest.importorskip("torch")
    import accuracy_trials as trials
    import train_models
    import train_pairs
    from integrodiff import stages

    for name in ("INTEGRATION_LIMITS", "SMALLEST_CONTRAST", "CONTRAST_FLOOR", "LEVEL_WEIGHTS"):
        monkeypatch.setattr(trials, name, getattr(trials, name))
    monkeypatch.setattr(trials, "HOLD_AT_LIMITS", False)
    monkeypatch.setattr(trials, "RANGES", dict(trials.RANGES))
    train_pairs.use_settings_of_deep()
    acting = np.array([[1, 0, 1, 0], [1, 1, 0, 1], [0, 1, 1, 1]])
    run = train_pairs.Pairs(acting, (2, 2), laws)
    values = run.found()
    whole = train_pairs.Pairs(np.ones_like(acting), (2, 2), laws)
    assert whole.count - run.count == (5 if laws == "pairs" else 3) * 4
    more, also = train_pairs.with_more_steps(
        {name: np.array(value) for name, value in values.items()}, acting, [2]
    )
    assert also.tolist() == acting[[0, 1, 1, 2]].tolist()
    longer = train_pairs.Pairs(also, (2, 2), laws)
    longer.set(more)
    image = clean + noise(SIGMA, 0, clean.shape)
    results = []
    for model in (run, longer):
        document = {"parameters": model.found(), "channels": [2, 2]}
        document["acting"] = model.acting.tolist()
        exported = train_models.as_deep_model(document, train_models.DEEP_LIMITS)
        assert exported.largest_share == 0.999
        exported = replace(exported, largest_share=1.0)  # as in training
        assert exported.number_count() == model.count
        with torch.no_grad():
            numbers = model.numbers(trials.tensor([SIGMA]), 1, 512)
            found = trials.evolve(trials.tensor(image[None]), numbers, model.variance)[0].cpu()
        expected = stages.evolve(image[None, None].astype(np.float64), exported.evolution(SIGMA))
        np.testing.assert_allclose(found.numpy(), expected[0, 0], atol=2e-3)
        results.append(found.numpy())
    change = np.abs(results[1] - results[0]).mean()
    assert 0 < change < 0.1 * np.abs(results[0] - image).mean()


def test_numbers_at_a_limit_can_only_return() -> None:
    torch = pytest.importorskip("torch")
    import accuracy_trials as trials

    value = torch.tensor([-1.0, -1.0, 0.5, 0.5, 2.0, 2.0], requires_grad=True)
    held: Any = trials.HeldAtLimit
    limited = held.apply(value, value.detach().clamp(0, 1))
    assert limited.tolist() == [0, 0, 0.5, 0.5, 1, 1]
    slopes = torch.tensor([1.0, -1.0] * 3)
    limited.backward(slopes)
    assert value.grad.tolist() == [0, -1, 1, -1, 1, 0]


def test_second_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checks, and a training of a few iterations with its table."""
    pytest.importorskip("torch")
    import accuracy_trials as trials
    import second_pass

    for name in ("INTEGRATION_LIMITS", "SMALLEST_CONTRAST", "CONTRAST_FLOOR", "LEVEL_WEIGHTS"):
        monkeypatch.setattr(trials, name, getattr(trials, name))
    for name in ("HOLD_AT_LIMITS", "COMPILE", "evolve"):
        monkeypatch.setattr(trials, name, getattr(trials, name))
    monkeypatch.setattr(trials, "RANGES", dict(trials.RANGES))
    second_pass.main(["check"])
    assert "WRONG" not in capsys.readouterr().out
    crops, output = tmp_path / "crops.npz", tmp_path / "out.json"
    pixels = np.random.default_rng(0).integers(0, 256, (4, 24, 24)).astype(np.uint8)
    np.savez(crops, train=pixels)
    options = "--variants 2 1+1 1+1/orders --size 16 --batch 1 --iterations 3 --first 2 --eager"
    second_pass.main(["train", str(crops), str(output), *options.split()])
    document = json.loads(output.read_text())
    assert not document["failed"]
    assert [run["iterations"] for run in document["runs"]] == [3, 3, 3]
    assert [run["numbers"] - document["runs"][0]["numbers"] for run in document["runs"]] == [
        0,
        2,
        2,
    ]
    assert all(len(run["held_out"]) == len(trials.LEVELS) for run in document["runs"])
    capsys.readouterr()
    second_pass.main(["table", str(output)])
    assert "1+1/orders - 2, gain in dB" in capsys.readouterr().out


def test_volume_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its checks, and a training of a few iterations with its evaluation and its table."""
    pytest.importorskip("torch")
    import accuracy_trials as trials
    import volume_trials

    monkeypatch.setattr(trials, "COMPILE", False)
    volume_trials.main(["check"])
    printed = capsys.readouterr().out
    assert "WRONG" not in printed
    assert printed.count("RIGHT") == 25
    made, output, volume = (tmp_path / name for name in ("made.npz", "out.json", "volume.npy"))
    options = "--kinds ellipsoids thin --count 2 --held 1 --side 10"
    volume_trials.main(["volumes", str(made), *options.split()])
    options = "--size 8 --batch 1 --iterations 3 --steps 2 --first 2 --second 1 --eager"
    variants = ["compact", "1", "1+2", "1+2/3/plain"]
    command = ["train", str(made), str(output), *options.split(), "--variants", *variants]
    volume_trials.main(command)
    document = json.loads(output.read_text())
    assert not document["failed"]
    assert [run["name"] for run in document["runs"]] == ["compact/4", "1/2", "1+2/2", "1+2/3/plain"]
    assert [run["iterations"] for run in document["runs"]] == [3] * 4
    assert [run["numbers"] for run in document["runs"]] == [8, 33, 50, 70]
    assert all(set(run["held_out_kinds"]) == {"ellipsoids", "thin"} for run in document["runs"])
    assert all(abs(run["held_out_mean"] - run["start_mean"]) < 1 for run in document["runs"])
    np.save(volume, np.random.default_rng(0).uniform(0, 9, (5, 6, 7)))
    volume_trials.main(["evaluate", str(output), str(volume), "--percent", "10", "--keep"])
    evaluated = json.loads(output.read_text())["evaluated"]["volume.npy"]
    assert list(evaluated) == [run["name"] for run in document["runs"]]
    capsys.readouterr()
    volume_trials.main(["table", str(output)])
    printed = capsys.readouterr().out
    assert "1+2/2 - compact/4, gain in dB" in printed
    assert "volume.npy" in printed


# ---- polish of the deep model ----


@pytest.mark.parametrize("kind", ["channels", "steps"])
def test_exponents_are_factors_at_one_noise_level(kind: str) -> None:
    """What the polish derives from the factors of groups instead of measuring it."""
    model = load_model("iad-deep")
    assert isinstance(model, DeepDiffusion)
    numbers = polish_deep.Numbers(model)
    vector = numbers.vector(model)
    assert len(vector) == model.number_count()
    np.testing.assert_allclose(numbers.vector(numbers.model(vector)), vector, rtol=1e-12)
    groups = numbers.groups(kind)
    derived = [(group, *pair) for group in groups for pair in group.derived]
    names = {numbers.names[place].split("[")[0] for _, place, _ in derived}
    assert {"weight_exponents", "contrast_curvatures", "pull_exponents"} <= names
    assert ("step_weight_exponents" in names) == (kind == "steps")
    level, change = 12.0, 0.01
    for group, place, power in derived[::5]:
        by_exponent, by_factor = vector.copy(), vector.copy()
        by_exponent[place] += change
        by_factor[list(group.members)] += change * np.log(level / 30) ** power
        expected, found = (
            numbers.model(moved)._evolution(level).numbers() for moved in (by_exponent, by_factor)
        )
        np.testing.assert_allclose(np.array(found, float), np.array(expected, float), rtol=1e-9)


def test_a_killed_polish_goes_on(tmp_path: Path) -> None:
    sums = polish_deep.Sums(3)
    sums.add(20, np.ones(5, np.float32), np.ones((3, 5), np.float32), np.arange(5))
    sums.done, sums.seconds = 7, 1.5
    sums.save(tmp_path / "state")
    found = polish_deep.Sums.load(tmp_path / "state", 3)
    assert (found.done, found.seconds) == (7, 1.5)
    np.testing.assert_array_equal(found.curvature, sums.curvature)
    assert found.gradient[polish_deep.LEVELS.index(20)] == pytest.approx([1, 1, 1])
    assert found.similarity[polish_deep.LEVELS.index(20)] == pytest.approx([10, 10, 10])
    with pytest.raises(SystemExit, match="another model"):
        polish_deep.Sums.load(tmp_path / "state", 4)


# ---- ingredients of the compact law ----


def test_each_variant_lacks_one_ingredient() -> None:
    known = compact_ingredients.variants()
    counts = {}
    for name, variant in known.items():
        start, other = (compact_ingredients.moved(variant, number) for number in (0, 1))
        np.testing.assert_allclose(start.tau, variant.model.tau, rtol=1e-12)
        assert start.tau != other.tau
        fixed = (*compact_ingredients.NEVER, *variant.fixed)
        counts[name] = len(Parameterisation(variant.model, (SIGMA,), fixed).names)
    assert counts.pop("all") == 12
    assert counts.pop("order two") == 9
    assert set(counts.values()) == {11}


def test_table_of_ingredients() -> None:
    runs = {
        name: {str(k): {"mean": mean + k / 100, "numbers": 12} for k in range(3)}
        for name, mean in (("all", 27.6), ("drift", 27.5))
    }
    lines = compact_ingredients.table({"runs": runs}).splitlines()
    assert [cell.strip() for cell in lines[-1].split("|")[1:-1]] == [
        "fine scales first",
        "12",
        "27.510",
        "27.500 to 27.520",
        "-0.100",
    ]
