"""Volumes as microscopes and scanners write them, denoised, and read by other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import SimpleITK
import tifffile
import zarr
from command_line import run
from numpy.typing import NDArray

from integrodiff import denoise

SETTINGS = ("--sigma", 12, "--data-range", 255, "--engine", "numpy")
ARGUMENTS: dict[str, Any] = {"sigma": 12, "data_range": 255, "engine": "numpy"}

pytestmark = pytest.mark.slow


def stack(slices: int = 4, channels: int = 2) -> NDArray[np.uint16]:
    """Return (slice, channel, row, column)."""
    z, c, y, x = np.mgrid[:slices, :channels, :14, :18]
    noise = np.random.default_rng(1).normal(0, 12, z.shape)
    return np.asarray(90 + 30 * (x + y + 3 * z > 18 + 5 * c) + noise, np.uint16)


def denoised(path: Path, target: Path) -> str:
    """Denoise by the command line; return what it says."""
    result = run("denoise", path, target, *SETTINGS)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stderr.split())


OME: dict[str, Any] = {
    "axes": "ZCYX",
    "Name": "embryo",
    "AcquisitionDate": "2026-02-03T04:05:06",
    "Description": "by hand",
    **{f"PhysicalSize{axis}": size for axis, size in (("X", 0.2), ("Y", 0.2), ("Z", 0.4))},
    **{f"PhysicalSize{axis}Unit": "µm" for axis in "XYZ"},
    "Channel": {"Name": ["DAPI", "GFP"], "EmissionWavelength": [461, 509], "Color": [255, -1]},
    "Plane": {"PositionZ": [0.4 * n for n in range(4) for _ in range(2)], "TheT": [0] * 8},
}


def test_ome_tiff(tmp_path: Path) -> None:
    """Every attribute of the OME-XML is compared."""
    names = tmp_path / "in.ome.tif", tmp_path / "out.ome.tif"
    tifffile.imwrite(names[0], stack(), metadata=OME, photometric="minisblack")
    assert "spacing 2 : 1 : 1 (z : y : x, from the file)" in denoised(*names)
    with tifffile.TiffFile(names[0]) as old, tifffile.TiffFile(names[1]) as new:
        before, after = (tifffile.xml2dict(tif.ome_metadata or "") for tif in (old, new))
        assert before["OME"]["Image"]["Pixels"]["PhysicalSizeZ"] == 0.4
        assert after == before
        (series,) = new.series
        assert (series.axes, series.shape) == ("ZCYX", (4, 2, 14, 18))
        expected = denoise(stack(), axes="ZCYX", spacing=(2, 1, 1), **ARGUMENTS)
        np.testing.assert_array_equal(series.asarray(), expected)


def test_imagej(tmp_path: Path) -> None:
    """Every field of ImageJ's description and its binary metadata, and the resolution."""
    names = tmp_path / "in.tif", tmp_path / "out.tif"
    table = np.tile(np.arange(256, dtype=np.uint8), (3, 1))
    fields: dict[str, Any] = {
        "axes": "ZCYX",
        "mode": "composite",
        "unit": "micron",
        "spacing": 0.4,
        "Ranges": (0.0, 400.0, 10.0, 200.0),
        "LUTs": [table, table],
        "Info": "Objective: 63x",
        "Labels": [f"{n + 1}/8" for n in range(8)],
    }
    tifffile.imwrite(names[0], stack(), imagej=True, resolution=(5, 5), metadata=fields)
    assert "spacing 2 : 1 : 1 (z : y : x, from the file)" in denoised(*names)
    with tifffile.TiffFile(names[0]) as old, tifffile.TiffFile(names[1]) as new:
        assert new.is_imagej
        before, after = dict(old.imagej_metadata or {}), dict(new.imagej_metadata or {})
        assert {"images", "slices", "channels", "unit", "spacing", "Ranges", "Info"} < set(before)
        np.testing.assert_array_equal(after.pop("LUTs"), before.pop("LUTs"))
        assert after == before
        for tag in ("XResolution", "YResolution", "ResolutionUnit"):
            assert new.pages.first.tags[tag].value == old.pages.first.tags[tag].value
        expected = denoise(stack(), axes="ZCYX", spacing=(2, 1, 1), **ARGUMENTS)
        np.testing.assert_array_equal(new.asarray(), expected)


