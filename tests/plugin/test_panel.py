"""The panel of the plugin, without a screen; skipped where napari or Qt are absent."""

from __future__ import annotations

import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
MISSING = [name for name in ("napari", "pytestqt") if importlib.util.find_spec(name) is None]
if not any(importlib.util.find_spec(name) for name in ("PySide6", "PyQt6")):
    MISSING.append("PySide6 or PyQt6")
if MISSING:
    reason = f"not installed: {', '.join(MISSING)}; pip install '.[test-napari]'"
    pytest.skip(reason, allow_module_level=True)

import integrodiff  # noqa: E402 - what is missing is said first

pytestmark = [
    pytest.mark.slow,
    # Of napari and its dependencies.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def napari(tmp_path_factory: pytest.TempPathFactory) -> Any:
    os.environ["NAPARI_CONFIG"] = str(tmp_path_factory.mktemp("napari") / "settings.yaml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of napari and its dependencies, while they are imported
        import napari.components
        import napari.qt.threading
        from npe2 import PluginManager

    # As napari's window does when it opens; a ViewerModel alone knows no plugin's samples.
    PluginManager.instance().discover()
    return napari


@pytest.fixture
def viewer(qapp: Any, napari: Any) -> Any:
    """A viewer without its canvas, which would need OpenGL; test_window.py has a whole one."""
    return napari.components.ViewerModel()


@pytest.fixture
def panel_for(viewer: Any, qtbot: Any) -> Callable[[], Any]:
    """Return a function that opens the panel."""

    def opened() -> Any:
        from integrodiff.napari.panel import DenoisePanel

        panel = DenoisePanel(viewer)
        qtbot.addWidget(panel.native)
        return panel

    return opened


def disc(*planes: int, sigma: float = 12.0) -> NDArray[np.float32]:
    y, x = np.mgrid[:72, :80]
    clean = 60.0 + 90 * (np.hypot(y - 36, x - 40) < 20)
    noise = np.random.default_rng(0).normal(0, sigma, (*planes, 72, 80))
    return np.asarray(clean + noise, np.float32)


def finish(qtbot: Any, panel: Any) -> None:
    """Wait until the panel is ready again."""
    qtbot.waitUntil(lambda: panel.start.enabled and not panel.is_running, timeout=60_000)


def run(qtbot: Any, panel: Any, *, preview: bool = False) -> None:
    (panel.preview if preview else panel.start).native.click()
    finish(qtbot, panel)


def execute(code: str, viewer: Any) -> dict[str, Any]:
    """Run copied code as napari's console does."""
    names: dict[str, Any] = {"viewer": viewer}
    exec(code, names)  # noqa: S102 - our own code
    return names


def test_manifest_is_valid(napari: Any) -> None:
    from npe2 import PluginManager, PluginManifest

    path = Path(integrodiff.__file__).parent / "napari" / "napari.yaml"
    manifest = PluginManifest.from_file(path)
    manifest.validate_imports()
    assert "integrodiff" in PluginManager.instance()
    commands = {command.id for command in manifest.contributions.commands or ()}
    used = {widget.command for widget in manifest.contributions.widgets or ()}
    used |= {sample.command for sample in manifest.contributions.sample_data or ()}
    assert used == commands


def test_samples_open(viewer: Any) -> None:
    for key in ("photograph", "colour", "cells", "photons"):
        (layer,) = viewer.open_sample("integrodiff", key)
        assert layer.name


def test_result_equals_denoise_and_keeps_what_the_layer_says(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    image = disc()
    layer = viewer.add_image(
        image,
        name="disc",
        scale=(0.5, 0.5),
        translate=(3, 4),
        units=("um", "um"),
        rotate=30,
        contrast_limits=(20, 190),
        colormap="magma",
    )
    panel = panel_for()
    panel.sigma.value = "12"
    assert "0.5 : 0.5 micrometer (y : x)" in panel.geometry.value
    code = panel.copy_code()
    run(qtbot, panel)
    assert panel.message.startswith("done; sigma 12; engine "), panel.message
    result = viewer.layers["disc denoised"]
    np.testing.assert_array_equal(result.data, integrodiff.denoise(image, 12))
    for name in ("scale", "translate", "rotate", "contrast_limits"):
        np.testing.assert_allclose(getattr(result, name), getattr(layer, name), atol=1e-12)
    assert result.units == layer.units
    assert result.colormap.name == "magma"
    removed = viewer.layers["disc denoised, removed noise"]
    np.testing.assert_array_equal(removed.data, image - result.data)
    assert removed.units == layer.units
    names = execute(code, viewer)
    np.testing.assert_array_equal(names["result"], result.data)
    np.testing.assert_array_equal(
        execute(result.metadata["integrodiff"]["code"], viewer)["result"], result.data
    )


def test_estimated_level_is_shown_and_code_repeats_it(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    viewer.add_image(disc(), name="disc")
    panel = panel_for()
    run(qtbot, panel)
    assert "(estimated)" in panel.message
    result = viewer.layers["disc denoised"].data
    np.testing.assert_array_equal(execute(panel.copy_code(), viewer)["result"], result)


def test_preview_of_the_visible_part(viewer: Any, panel_for: Callable[[], Any], qtbot: Any) -> None:
    layer = viewer.add_image(disc(), name="disc", scale=(2, 2), translate=(10, 0), rotate=90)
    panel = panel_for()
    panel.sigma.value = "12"
    layer.corner_pixels = np.array([[10, 20], [49, 69]])  # as napari sets it when it draws
    run(qtbot, panel, preview=True)
    preview = viewer.layers["preview of disc"]
    np.testing.assert_array_equal(preview.data, integrodiff.denoise(layer.data[10:50, 20:70], 12))
    np.testing.assert_allclose(preview.data_to_world((0, 0)), layer.data_to_world((10, 20)))
    code = preview.metadata["integrodiff"]["code"]
    np.testing.assert_array_equal(execute(code, viewer)["result"], preview.data)
    run(qtbot, panel, preview=True)
    names = [layer.name for layer in viewer.layers]
    assert names == ["disc", "preview of disc", "preview of disc, removed noise"]
    run(qtbot, panel)
    names = [layer.name for layer in viewer.layers]
    assert names == ["disc", "disc denoised", "disc denoised, removed noise"]


def test_volume_takes_axes_and_spacing_of_the_layer(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    volume = disc(6)
    viewer.add_image(
        volume,
        name="volume",
        scale=(1300, 1, 1),
        units=("nm", "um", "um"),
        axis_labels=("z", "y", "x"),
    )
    panel = panel_for()
    assert panel.axes.value == "ZYX"
    assert "1.3 : 1 : 1 micrometer (z : y : x)" in panel.geometry.value
    panel.sigma.value = "12"
    run(qtbot, panel)
    result = viewer.layers["volume denoised"]
    expected = integrodiff.denoise(volume, 12, axes="ZYX", spacing=(1.3, 1, 1))
    np.testing.assert_array_equal(result.data, expected)
    assert "spacing 1.3 : 1 : 1" in panel.message
    code = panel.copy_code()
    panel.axes.value = "TYX"
    run(qtbot, panel)
    np.testing.assert_array_equal(execute(code, viewer)["result"], expected)
    expected = integrodiff.denoise(volume, 12, axes="TYX")
    np.testing.assert_array_equal(viewer.layers["volume denoised [1]"].data, expected)


def test_preview_of_a_volume_has_the_slices_around_the_present_one(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    layer = viewer.add_image(disc(40), name="volume", axis_labels=("z", "y", "x"))
    viewer.dims.set_point(0, 30)
    panel = panel_for()
    panel.sigma.value = "12"
    run(qtbot, panel, preview=True)
    preview = viewer.layers["preview of volume"]
    assert preview.data.shape[0] == 17
    np.testing.assert_allclose(preview.translate[0], 22)
    expected = integrodiff.denoise(layer.data[22:39], 12, axes="ZYX")
    np.testing.assert_array_equal(preview.data, expected)


def test_unknown_axes_are_asked_for(viewer: Any, panel_for: Callable[[], Any], qtbot: Any) -> None:
    viewer.add_image(disc(3), name="stack")
    panel = panel_for()
    assert panel.axes.value == "choose"
    run(qtbot, panel)
    assert panel.message.startswith(
        "error: choose the axes above: Z for the slices of a volume, T "
    )
    assert panel.copy_code() == ""
    assert len(viewer.layers) == 1
    panel.axes.value = "CYX"
    panel.sigma.value = "12, 11, 10"
    run(qtbot, panel)
    expected = integrodiff.denoise(disc(3), [12, 11, 10], axes="CYX")
    np.testing.assert_array_equal(viewer.layers["stack denoised"].data, expected)
    viewer.dims.set_point(0, 2)
    run(qtbot, panel, preview=True)
    np.testing.assert_array_equal(viewer.layers["preview of stack"].data, expected[2:])


def test_rgb_and_its_transparency(viewer: Any, panel_for: Callable[[], Any], qtbot: Any) -> None:
    image = np.moveaxis(disc(4), 0, -1).clip(0, 255).astype(np.uint8)
    viewer.add_image(image, name="colours", rgb=True)
    panel = panel_for()
    assert panel.axes.value == "YXS"
    run(qtbot, panel)
    result = viewer.layers["colours denoised"]
    assert result.rgb
    np.testing.assert_array_equal(result.data, integrodiff.denoise(image, axes="YXS"))
    np.testing.assert_array_equal(result.data[..., 3], image[..., 3])
    removed = viewer.layers["colours denoised, removed noise, mean of colours"]
    assert removed.data.shape == (72, 80)


def test_multiscale_is_denoised_in_full_resolution(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    image = disc()
    layer = viewer.add_image([image, image[::2, ::2]], name="pyramid", multiscale=True)
    panel = panel_for()
    panel.sigma.value = "12"
    run(qtbot, panel)
    expected = integrodiff.denoise(image, 12)
    np.testing.assert_array_equal(viewer.layers["pyramid denoised"].data, expected)
    np.testing.assert_array_equal(execute(panel.copy_code(), viewer)["result"], expected)
    layer._data_level = 1
    layer.corner_pixels = np.array([[5, 10], [24, 34]])
    run(qtbot, panel, preview=True)
    part = image[10:49, 20:69]
    np.testing.assert_array_equal(
        viewer.layers["preview of pyramid"].data, integrodiff.denoise(part, 12)
    )


def test_dask_is_refused_as_a_whole_and_computed_in_part(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    dask = pytest.importorskip("dask.array")
    image = dask.from_array(disc(), chunks=36)
    layer = viewer.add_image(image, name="lazy")
    panel = panel_for()
    panel.sigma.value = "12"
    with pytest.raises(TypeError, match="block by block") as raised:
        integrodiff.denoise(image, 12)
    run(qtbot, panel)
    assert panel.message == f"error: {raised.value}"
    layer.corner_pixels = np.array([[0, 0], [39, 49]])
    run(qtbot, panel, preview=True)
    preview = viewer.layers["preview of lazy"]
    np.testing.assert_array_equal(preview.data, integrodiff.denoise(disc()[:40, :50], 12))
    code = preview.metadata["integrodiff"]["code"]
    np.testing.assert_array_equal(execute(code, viewer)["result"], preview.data)


def test_masks_and_nan(viewer: Any, panel_for: Callable[[], Any], qtbot: Any) -> None:
    image = disc()
    image[:8, :8] = np.nan
    valid = np.ones(image.shape, np.uint8)
    valid[60:] = 0
    viewer.add_image(image, name="holes")
    labels = viewer.add_labels(valid, name="valid")
    panel = panel_for()
    panel.layer.value = viewer.layers["holes"]
    panel.mask.value = labels
    panel.sigma.value = "12"
    code = panel.copy_code()
    run(qtbot, panel)
    assert "invalid: mask, NaN or infinite" in panel.message
    result = viewer.layers["holes denoised"].data
    np.testing.assert_array_equal(result, integrodiff.denoise(image, 12, mask=valid != 0))
    np.testing.assert_array_equal(result[60:], image[60:])
    np.testing.assert_array_equal(execute(code, viewer)["result"], result)
    viewer.layers["valid"].data = np.ones((5, 5), np.uint8)
    run(qtbot, panel)
    assert "cannot be the mask" in panel.message


def test_warnings_are_shown_every_time(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    viewer.add_image(disc(4), name="volume", scale=(3, 1, 1), axis_labels=("z", "y", "x"))
    panel = panel_for()
    panel.sigma.value = "12"
    for _ in range(2):
        run(qtbot, panel)
        assert "warning: the spacing of this volume is 3 : 1 : 1 (z : y : x)" in panel.message


@pytest.fixture
def notified(napari: Any) -> Iterator[list[Any]]:
    """What is shown as a notification."""
    from napari.utils.notifications import notification_manager

    found: list[Any] = []
    notification_manager.notification_ready.connect(found.append)
    yield found
    notification_manager.notification_ready.disconnect(found.append)


@pytest.mark.parametrize("level", ["-3", "nan", "twelve", "1, 2"])
def test_bad_levels_are_shown_as_errors(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any, notified: list[Any], level: str
) -> None:
    viewer.add_image(disc(), name="disc")
    panel = panel_for()
    panel.sigma.value = level
    run(qtbot, panel)
    assert panel.message.startswith("error: ")
    assert "noise level must" in panel.message  # as the panel names it
    assert "sigma" not in panel.message
    assert len(viewer.layers) == 1
    # What a person can mend is said without a traceback.
    assert [f"error: {shown.message}" for shown in notified] == [panel.message]
    assert not hasattr(notified[0], "exception")


def test_faults_are_shown_with_their_traceback(
    viewer: Any,
    panel_for: Callable[[], Any],
    qtbot: Any,
    notified: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault")

    viewer.add_image(disc(), name="disc")
    panel = panel_for()
    monkeypatch.setattr("integrodiff.napari.job._Denoiser", fails)
    run(qtbot, panel)
    assert panel.message == "error: a fault"
    (shown,) = notified
    assert isinstance(shown.exception, RuntimeError)


def test_levels_of_channels_are_told_apart(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    viewer.add_image(disc(2), name="two", axis_labels=("c", "y", "x"))
    panel = panel_for()
    panel.sigma.value = "12, 20"
    run(qtbot, panel)
    assert panel.message.startswith("done; sigma 12 in channel 0; sigma 20 in channel 1; engine ")


def test_units_that_cannot_be_compared(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    viewer.add_image(disc(3), name="volume", units=("s", "um", "um"), axis_labels=("z", "y", "x"))
    panel = panel_for()
    run(qtbot, panel)
    assert "cannot be compared" in panel.message
    panel.use_scale.value = False
    run(qtbot, panel)
    assert panel.message.startswith("done")


def test_cancel_frees_the_panel_at_once_and_adds_nothing(
    viewer: Any, panel_for: Callable[[], Any], qtbot: Any
) -> None:
    volume = np.random.default_rng(0).normal(100, 20, (32, 160, 160)).astype(np.float32)
    viewer.add_image(volume, name="large", axis_labels=("z", "y", "x"))
    panel = panel_for()
    panel.sigma.value = "20"
    panel.start.native.click()
    assert not panel.start.enabled
    qtbot.waitUntil(lambda: panel.progress.value >= 1, timeout=60_000)
    worker = panel._run.worker
    with qtbot.waitSignal(worker.finished, timeout=60_000):
        panel.cancel.native.click()
        assert panel.start.enabled  # at once
        assert panel.message == "cancelled"
    threads = [thread for thread in threading.enumerate() if thread.name == "integrodiff"]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    qtbot.wait(50)
    assert len(viewer.layers) == 1


def test_own_model(viewer: Any, panel_for: Callable[[], Any], qtbot: Any, tmp_path: Path) -> None:
    integrodiff.save_model(integrodiff.load_model("iad"), tmp_path / "own.json")
    viewer.add_image(disc(), name="disc")
    panel = panel_for()
    panel.model_file.value = tmp_path / "own.json"
    panel.sigma.value = "12"
    run(qtbot, panel)
    expected = integrodiff.denoise(disc(), 12, model="iad")
    np.testing.assert_array_equal(viewer.layers["disc denoised"].data, expected)
    (tmp_path / "own.json").write_text("{}", encoding="utf-8")
    run(qtbot, panel)
    assert "own.json" in panel.message


def test_layers_that_are_renamed_stay_chosen(viewer: Any, panel_for: Callable[[], Any]) -> None:
    viewer.add_image(disc(), name="other")
    layer = viewer.add_image(disc(3), name="chosen")
    mask = viewer.add_labels(np.ones((72, 80), int), name="valid")
    panel = panel_for()
    panel.layer.value, panel.axes.value, panel.mask.value = layer, "ZYX", mask
    layer.name, mask.name = "chosen, renamed", "valid, renamed"
    assert (panel.layer.value, panel.axes.value, panel.mask.value) == (layer, "ZYX", mask)
    viewer.layers.remove(mask)
    assert (panel.layer.value, panel.axes.value, panel.mask.value) == (layer, "ZYX", None)


def test_layers_come_and_go(viewer: Any, panel_for: Callable[[], Any], qtbot: Any) -> None:
    panel = panel_for()
    run(qtbot, panel)
    assert panel.message == "error: there is no image layer"
    assert panel.copy_code() == ""
    viewer.add_image(disc(), name="one")
    viewer.add_image(disc(2), name="two", axis_labels=("t", "y", "x"))
    assert panel.layer.value.name == "one"
    panel.layer.value = viewer.layers["two"]
    assert panel.axes.value == "TYX"
    viewer.layers.remove("two")
    assert panel.layer.value.name == "one"
    assert panel.axes.value == "YX"


def test_the_panel_follows_its_layer(viewer: Any, panel_for: Callable[[], Any]) -> None:
    layer = viewer.add_image(np.zeros((4, 20, 24)), name="stack")
    panel = panel_for()
    assert panel.axes.value == "choose"
    layer.axis_labels = ("z", "y", "x")
    assert panel.axes.value == "ZYX"
    layer.scale = (3, 1, 1)
    assert "spacing 3 : 1 : 1" in panel.geometry.value
    layer.data = np.zeros((5, 20, 24))
    assert panel.axes.value == "ZYX"
    other = viewer.add_image(np.zeros((20, 24)), name="other")
    panel.layer.value = other
    layer.scale = (5, 1, 1)
    assert "5 : 1 : 1" not in panel.geometry.value
