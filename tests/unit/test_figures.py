"""``integrodiff.compare`` and ``integrodiff.explain``: figures for notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import integrodiff
from integrodiff import PoissonGaussian, denoise
from integrodiff.viz.figures import _Opened

pytestmark = pytest.mark.slow

LEVEL = 20.0


@pytest.fixture(autouse=True)
def _matplotlib(request: pytest.FixtureRequest) -> None:
    if "without_package" not in request.fixturenames:
        pytest.importorskip("matplotlib")


def clean_image() -> NDArray[np.float64]:
    y, x = np.mgrid[:40, :50]
    image: NDArray[np.float64] = 60.0 + x + 90 * ((y - 20) ** 2 + (x - 30) ** 2 < 100)
    return image


def noisy_image(*planes: int, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return clean_image() + rng.normal(0, LEVEL, (*planes, 40, 50))


def images(figure: Any) -> list[Any]:
    from matplotlib.image import AxesImage

    return list(figure.findobj(AxesImage))


def texts(figure: Any) -> str:
    from matplotlib.text import Text

    return " | ".join(text.get_text() for text in figure.findobj(Text))


class TestCompare:
    def test_values_and_words(self) -> None:
        noisy, clean = noisy_image(), clean_image()
        figure = integrodiff.compare(noisy, clean, clean, window=(50, 250), unit="HU")
        before, after, removed, last = images(figure)[:4]
        np.testing.assert_array_equal(before.get_array(), noisy)
        np.testing.assert_array_equal(after.get_array(), clean)
        np.testing.assert_array_equal(removed.get_array(), noisy - clean)
        assert before.get_clim() == after.get_clim() == last.get_clim() == (50, 250)
        error = np.mean((noisy - clean) ** 2)
        peak = np.ptp(clean)
        assert f"before, {10 * np.log10(peak**2 / error):.2f} dB, SSIM" in texts(figure)
        assert f"sd {(noisy - clean).std():.3g} HU" in texts(figure)

    def test_invalid_pixels_are_hidden(self) -> None:
        noisy, mask = noisy_image(), np.ones((40, 50), np.bool_)
        mask[3:9, 4:8] = False
        noisy[20, 20] = np.nan
        figure = integrodiff.compare(noisy, clean_image(), mask=mask)
        mask[20, 20] = False
        for image in images(figure):
            np.testing.assert_array_equal(np.ma.getmaskarray(image.get_array()), ~mask)

    def test_planes_and_bands(self) -> None:
        stack = noisy_image(2, 3, 5)
        figure = integrodiff.compare(stack, stack + 1, axes="TCZYX", at={"T": 1, "C": 2})
        np.testing.assert_array_equal(images(figure)[0].get_array(), stack[1, 2, 2])
        assert "T=1 of 2, C=2 of 3, Z=2 of 5" in texts(figure)
        figure = integrodiff.compare(stack, stack, axes="TCZYX", bands=(2, 1, 0))
        assert images(figure)[0].get_array().shape == (40, 50, 3)

    def test_other_images(self) -> None:
        xr = pytest.importorskip("xarray")
        array = xr.DataArray(noisy_image(), dims=("y", "x"), attrs={"units": "K"})
        assert " K" in texts(integrodiff.compare(array, denoise(array, LEVEL)))
        photo = Image.fromarray(clean_image().astype(np.uint8))
        photo.getexif()[0x112] = 6
        assert images(integrodiff.compare(photo, photo))[0].get_array().shape == (50, 40)
        rgba = np.stack([clean_image()] * 4, axis=-1).astype(np.uint8)
        figure = integrodiff.compare(rgba, rgba, channel_axis=-1)
        assert images(figure)[0].get_array().shape == (40, 50, 3)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"after": np.zeros((3, 4))}, "before and after must have the same shape"),
            ({"window": (3, 2)}, "the lower one first"),
            ({"zoom": (0, 0, 99)}, "not inside the image"),
            ({"at": {"Z": 0}}, "no one axis 'Z'"),
            ({"mask": np.zeros((40, 50), np.bool_)}, "no pixel that is valid"),
            ({"data_range": -1}, "data_range must be positive"),
        ],
    )
    def test_refused(self, arguments: dict[str, Any], message: str) -> None:
        given: dict[str, Any] = {"before": noisy_image(), "after": clean_image(), **arguments}
        with pytest.raises(ValueError, match=message):
            integrodiff.compare(**given)

    @pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 5)])
    def test_images_too_small_for_the_similarity(self, shape: tuple[int, int]) -> None:
        image = np.random.default_rng(0).uniform(0, 255, shape)
        figure = integrodiff.compare(image, 0.9 * image, clean=0.95 * image)
        assert "PSNR" in texts(figure) or "dB" in texts(figure)

    def test_notebooks_show_it(self) -> None:
        figure: Any = integrodiff.compare(noisy_image(), clean_image())
        assert figure._repr_png_().startswith(b"\x89PNG")


class TestExplain:
    def test_it_is_what_denoise_does(self) -> None:
        noisy = noisy_image(3).astype(np.float32)
        noisy[:, 5:9, 5:9] = np.nan
        settings: dict[str, Any] = {"axes": "TYX", "model": "pm"}
        expected = denoise(noisy, **settings)
        figure = integrodiff.explain(noisy, **settings, at={"T": 2})
        before, after = (image.get_array() for image in images(figure)[:2])
        np.testing.assert_allclose(np.ma.filled(before, np.nan), noisy[2], rtol=1e-5)
        np.testing.assert_allclose(np.ma.filled(after, np.nan), expected[2], rtol=1e-4)

    @pytest.mark.parametrize("factor", [0.01, 4.0])
    def test_one_unit_for_the_noise(self, factor: float) -> None:
        noisy = factor * noisy_image() - 1000
        figure = integrodiff.explain(noisy, factor * LEVEL, model="pm", unit="HU")
        words = texts(figure)
        levels = {float(level) for level in re.findall(r"(?:level|sigma) ([0-9.]+)", words)}
        curves = [
            float(np.asarray(line.get_ydata())[0])
            for axes in figure.axes
            for line in axes.get_lines()
            if line.get_label() == "noise level"
        ]
        assert sorted(levels) == pytest.approx([factor * LEVEL])
        assert curves == pytest.approx([factor * LEVEL])
        assert "[HU / pixel]" in words
        assert "grey levels" not in words
        low, high = images(figure)[0].get_clim()
        assert -1000 < low < high < -1000 + factor * 255

    @pytest.mark.long
    def test_colour_channels_and_samples(self) -> None:
        rgb = np.moveaxis(noisy_image(3), 0, -1)
        figure = integrodiff.explain(rgb, LEVEL, channel_axis=-1, model="pm")
        assert f"{LEVEL / np.sqrt(3):.4g} grey levels of the luminance (20 of" in texts(figure)
        np.testing.assert_allclose(images(figure)[0].get_array(), rgb.mean(axis=-1))
        figure = integrodiff.explain(rgb, [1, 2, LEVEL], channel_axis=-1, bands=[2], model="pm")
        np.testing.assert_allclose(images(figure)[0].get_array(), rgb[..., 2])
        assert "noise level 20 grey levels" in texts(figure)
        stack = noisy_image(2)
        figure = integrodiff.explain(stack, [1, LEVEL], axes="CYX", at={"C": 1}, model="pm")
        np.testing.assert_allclose(images(figure)[0].get_array(), stack[1])
        rgba = np.concatenate([rgb, rgb[..., :1]], axis=-1)
        figure = integrodiff.explain(rgba, LEVEL, channel_axis=-1, model="pm")
        np.testing.assert_allclose(images(figure)[0].get_array(), rgb.mean(axis=-1))

    def test_maps_and_photons(self) -> None:
        levels = np.full((40, 50), LEVEL)
        levels[:, :25] = 5
        figure = integrodiff.explain(noisy_image(), levels, model="pm")
        expected = denoise(noisy_image(), levels, model="pm")
        np.testing.assert_allclose(images(figure)[1].get_array(), expected, rtol=1e-6)
        counts = np.random.default_rng(0).poisson(clean_image())
        figure = integrodiff.explain(counts, noise=PoissonGaussian(gain=1), model="pm")
        assert "noise level 1 standard deviations of the noise" in texts(figure)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"sigma": 0}, "nothing is changed; give sigma"),
            ({"sigma": 20, "step": 99}, "step must be from 0 to"),
            ({"sigma": 20, "bands": (0, 1, 2)}, "no bands"),
            ({"sigma": 20, "window": (1, 0)}, "the lower one first"),
        ],
    )
    def test_refused(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            integrodiff.explain(noisy_image(), model="pm", **arguments)

    def test_one_valid_pixel(self) -> None:
        mask = np.zeros((40, 50), np.bool_)
        mask[3, 4] = True
        figure = integrodiff.explain(noisy_image(), LEVEL, mask=mask, model="pm")
        assert np.ma.count(images(figure)[0].get_array()) == 1
        warned = pytest.warns(integrodiff.NoValidPixelsWarning)
        with pytest.raises(ValueError, match="no valid pixel"), warned:
            integrodiff.explain(noisy_image(), LEVEL, mask=np.zeros_like(mask))


@pytest.mark.parametrize("name", ["compare", "explain"])
def test_without_matplotlib(name: str, without_package: Callable[[str], None]) -> None:
    without_package("matplotlib")
    with pytest.raises(ImportError, match=r"figures need Matplotlib; .*\[plot\]"):
        getattr(integrodiff, name)(noisy_image(), clean_image())


def test_black_of_cmyk_is_no_transparency() -> None:
    ink = np.random.default_rng(0).integers(0, 255, (32, 32, 4)).astype(np.uint8)
    image = Image.frombytes("CMYK", (32, 32), ink.tobytes())
    found = _Opened(image, axes=None, channel_axis=None, mask=None, bands=None, unit=None)
    assert found.source.layout.samples == 4
    image = Image.frombytes("RGBA", (32, 32), ink.tobytes())
    found = _Opened(image, axes=None, channel_axis=None, mask=None, bands=None, unit=None)
    assert found.source.layout.samples == 3


@pytest.mark.filterwarnings("error")
def test_infinity_is_compared_without_a_warning() -> None:
    pytest.importorskip("matplotlib")
    image = clean_image()
    image[3, 3] = np.inf
    integrodiff.compare(image, image)