def test_nifti(tmp_path: Path) -> None:
    """An oblique volume lies where it did, for nibabel and for ITK; the header is the same."""
    names = tmp_path / "in.nii.gz", tmp_path / "out.nii.gz"
    pixels = stack(channels=1)[:, 0].astype(np.int16)
    affine = np.array([[0.8, 0.6, 0, -5], [-0.6, 0.8, 0, 3], [0, 0, 2, 1], [0, 0, 0, 1.0]])
    image: Any = nibabel.Nifti1Image(pixels.T, affine)
    image.header.set_xyzt_units("mm")
    image.header["descrip"], image.header["intent_name"] = b"by hand", b"T1"
    image.set_sform(affine, 1)
    image.set_qform(affine, 1)
    nibabel.save(image, names[0])
    assert "spacing 2 : 1 : 1 (z : y : x, from the file)" in denoised(*names)
    images: list[Any] = [nibabel.load(name) for name in names]
    old, new = images
    for field in old.header:
        np.testing.assert_array_equal(new.header[field], old.header[field], err_msg=field)
    np.testing.assert_array_equal(new.affine, old.affine)
    before, after = (SimpleITK.ReadImage(name) for name in names)
    assert after.GetSpacing() == before.GetSpacing() == pytest.approx((1, 1, 2))
    assert after.GetOrigin() == before.GetOrigin()
    assert after.GetDirection() == before.GetDirection()
    assert after.GetMetaDataKeys() == before.GetMetaDataKeys()
    for key in before.GetMetaDataKeys():
        assert after.GetMetaData(key) == before.GetMetaData(key)
    expected = denoise(pixels, axes="ZYX", spacing=(2, 1, 1), **ARGUMENTS)
    np.testing.assert_array_equal(SimpleITK.GetArrayFromImage(after), expected)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_ome_zarr(tmp_path: Path, version: str) -> None:
    """Axes, scales, channels and settings of a viewer are what the library of the format reads."""
    from ome_zarr.io import parse_url  # takes seconds
    from ome_zarr.reader import Reader

    names = tmp_path / "in.zarr", tmp_path / "out.zarr"
    pixels = np.ascontiguousarray(stack().swapaxes(0, 1))
    write_ome_zarr(names[0], pixels, version)
    assert "spacing 2 : 1 : 1 (z : y : x, from the file)" in denoised(*names)
    (old,), (new,) = (list(Reader(parse_url(name))()) for name in names)
    assert {"axes", "coordinateTransformations", "channel_names", "contrast_limits"} <= set(
        old.metadata
    )
    assert new.metadata == old.metadata
    assert [level.shape for level in new.data] == [level.shape for level in old.data]
    expected = denoise(pixels, axes="CZYX", spacing=(2, 1, 1), **ARGUMENTS)
    np.testing.assert_array_equal(np.asarray(new.data[0]), expected)


def write_ome_zarr(path: Path, pixels: NDArray[Any], version: str) -> None:
    """Write (channel, slice, row, column) as a pyramid of two levels."""
    axes = [{"name": "c", "type": "channel"}]
    axes += [{"name": letter, "type": "space", "unit": "micrometer"} for letter in "zyx"]
    scales = [[1, 0.4, 0.2, 0.2], [1, 0.4, 0.4, 0.4]]
    image: dict[str, Any] = {"version": version, "name": "embryo", "axes": axes}
    image["datasets"] = [
        {"path": f"s{n}", "coordinateTransformations": [{"type": "scale", "scale": scale}]}
        for n, scale in enumerate(scales)
    ]
    window = {"start": 20, "end": 200, "min": 0, "max": 400}
    channels = [
        {"label": name, "color": colour, "window": window, "active": True}
        for name, colour in (("DAPI", "0000FF"), ("GFP", "00FF00"))
    ]
    about: dict[str, Any] = {
        "multiscales": [image],
        "omero": {"version": version, "channels": channels},
    }
    group = zarr.open_group(path, mode="w", zarr_format=2 if version == "0.4" else 3)
    group.attrs.update(about if version == "0.4" else {"ome": {"version": version, **about}})
    group.create_array("s0", data=pixels)
    group.create_array("s1", data=np.ascontiguousarray(pixels[..., ::2, ::2]))
