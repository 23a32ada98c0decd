"""What is drawn of an image: planes, bands, orientation, windows, valid pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from integrodiff.layout import Layout
from integrodiff.validity import Validity, nodata_value
from integrodiff.viz.comparison import Comparison, busiest_region, compared, quality
from integrodiff.viz.view import (
    INVALID,
    View,
    checked_window,
    chosen_view,
    common_mask,
    select,
    upright,
)

STACK = Layout("TCZYX", (2, 3, 5, 8, 9))


class TestSelection:
    @pytest.mark.parametrize(
        ("wanted", "place", "words"),
        [
            ({}, (0, 0, 2), "T=1 of 2, C=1 of 3, Z=3 of 5"),
            ({"at": {"Z": 0}}, (0, 0, 0), "T=1 of 2, C=1 of 3, Z=1 of 5"),
            ({"at": {"T": 1, "C": 2}}, (1, 2, 2), "T=2 of 2, C=3 of 3, Z=3 of 5"),
            ({"page": 16}, (1, 0, 1), "T=2 of 2, C=1 of 3, Z=2 of 5"),
            ({"bands": (1,)}, (0, 1, 2), "T=1 of 2, Z=3 of 5, band 2 of 3"),
        ],
    )
    def test_plane(self, wanted: dict[str, Any], place: tuple[int, ...], words: str) -> None:
        found = select(STACK, **wanted, first=1)
        assert found.planes == (STACK.plane_at(place),)
        assert STACK.place_of(found.planes[0]) == place
        assert (found.samples, found.words, found.false_colour) == (None, words, False)

    def test_channels_as_colours(self) -> None:
        found = select(STACK, at={"Z": 4}, bands=(2, 0, 1))
        assert found.planes == tuple(STACK.plane_at((0, c, 4)) for c in (2, 0, 1))
        assert found.words == "T=0 of 2, Z=4 of 5, bands 2, 0, 1 of 3"
        assert found.false_colour

    def test_samples(self) -> None:
        assert select(Layout("YXS", (8, 9, 3))).samples is None
        scene = Layout("YXS", (8, 9, 5))
        assert select(scene).samples == (0,)
        assert select(scene, all_samples=True).samples is None
        assert select(scene, bands=(3, 2, 1)).samples == (3, 2, 1)
        assert select(Layout("YX", (8, 9))).words == ""

    @pytest.mark.parametrize(
        ("layout", "wanted", "message"),
        [
            (STACK, {"at": {"Z": 5}}, "Z=6 does not exist: the image has Z from 1 to 5"),
            (STACK, {"at": {"Q": 0}}, "no one axis 'Q'.*of which T, C, Z can be"),
            (STACK, {"at": {"Y": 0}}, "no one axis 'Y'"),
            (STACK, {"page": 30}, "page 31 does not exist: there are pages 1 to 30"),
            (STACK, {"page": 0, "at": {"Z": 0}}, "not both"),
            (STACK, {"bands": (0, 1)}, "one number or three"),
            (STACK, {"bands": (3,)}, "band 4 does not exist: there are bands 1 to 3"),
            (STACK, {"bands": (0,), "at": {"C": 1}}, "chosen already"),
            (Layout("TYX", (2, 8, 9)), {"bands": (0,)}, "no bands to choose from"),
            (Layout("QQYX", (2, 2, 8, 9)), {"at": {"Q": 0}}, "give a page instead"),
        ],
    )
    def test_refused(self, layout: Layout, wanted: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            select(layout, **wanted, first=1)


class TestViews:
    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_orientation_is_that_of_exif(self, orientation: int) -> None:
        pixels = np.arange(12 * 9, dtype=np.uint8).reshape(12, 9)
        image = Image.fromarray(pixels)
        image.getexif()[0x112] = orientation
        expected = np.asarray(ImageOps.exif_transpose(image))
        np.testing.assert_array_equal(upright(pixels, orientation), expected)
        colours = np.stack([pixels, pixels + 1, pixels + 2], axis=-1)
        np.testing.assert_array_equal(upright(colours, orientation)[..., 0], expected)

    def test_windows(self) -> None:
        ramp = np.linspace(0, 1000, 1001).reshape(7, 143)
        assert View(pixels=ramp.astype(np.uint8)).windows() == ((0.0, 255.0),)
        assert View(pixels=ramp).windows() == ((5.0, 995.0),)
        assert View(pixels=ramp).windows((1, 2)) == ((1, 2),)
        spoilt = np.where(ramp > 990, 1e9, ramp)
        assert View(pixels=spoilt, mask=spoilt < 1e9).windows()[0][1] < 990
        colours = np.stack([ramp, 2 * ramp, 3 * ramp], axis=-1)
        assert len(set(View(pixels=colours).windows())) == 1
        bands = View(pixels=colours, false_colour=True).windows()
        assert [high for _, high in bands] == [995, 1990, 2985]
        assert View(pixels=np.full((3, 3), 7.0)).windows() == ((6.5, 7.5),)
        hot = np.zeros((40, 40))
        hot[3, 3] = 1
        assert View(pixels=hot).windows() == ((0.0, 1.0),)

    @pytest.mark.parametrize("window", [(2, 1), (1, 1), (0, np.inf), (np.nan, 1)])
    def test_bad_windows(self, window: tuple[float, float]) -> None:
        with pytest.raises(ValueError, match="the lower one first"):
            checked_window(window)

    def test_pictures(self) -> None:
        pixels = np.array([[-1000.0, 0.0], [102.0, np.nan]])
        view = View(pixels=pixels, mask=np.isfinite(pixels))
        picture = view.as_bytes([(0.0, 200.0)])
        assert picture[0, :, 0].tolist() == [0, 0]
        assert picture[1, 0].tolist() == [130, 130, 130]
        assert tuple(picture[1, 1]) == INVALID
        inverted = View(pixels=pixels[:1], white_is_zero=True).as_bytes([(0.0, 200.0)])
        assert inverted.tolist() == [[255, 255]]

    def test_planes_are_joined_with_their_masks(self) -> None:
        layout = Layout("CYX", (3, 4, 5))
        image = np.arange(60).reshape(layout.shape)
        validity = Validity(nodata=(nodata_value(0), nodata_value(59)))
        found = chosen_view(
            dict(enumerate(image)), select(layout, bands=(2, 1, 0)), validity, orientation=6
        )
        assert found.pixels.shape == (5, 4, 3)
        np.testing.assert_array_equal(found.pixels[..., 0], np.rot90(image[2], -1))
        assert found.mask is not None
        assert (~found.mask).sum() == 2


def views(*images: Any, **more: Any) -> list[View]:
    return [View(pixels=np.asarray(image), **more) for image in images]


class TestComparison:
    def found(self, **more: Any) -> Comparison:
        y, x = np.mgrid[:40, :50]
        clean = 1000.0 + 10 * x + 200 * (y > 20)
        noise = np.random.default_rng(0).normal(0, 30, clean.shape)
        return compared(views(clean + noise, clean + noise / 4, clean, unit="HU"), **more)

    def test_numbers(self) -> None:
        found = self.found()
        assert found.data_range == pytest.approx(690)
        assert found.deviation == pytest.approx(0.75 * 30, rel=0.05)
        assert found.qualities["before"].psnr == pytest.approx(20 * np.log10(690 / 30), abs=0.3)
        gain = found.qualities["after"].psnr - found.qualities["before"].psnr
        assert gain == pytest.approx(20 * np.log10(4))
        assert found.deviation_words.endswith("HU")
        assert found.window_words.endswith("HU")
        assert list(found.pictures()) == ["before", "after", "removed", "clean"]
        assert self.found(data_range=4095).data_range == 4095

    @pytest.mark.parametrize("zoom", [(-1, 0, 5), (0, 0, 41), (0, 46, 5), (3, 3, 0)])
    def test_squares_outside(self, zoom: tuple[int, int, int]) -> None:
        with pytest.raises(ValueError, match="not inside the image of 40 rows and 50 columns"):
            self.found(zoom=zoom)

    @pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
    @pytest.mark.parametrize("samples", [(), (3,)])
    def test_invalid_pixels_do_not_count(self, junk: float, samples: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        clean = rng.normal(100, 20, (30, 31, *samples))
        image = clean + rng.normal(0, 5, clean.shape)
        mask = np.ones((30, 31), np.bool_)
        mask[:9, :9] = mask[20, 20] = False
        dirty, dirty_clean = image.copy(), clean.copy()
        dirty[~mask], dirty_clean[~mask] = junk, -junk
        found = quality(dirty, dirty_clean, 255, mask)
        assert found == quality(
            np.where(mask[(..., *[None] * len(samples))], image, 0), clean, 255, mask
        )
        error = np.mean((image - clean)[mask] ** 2)
        assert found.psnr == pytest.approx(10 * np.log10(255**2 / error))
        # Of windows without an invalid pixel: those of the lower left part among others.
        part = quality(image[9:20], clean[9:20], 255, mask[9:20]).ssim
        assert part == pytest.approx(quality(image[9:20], clean[9:20], 255).ssim)
        assert np.isnan(quality(image, clean, 255, ~mask & (rng.random(mask.shape) < 0.1)).ssim)

    def test_a_full_mask_changes_nothing(self) -> None:
        rng = np.random.default_rng(0)
        image, clean = rng.normal(100, 20, (2, 30, 31))
        full = quality(image, clean, 255, np.ones(image.shape, np.bool_))
        assert (full.psnr, full.ssim) == pytest.approx(
            (quality(image, clean, 255).psnr, quality(image, clean, 255).ssim)
        )

    def test_masks_are_common(self) -> None:
        left = np.arange(12).reshape(3, 4) % 4 < 2
        pixels = np.zeros((3, 4))
        pair = [View(pixels=pixels, mask=left), View(pixels=pixels, mask=~left)]
        with pytest.raises(ValueError, match="no pixel that is valid in all"):
            common_mask(pair)
        np.testing.assert_array_equal(common_mask([pair[0], View(pixels=pixels)]), left)
        assert common_mask([View(pixels=pixels)]) is None

    def test_the_border_of_a_mask_is_not_busy(self) -> None:
        image = np.zeros((200, 200))
        image[:60, :60] = np.random.default_rng(0).normal(0, 1, (60, 60))
        mask = np.ones(image.shape, np.bool_)
        image[120:, 120:] = 1e6
        mask[120:, 120:] = False
        region = busiest_region(image, mask)
        assert region.top + region.left < 30
