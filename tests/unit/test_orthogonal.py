"""Three orthogonal planes of volumes through a point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from command_line import run
from numpy.typing import NDArray

from integrodiff.io import read_image
from integrodiff.layout import Layout
from integrodiff.validity import Validity
from integrodiff.viz.orthogonal import compared_planes, orthogonal_sheet, orthogonal_views, places


def volume() -> NDArray[np.float64]:
    return np.random.default_rng(0).normal(100, 10, (5, 12, 16))


def test_planes_are_those_through_the_point() -> None:
    stack = np.stack([volume(), volume() + 50], axis=1)  # ZCYX
    where = places(Layout("ZCYX", stack.shape), {"C": 1, "Z": 3, "Y": 7, "X": 2})
    assert where.point == (3, 7, 2)
    assert where.slices == (1, 3, 5, 7, 9)
    planes = stack.reshape(-1, 12, 16)
    views = orthogonal_views(planes, where, Validity())
    expected = stack[3, 1], stack[:, 1, 7], stack[:, 1, :, 2]
    for view, plane in zip(views, expected, strict=True):
        np.testing.assert_array_equal(view.pixels, plane)
        assert view.mask is None
    assert [view.words for view in views] == ["YX at Z=3", "ZX at Y=7", "ZY at X=2"]
    middle = places(Layout("ZYX", (5, 12, 16)), {"X": 1})
    assert middle.point == (2, 6, 1)


@pytest.mark.slow
def test_one_window_and_one_scale_for_all_planes() -> None:
    before, after = volume(), np.full((5, 12, 16), 100.0)
    after[2] += np.arange(16)
    before[0, 0, 0] = np.nan
    where = places(Layout("ZYX", before.shape), {"Z": 2, "Y": 0, "X": 0})
    images = [orthogonal_views(image, where, Validity()) for image in (before, after)]
    found = compared_planes(images)
    assert len({comparison.windows for comparison in found}) == 1
    assert len({comparison.reach for comparison in found}) == 1
    assert found[0].mask is None
    assert found[1].mask is not None
    assert np.argwhere(~found[1].mask).tolist() == [[0, 0]]
    np.testing.assert_allclose(found[2].removed.pixels[1:], (before - after)[1:, :, 0])
    sheet = orthogonal_sheet(found, where, {"Z": 3.0, "Y": 1.0, "X": 1.0})
    assert sheet.shape[2] == 3
    # Slices are three times as far apart: 15 of 16 rows high, and as wide as the plane above.
    plain = orthogonal_sheet(found, where, {})
    assert sheet.shape[0] > plain.shape[0]


@pytest.mark.parametrize(
    ("axes", "shape", "at", "message"),
    [
        ("QYX", (5, 12, 16), {"X": 1}, "are for volumes; .* take axes with Z"),
        ("ZYX", (5, 12, 16), {"X": 16}, "X=17 does not exist: the image has X from 1 to 16"),
        ("ZYX", (5, 12, 16), {"Y": 1, "Z": 5}, "Z=6 does not exist"),
    ],
)
def test_refused(axes: str, shape: Any, at: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        places(Layout(axes, shape), at, first=1)


@pytest.mark.slow
def test_command_line(tmp_path: Path) -> None:
    before = volume().astype(np.int16)
    for name, pixels in (("in.nii", before), ("out.nii", before // 10 * 10)):
        nibabel.save(
            nibabel.Nifti1Image(pixels.T, np.diag([1.0, 1, 2, 1]), dtype="int16"), tmp_path / name
        )
    names = tmp_path / "in.nii", tmp_path / "out.nii"
    words = ("compare", *names, "--output", tmp_path / "three.png", "--clean", names[0])
    result = run(*words, "--at", "Z=3,Y=4,X=5", "--data-range", 255)
    assert result.exit_code == 0, result.stderr
    drawn = "drawn: three planes through Z=3 of 5, Y=4 of 12, X=5 of 16"
    assert drawn in " ".join(result.stderr.split())
    assert read_image(tmp_path / "three.png").pixels.shape[1] > 4 * 600
    result = run(*words, "--at", "Z=3,Y=40", "--overwrite")
    assert result.exit_code == 2
    assert "Y=40 does not exist" in " ".join(result.stderr.split())


def test_bands_keep_their_windows_in_all_planes() -> None:
    levels = [10.0, 1000.0, 5.0, 0.0]
    bands = np.random.default_rng(0).normal(levels, 1, (6, 12, 16, 4))
    where = places(Layout("ZYXS", bands.shape), {"Y": 3}, bands=[0, 1, 2])
    views = orthogonal_views(list(bands), where, Validity())
    found = compared_planes([views, views])
    assert len(set(found[0].windows)) == 3
    assert len({comparison.windows for comparison in found}) == 1


def test_one_data_range_for_all_planes() -> None:
    clean = np.full((6, 12, 16), 1000, np.uint16)
    clean[3] = 125  # the middle slice is dark
    where = places(Layout("ZYX", clean.shape))
    views = [
        orthogonal_views(list(image), where, Validity()) for image in (clean + 1, clean, clean)
    ]
    found = compared_planes(views)
    assert {comparison.data_range for comparison in found} == {1023.0}
    assert len({round(comparison.qualities["before"].psnr, 6) for comparison in found}) == 1
