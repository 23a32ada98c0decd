"""What ``explain`` and ``compare`` draw of volumes: three planes through a point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile
from command_line import run
from numpy.typing import NDArray
from PIL import Image
from selection import some

import integrodiff
from integrodiff import Denoiser, PoissonGaussian, VolumeModelWarning, denoise, load_model
from integrodiff.arrays import array_image
from integrodiff.engines import get_engine
from integrodiff.layout import Layout
from integrodiff.stages import Domain, blur, cascade, coupling_field, sensitivity
from integrodiff.stages.eigenframe import eigenframe
from integrodiff.viz.explanation import (
    Explained,
    VolumeExplanation,
    VolumeStructure,
    explain_volume,
    explained_planes,
)
from integrodiff.viz.mosaic import Mosaic
from integrodiff.viz.orthogonal import MOSAIC, places
from integrodiff.viz.view import INVALID

LEVEL = 15.0
SPACING = (2.0, 1.0, 1.0)


def clean_volume() -> NDArray[np.float64]:
    z, y, x = np.mgrid[:8, :20, :26]
    found: NDArray[np.float64] = 60.0 + x + 90 * (8 * (z - 4) ** 2 + (y - 10) ** 2 + x < 40)
    return found


def noisy_volume(*channels: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, LEVEL, (*channels, 8, 20, 26))
    return (clean_volume() + noise).astype(np.float32)


def planes_of(volume: NDArray[Any], z: int, y: int, x: int) -> list[NDArray[Any]]:
    """Return the planes in the order of MOSAIC."""
    return [volume[z], volume[:, y], volume[:, :, x].T]


def explained(image: NDArray[Any], axes: str = "ZYX", at: Any = None, **how: Any) -> Explained:
    source = array_image(image, axes=axes, mask=how.pop("mask", None))
    step, bands = how.pop("step", None), how.pop("bands", None)
    where = places(source.layout, at, bands=bands, all_samples=True)
    return explain_volume(Denoiser(**how), source, where, step=step)


def of_volume(found: Explained) -> VolumeExplanation:
    assert isinstance(found.explanation, VolumeExplanation)
    return found.explanation


class TestValues:
    """The numbers behind the figure."""

    @pytest.mark.slow
    def test_planes_are_those_of_denoise(self) -> None:
        stack = np.stack([noisy_volume() + 300, noisy_volume(2)[1]], axis=1)  # ZCYX
        stack[2, 1, 5:8, 4:9] = np.nan
        expected = denoise(stack, [LEVEL, LEVEL], axes="ZCYX", spacing=SPACING)
        found = explained(
            stack, "ZCYX", {"C": 1, "Z": 2, "Y": 6, "X": 5}, sigma=LEVEL, spacing=SPACING
        )
        volume = of_volume(found)
        valid = np.isfinite(stack[:, 1])
        for part, before, after, known in zip(
            volume.planes,
            planes_of(stack[:, 1], 2, 6, 5),
            planes_of(expected[:, 1], 2, 6, 5),
            planes_of(valid, 2, 6, 5),
            strict=True,
        ):
            np.testing.assert_allclose(part.images[0][known], before[known], rtol=1e-5)
            np.testing.assert_allclose(part.images[-1][known], after[known], rtol=1e-4)
            assert part.mask is not None
            np.testing.assert_array_equal(part.mask, known)
            assert part.structure.known is not None
            assert not part.structure.known.all()
        removed = (stack[:, 1] - expected[:, 1])[valid]
        assert volume.removed[-1] == pytest.approx(removed.std(), rel=1e-4)
        assert volume.spacing == SPACING
        assert found.geometry == "volume, spacing 2 : 1 : 1 (z : y : x)"
        assert found.noise == "noise level 15 grey levels"

    @pytest.mark.slow
    def test_estimates_are_those_of_the_channel(self) -> None:
        stack = noisy_volume(2)  # TZYX
        found = explained(stack, "TZYX", {"T": 1})
        expected = denoise(stack, axes="TZYX")[1]
        for part, after in zip(
            of_volume(found).planes, planes_of(expected, 4, 10, 13), strict=True
        ):
            np.testing.assert_allclose(part.images[-1], after, rtol=1e-4)
        assert found.noise.endswith("(estimated)")

    @pytest.mark.slow
    def test_luminance_and_samples(self) -> None:
        rgb = np.moveaxis(noisy_volume(3), 0, -1)
        first = of_volume(explained(rgb, "ZYXS", sigma=LEVEL)).planes[0]
        np.testing.assert_allclose(first.images[0], rgb[4].mean(axis=-1), rtol=1e-5)
        assert first.sigma == pytest.approx(LEVEL / np.sqrt(3))
        first = of_volume(explained(rgb, "ZYXS", sigma=LEVEL, bands=[2])).planes[0]
        np.testing.assert_allclose(first.images[0], rgb[4, ..., 2], rtol=1e-5)

    @pytest.mark.slow
    def test_photons_have_their_own_unit(self) -> None:
        counts = np.random.default_rng(0).poisson(clean_volume())
        found = explained(counts, noise=PoissonGaussian(gain=1)).in_unit("HU", 2.0)
        assert found.noise == "noise level 1 standard deviations of the noise"

    @pytest.mark.slow
    def test_units(self) -> None:
        plain = of_volume(explained(noisy_volume(), sigma=LEVEL))
        scaled = plain.scaled(-2.0, 1000.0, "HU")
        np.testing.assert_allclose(scaled.planes[1].images[0], 1000 - 2 * plain.planes[1].images[0])
        assert scaled.removed[-1] == pytest.approx(2 * plain.removed[-1])
        assert scaled.changes[0] == pytest.approx(2 * plain.changes[0])
        assert scaled.unit == "HU"
        assert scaled.sigma == pytest.approx(2 * LEVEL)

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ({"at": {"X": 26}}, "X=26 does not exist: the image has X from 0 to 25"),
            ({"at": {"Z": 8}}, "Z=8 does not exist"),
            ({"at": {"C": 0}}, "no one axis 'C'"),
            ({"sigma": 0}, "nothing is changed; give sigma"),
            ({"step": 99}, "step must be from 0 to 5"),
            ({"spacing": (1, 2)}, "one number for each of the axes Z, Y, X"),
        ],
    )
    def test_refused(self, how: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            explained(noisy_volume(), **{"sigma": LEVEL, **how})

    def test_refused_for_colours_models_and_masks(self) -> None:
        rgb = np.moveaxis(noisy_volume(3), 0, -1)
        with pytest.raises(ValueError, match="one band is explained at a time"):
            explained(rgb, "ZYXS", sigma=LEVEL, bands=[0, 1, 2])
        with pytest.raises(ValueError, match="of one channel"):
            explained(noisy_volume(3), "CZYX", sigma=LEVEL, bands=[0, 1, 2])
        nothing = np.zeros((8, 20, 26), np.bool_)
        warned = pytest.warns(VolumeModelWarning)
        with pytest.raises(ValueError, match="cannot denoise volumes"), warned:
            explained(noisy_volume(), sigma=LEVEL, model="iad-deep")
        warned = pytest.warns(integrodiff.NoValidPixelsWarning)
        with pytest.raises(ValueError, match="no valid voxel"), warned:
            explained(noisy_volume(), sigma=LEVEL, mask=nothing)


class TestStructure:
    """The 3 x 3 structure tensor in the planes."""

    @pytest.mark.parametrize("axis", some([0, 1, 2], 1))
    def test_a_surface(self, axis: int) -> None:
        """Grey values change across the surface alone, and lines in the planes lie in it."""
        volume = np.zeros((12, 14, 16), np.float32)
        index: list[Any] = [slice(None)] * 3
        index[axis] = slice(volume.shape[axis] // 2, None)
        volume[tuple(index)] = 150
        found = of_volume(explained(volume, sigma=LEVEL, data_range=255, step=0))
        assert set(found.spacing) == {1.0}
        letter = "ZYX"[axis]
        for plane, part in zip(MOSAIC, found.planes, strict=True):
            if letter not in plane:
                continue  # the plane is the surface, or next to it
            structure = part.structure
            assert isinstance(structure, VolumeStructure)
            middle = [volume.shape["ZYX".index(name)] // 2 + (name != letter) for name in plane]
            place = middle[0], middle[1]
            assert structure.surface[place] == pytest.approx(1, abs=1e-3)
            assert structure.line[place] == pytest.approx(0, abs=1e-3)
            assert abs(structure.across[place])["XYZ".index(letter)] == pytest.approx(1)
            assert structure.coherence[place] == pytest.approx(1, abs=1e-3)
            along = structure.orientation[place]
            expected = 0.0 if plane[0] == letter else np.pi / 2
            assert abs(np.sin(along - expected)) == pytest.approx(0, abs=1e-3)
            finest = part.diffusivities[0]
            assert finest.across[place] < 1e-3
            assert finest.along[place] == pytest.approx(1, abs=1e-3)

    def test_a_line(self) -> None:
        """A rod along X: a line in the planes that hold it, and no direction in the other."""
        volume = np.zeros((16, 16, 16), np.float32)
        volume[7:9, 7:9] = 200
        at = {"Z": 7, "Y": 7, "X": 8}
        found = of_volume(explained(volume, at=at, sigma=5.0, data_range=255, step=0))
        in_slice, below, across = (part.structure for part in found.planes)
        assert isinstance(across, VolumeStructure)
        middle = 8, 8  # the cell in the middle of the rod
        assert across.line[middle] == pytest.approx(1, abs=1e-3)
        assert across.surface[middle] == pytest.approx(0, abs=1e-3)
        assert across.coherence[middle] == pytest.approx(0, abs=1e-3)
        for structure in (in_slice, below):
            assert structure.coherence[middle] == pytest.approx(1, abs=1e-3)
            assert abs(np.sin(structure.orientation[middle])) < 1e-3

    @pytest.mark.slow
    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("depth", some([6, 90], 90))
    def test_slabs_give_the_values_of_the_whole(self, depth: int, masked: bool) -> None:
        """Tensors and diffusivities of the planes are those of the stages on the whole volume."""
        rng = np.random.default_rng(1)
        volume = rng.normal(100, 30, (1, depth, 9, 11))
        spacing = (1.0, 2.0, 1.5)
        model: Any = load_model("iad-fast-volume")
        evolution = model.evolution(LEVEL, None, spacing)
        mask = rng.uniform(size=volume.shape[1:]) > 0.03 if masked else None
        noise = rng.uniform(0.5, 2, volume.shape[1:])
        process = get_engine("numpy").prepare(evolution, mask=mask, relative_noise=noise)
        where = places(Layout("ZYX", volume.shape[1:]), {"Z": depth - 1, "Y": 3, "X": 0})
        found = explained_planes(
            volume, LEVEL, process, where, step=0, mask=mask, relative_noise=noise
        )
        domain = None if mask is None else Domain(mask, volume, spacing)
        smooth = (
            (lambda image, scale: blur(image, scale, spacing=spacing))
            if domain is None
            else (domain.blur)
        )
        (term,) = evolution.terms(0)
        tensor: Any = coupling_field(
            cascade(volume, evolution.scales, smooth), term, sensitivity(noise), domain, spacing
        )
        values = np.sort(np.stack(eigenframe(tensor).values), axis=0)[:, 0]
        # The cells behind the plane, of the last plane those before it.
        layers = {
            "YX": values[:, depth - 1],
            "ZX": values[:, :, 4],
            "YZ": values[..., 1].swapaxes(1, 2),
        }
        for plane, part in zip(MOSAIC, found.planes, strict=True):
            expected = layers[plane]
            known = part.structure.known
            cells: Any = ... if known is None else known
            strength = np.sqrt(np.maximum(expected[2], 0))
            np.testing.assert_allclose(
                part.structure.strength[cells], strength[cells], rtol=1e-6, atol=1e-6
            )
            for item in part.diffusivities:
                along, _, across = np.exp(-np.maximum(expected, 0) / (2 * item.contrast**2))
                np.testing.assert_allclose(item.across[cells], across[cells], atol=1e-6)
                np.testing.assert_allclose(item.along[cells], along[cells], atol=1e-6)

    def test_isotropic_models(self) -> None:
        with pytest.warns(VolumeModelWarning, match="trained on images"):
            found = of_volume(explained(noisy_volume(), sigma=LEVEL, model="iid"))
        for part in found.planes:
            assert isinstance(part.structure, VolumeStructure)
            for item in part.diffusivities:
                np.testing.assert_array_equal(item.across, item.along)


def test_planes_are_arranged_in_proportion() -> None:
    where = places(Layout("ZYX", (8, 20, 26)))
    mosaic = Mosaic(where=where, shape=(8, 20, 26), spacing=SPACING)
    first, below, right = (mosaic.box(plane) for plane in MOSAIC)
    assert (first.width, first.height) == (26, 20)
    assert (below.width, below.height) == (26, 16)
    assert (right.width, right.height) == (16, 20)
    assert below.top > first.height
    assert right.left > first.width
    assert mosaic.size == (below.top + below.height, right.left + right.width)


# ---- figures ----


def images(figure: Any) -> list[Any]:
    from matplotlib.image import AxesImage

    return list(figure.findobj(AxesImage))


def texts(figure: Any) -> str:
    from matplotlib.text import Text

    return " | ".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.slow
class TestFigures:
    """``integrodiff.explain`` and ``integrodiff.compare`` of volumes."""

    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_explain(self) -> None:
        noisy = noisy_volume()
        noisy[:, :3] = np.nan
        at = {"Z": 3, "Y": 11, "X": 7}
        figure = integrodiff.explain(noisy, LEVEL, axes="ZYX", spacing=SPACING, at=at, unit="HU")
        expected = denoise(noisy, LEVEL, axes="ZYX", spacing=SPACING)
        drawn = images(figure)
        pairs = zip(
            drawn[:6],
            [*planes_of(noisy, 3, 11, 7), *planes_of(expected, 3, 11, 7)],
            strict=True,
        )
        for image, plane in pairs:
            found = image.get_array()
            np.testing.assert_allclose(np.ma.filled(found, np.nan), plane, rtol=1e-4)
        bad = drawn[0].get_cmap().get_bad()
        np.testing.assert_allclose(bad[:3], np.array(INVALID) / 255)
        words = texts(figure)
        assert "iad-plus-volume at noise level 15 HU" in words.replace("\n", " ")
        assert "spacing 2 : 1 : 1" in words.replace("\n", " ")
        assert "YX at Z=3" in words
        assert "ZX at Y=11" in words
        assert "YZ at X=7" in words
        assert "[HU / voxel]" in words
        assert "surfaces (orange), lines (blue)" in words
        # Unknown cells are greyed out in pictures with colours.
        colours = [one.get_array() for one in drawn if np.ndim(one.get_array()) == 3]
        assert colours
        np.testing.assert_allclose(colours[0][0, 0], np.array(INVALID) / 255)
        left, right, below, above = drawn[1].get_extent()
        assert (right - left, below - above) == pytest.approx((26, 16))

    def test_slices_are_still_images(self) -> None:
        figure = integrodiff.explain(noisy_volume(), LEVEL, axes="QYX", at={"Q": 3}, model="pm")
        np.testing.assert_allclose(images(figure)[0].get_array(), noisy_volume()[3], rtol=1e-5)
        with pytest.raises(ValueError, match="are for volumes"):
            integrodiff.explain(noisy_volume(), LEVEL, axes="QYX", at={"Y": 3})

    def test_compare(self) -> None:
        noisy, clean = noisy_volume(), clean_volume().astype(np.float32)
        noisy[2, 4, 5] = np.nan
        after = 0.5 * noisy + 0.5 * clean
        at = {"Z": 2, "Y": 4, "X": 5}
        figure = integrodiff.compare(noisy, after, clean, axes="ZYX", at=at, spacing=SPACING)
        drawn = images(figure)
        assert len(drawn) == 12
        for start, volume in ((0, noisy), (3, after), (6, noisy - after), (9, clean)):
            for image, plane in zip(drawn[start:], planes_of(volume, 2, 4, 5), strict=False):
                found = image.get_array()
                assert np.ma.getmaskarray(found).sum() == 1
                np.testing.assert_allclose(found.compressed(), plane[~found.mask], rtol=1e-5)
        assert drawn[0].get_clim() == drawn[4].get_clim() == drawn[11].get_clim()
        assert drawn[6].get_clim() == drawn[7].get_clim()
        assert "Z=2 of 8, Y=4 of 20, X=5 of 26" in texts(figure)
        error = np.nanmean((noisy[2] - clean[2]) ** 2)
        peak = np.ptp(np.delete(clean[2].ravel(), 4 * 26 + 5))
        assert f"before, {10 * np.log10(peak**2 / error):.2f} / " in texts(figure)

    def test_compare_in_colour(self) -> None:
        rgb = np.moveaxis(noisy_volume(3), 0, -1).clip(0, 255).astype(np.uint8)
        figure = integrodiff.compare(rgb, rgb, axes="ZYXS", at={"X": 1})
        assert [image.get_array().shape for image in images(figure)[:3]] == [
            (20, 26, 3),
            (8, 26, 3),
            (20, 8, 3),
        ]
        figure = integrodiff.compare(rgb, rgb, axes="ZYXS", at={"X": 1}, bands=[1])
        np.testing.assert_array_equal(images(figure)[2].get_array(), rgb[:, :, 1, 1].T)

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ({"at": {"Y": 20}}, "Y=20 does not exist"),
            ({"at": {"Y": 2}, "zoom": (0, 0, 4)}, "zoom is for images"),
            ({"at": {"Z": 2}, "spacing": SPACING}, "spacing is for planes of volumes"),
            ({"at": {"Y": 2}, "spacing": (1, -1, 1)}, "must not be negative"),
            ({"at": {"Y": 2}, "after": np.zeros((8, 20, 25))}, "must have the same shape"),
            ({"at": {"Y": 2}, "axes": "TYX"}, "are for volumes"),
        ],
    )
    def test_compare_refuses(self, how: dict[str, Any], message: str) -> None:
        given: dict[str, Any] = {"after": clean_volume(), "axes": "ZYX", **how}
        with pytest.raises(ValueError, match=message):
            integrodiff.compare(clean_volume(), **given)


# ---- command line ----


def write_nifti(path: Path, volume: NDArray[Any]) -> None:
    affine = np.diag([1.0, 1, 2, 1])
    nibabel.save(nibabel.Nifti1Image(volume.T, affine, dtype=volume.dtype.name), path)


@pytest.mark.long  # a command of docs/volumes.md draws one in make test
def test_command_explains_the_volume(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    noisy = noisy_volume().astype(np.int16)
    noisy[:, :5] = -999
    write_nifti(tmp_path / "in.nii", noisy)
    words = ("explain", tmp_path / "in.nii", "--output", tmp_path / "why.png", "--sigma", LEVEL)
    result = run(*words, "--at", "Z=4,Y=10,X=8", "--nodata", -999)
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stderr.split())
    assert "Z=4 of 8, Y=10 of 20, X=8 of 26: iad-plus-volume at noise level 15" in said
    assert "spacing 2 : 1 : 1 (z : y : x, from the file)" in said
    picture = np.asarray(Image.open(tmp_path / "why.png").convert("RGB")).astype(int)
    grey = (abs(picture - INVALID) <= 1).all(axis=-1)
    assert grey.mean() > 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "Z=4,Y=21"), "Y=21 does not exist: the image has Y from 1 to 20"),
        (("--at", "Z=9"), "Z=9 does not exist"),
        (("--spacing", "1,b,1"), "--spacing must be numbers"),
        (("--slices", "--at", "Y=4"), "are for volumes"),
    ],
)
def test_command_refuses(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_nifti(tmp_path / "in.nii", noisy_volume())
    result = run(
        *("explain", tmp_path / "in.nii", "--output", tmp_path / "why.png", "--sigma", 9), *options
    )
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "why.png").exists()


@pytest.mark.long
def test_pages_that_are_a_volume(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tifffile.imwrite(tmp_path / "in.tif", noisy_volume(), photometric="minisblack")
    words = ("explain", tmp_path / "in.tif", "--output", tmp_path / "why.png", "--sigma", LEVEL)
    result = run(*words, "--volume", "--spacing", "2,1,1", "--at", "Z=2")
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stderr.split())
    assert "Z=2 of 8, Y=11 of 20, X=14 of 26: iad-plus-volume at" in said
    assert "spacing 2 : 1 : 1 (z : y : x)" in said
    both = ("compare", tmp_path / "in.tif", tmp_path / "in.tif", "--output", tmp_path / "c.png")
    result = run(*both, "--at", "Z=2,Y=3")
    assert result.exit_code == 2
    assert "If its pages are slices of a volume, take --volume" in " ".join(result.stderr.split())
    for at, drawn in (
        ("Z=2,Y=3", "three planes through Z=2 of 8, Y=3 of 20, X=14 of 26"),
        ("Z=2", "Z=2 of 8"),
    ):
        result = run(*both, "--volume", "--at", at, "--overwrite")
        assert result.exit_code == 0, result.stderr
        assert f"drawn: {drawn}" in " ".join(result.stderr.split())
