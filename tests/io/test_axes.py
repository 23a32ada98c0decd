"""Axes and spacing: what files declare is what readers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from foreign_files import FOLDER
from hypothesis import given
from hypothesis import strategies as st
from image_samples import values

from integrodiff.errors import ImageFileError
from integrodiff.io import ImageFile, ImageHeader, Spacing, open_image, read_image, write_image
from integrodiff.io.access import decoding
from integrodiff.io.formats.ome_xml import OmeError, ome_axes
from integrodiff.io.spacing import declared
from integrodiff.layout import Layout

GREY: dict[str, Any] = {"photometric": "minisblack"}

# ---- the model ----


def test_axes_of_a_header() -> None:
    header = ImageHeader(shape=(2, 3, 5, 7, 3), dtype=np.dtype("u1"), axes="TCYXS", has_alpha=True)
    assert header.layout == Layout("TCYXS", (2, 3, 5, 7, 3))
    assert (header.pages, header.size, header.kind) == (6, (5, 7), "RGBA")
    assert header.nbytes == 6 * 5 * 7 * 4
    for axes in ("TYXC", "XYZ"):
        with pytest.raises(ValueError, match="must end in YX"):
            ImageHeader(shape=(2, 3, 4, 5)[: len(axes)], dtype=np.dtype("u1"), axes=axes)
    assert ImageFile(pixels=values(2, 4, 5, 7)).axes == "QQYX"


def test_planes_are_pages_without_alpha(tmp_path: Path) -> None:
    samples = values(2, 5, 7, 4)
    np.save(tmp_path / "in.npy", samples)
    with open_image(tmp_path / "in.npy") as image:
        assert image.layout == Layout("QYXS", (2, 5, 7, 3))
        assert image.dtype == np.uint8
        for _ in range(2):
            assert np.array_equal(np.stack(list(image.planes())), samples[..., :3])


# ---- TIFF ----


@pytest.mark.parametrize(
    ("shape", "options", "axes"),
    [
        ((2, 3, 5, 7), {"imagej": True, "metadata": {"axes": "ZCYX"}}, "ZCYX"),
        ((2, 1, 3, 5, 7), {"imagej": True, "metadata": {"axes": "TZCYX"}}, "TCYX"),
        ((4, 5, 7), {"metadata": {"axes": "TYX"}}, "TYX"),
        ((4, 5, 7), {}, "QYX"),
        ((4, 5, 7), {"metadata": None}, "QYX"),
        ((2, 4, 5, 7), {"metadata": {"axes": "PZYX"}}, "QZYX"),
        ((2, 2, 5, 7), {"ome": True, "metadata": {"axes": "CZYX"}}, "CZYX"),
        ((3, 1, 7), {"metadata": {"axes": "ZYX"}}, "ZYX"),
        ((1, 3, 2, 5, 7), {"ome": True, "metadata": {"axes": "TCZYX"}}, "CZYX"),
    ],
)
def test_axes_of_tiff(
    tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any], axes: str
) -> None:
    samples = values(*shape, dtype="uint16")
    tifffile.imwrite(tmp_path / "in.tif", samples, **GREY, **options)
    image = read_image(tmp_path / "in.tif")
    assert (image.axes, image.notes) == (axes, ())
    assert np.array_equal(image.pixels, samples.reshape(image.pixels.shape))


@pytest.mark.parametrize(
    "axes", ["TYX", "ZYX", "CZYX", "ZCYX", "TCZYX", "CTZYX", "TYXS", "CZYXS", "TZYX"]
)
def test_axes_are_written_when_the_format_changes(tmp_path: Path, axes: str) -> None:
    lengths = {"T": 2, "C": 4, "Z": 5, "Y": 6, "X": 7, "S": 3}
    samples = values(*(lengths[letter] for letter in axes), dtype="float32")
    spacing = {"X": Spacing(0.1, "µm"), "Y": Spacing(0.2, "Å"), "Z": Spacing(3.0, "inch")}
    spacing = {letter: s for letter, s in spacing.items() if letter in axes}
    if "T" in axes:
        spacing["T"] = Spacing(40.0, "ms")
    image = ImageFile(pixels=samples, axes=axes, spacing=spacing)
    assert write_image(tmp_path / "a.tif", image) == ()
    found = read_image(tmp_path / "a.tif")
    assert (found.axes, found.spacing, found.notes) == (axes, spacing, ())
    np.testing.assert_array_equal(found.pixels, samples)
    with tifffile.TiffFile(tmp_path / "a.tif") as tif:
        assert tif.is_ome
        (series,) = tif.series
        assert (series.axes, series.shape) == (axes, samples.shape)
        np.testing.assert_array_equal(series.asarray(), samples)
    assert write_image(tmp_path / "a.npy", image) == (
        f"not carried over to NPY: what the axes {axes} mean",
    )


def test_axes_beside_alpha(tmp_path: Path) -> None:
    image = ImageFile(pixels=values(2, 5, 7, 3), axes="TYXS", alpha=values(2, 5, 7))
    write_image(tmp_path / "a.tif", image)
    found = read_image(tmp_path / "a.tif")
    assert (found.axes, found.notes) == ("TYXS", ())
    np.testing.assert_array_equal(found.alpha, image.alpha)


def test_axes_that_ome_has_no_words_for(tmp_path: Path) -> None:
    for axes, dtype in (("QYX", "uint8"), ("TYX", "int64"), ("YX", "uint8")):
        image = ImageFile(pixels=values(*(2, 3, 5, 7)[-len(axes) :], dtype=dtype), axes=axes)
        write_image(tmp_path / f"{axes}.tif", image)
        assert read_image(tmp_path / f"{axes}.tif").axes == axes.replace("T", "Q")
    unknown = {"X": Spacing(0.5), "Y": Spacing(0.5, "pc")}
    image = ImageFile(pixels=values(2, 5, 7), axes="TYX", spacing=unknown)
    write_image(tmp_path / "b.tif", image)
    assert read_image(tmp_path / "b.tif").spacing == {}


def test_colours_in_an_ome_file_are_samples(tmp_path: Path) -> None:
    samples = values(2, 4, 5, 7, 3)
    tifffile.imwrite(tmp_path / "in.tif", samples, ome=True, metadata={"axes": "TZYXS"})
    assert read_image(tmp_path / "in.tif").axes == "TZYXS"


def test_a_library_without_squeezed_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tifffile from 2026.5 on these methods are gone."""
    for name in ("get_axes", "get_shape"):
        monkeypatch.delattr(tifffile.TiffPageSeries, name, raising=False)
    tifffile.imwrite(tmp_path / "in.tif", values(4, 5, 7), **GREY)
    assert read_image(tmp_path / "in.tif").axes == "QYX"


def pixels(order: str = "XYCZT", data: str = "<TiffData/>", **sizes: int) -> str:
    lengths = {"X": 7, "Y": 5, "Z": 2, "C": 3, "T": 2} | sizes
    attributes = " ".join(f'Size{letter}="{length}"' for letter, length in lengths.items())
    return f'<Pixels DimensionOrder="{order}" {attributes}>{data}</Pixels>'


def ome(content: str, start: str = "") -> str:
    return f'{start}<OME UUID="urn:a"><Image>{content}</Image></OME>'


def single_pages(order: str) -> str:
    """One element for each page, which puts the pages into an order of axes, slowest first."""
    lengths = {"Z": 2, "C": 3, "T": 2}
    elements = []
    for page, index in enumerate(np.ndindex(*(lengths[letter] for letter in order))):
        at = " ".join(f'First{a}="{i}"' for a, i in zip(order, index, strict=True))
        elements.append(f'<TiffData IFD="{page}" {at}><UUID FileName="x">urn:a</UUID></TiffData>')
    return "".join(reversed(elements))


def axes_of(text: str) -> str:
    found = ome_axes(text, 12, (5, 7, 1)).axes
    assert all(length == {"Z": 2, "C": 3, "T": 2}[letter] for letter, length in found)
    return "".join(letter for letter, _ in found)


@pytest.mark.parametrize("order", ["XYCZT", "XYCTZ", "XYZCT", "XYZTC", "XYTCZ", "XYTZC"])
def test_order_of_dimensions_in_ome_xml(order: str) -> None:
    slowest_first = order[:1:-1]
    assert axes_of(ome(pixels(order))) == slowest_first
    assert axes_of(ome(pixels(order, data=""))) == slowest_first
    assert axes_of(ome(pixels("XYCZT", single_pages(slowest_first)))) == slowest_first
    halves = '<TiffData IFD="0" PlaneCount="6"/><TiffData IFD="6" PlaneCount="6" First{}="1"/>'
    if (slowest := slowest_first[0]) != "C":
        assert axes_of(ome(pixels(order, halves.format(slowest)))) == slowest_first


WRONG_XML = {
    "cut": (ome(pixels())[:-20], "is damaged"),
    "document type": (ome(pixels(), '<!DOCTYPE x [<!ENTITY a "b">]>'), "document type"),
    "two images": (ome(pixels() * 2), "describes 2 images"),
    "no image": (ome(""), "describes 0 images"),
    "elsewhere": ("<OME><BinaryOnly/></OME>", "in another file"),
    "other size": (ome(pixels(X=8)), "another size"),
    "other count": (ome(pixels(T=5)), "describes 30 pages, and the file has 12"),
    "no number": (ome(pixels(T=-5)), "no usable SizeT"),
    "other samples": (
        ome(pixels(data='<Channel SamplesPerPixel="3"/>')),
        "another number of samples",
    ),
    "order": (ome(pixels("XYQQQ")), "unknown order"),
    "far": (ome(pixels(data='<TiffData FirstZ="9"/>')), "outside of the image"),
    "many": (ome(pixels(data='<TiffData PlaneCount="2000000000"/>')), "outside of the file"),
    "missing": (ome(pixels(data='<TiffData IFD="0"/>')), "irregular order"),
    "twice": (
        ome(pixels(data='<TiffData IFD="0"/><TiffData/><TiffData IFD="0" FirstC="1"/>')),
        "irregular order",
    ),
    "set": (
        ome(pixels(data='<TiffData><UUID FileName="other.tif">urn:b</UUID></TiffData>')),
        "several files",
    ),
}


@pytest.mark.parametrize("name", WRONG_XML)
def test_ome_xml_that_does_not_fit(tmp_path: Path, name: str) -> None:
    text, message = WRONG_XML[name]
    with pytest.raises(OmeError, match=message):
        ome_axes(text, 12, (5, 7, 1))
    if not text.endswith("OME>"):
        return
    samples = values(12, 5, 7)
    tifffile.imwrite(tmp_path / "in.tif", samples, **GREY, description=text, metadata=None)
    image = read_image(tmp_path / "in.tif")
    assert image.axes == "QYX"
    assert "pages without a stated meaning" in image.notes[0]
    assert np.array_equal(image.pixels, samples)


@given(st.text(max_size=60), st.integers(0, 400))
def test_any_ome_xml_is_understood_or_not(text: str, place: int) -> None:
    whole = ome(pixels("XYCZT", single_pages("TZC")))
    try:
        found = ome_axes(whole[:place] + text + whole[place:], 12, (5, 7, 1))
    except OmeError:
        return
    assert np.prod([length for _, length in found.axes]) == 12


def test_no_other_file_of_a_data_set_is_opened(tmp_path: Path) -> None:
    uuids = ("urn:a", "urn:b")
    data = "".join(
        f'<TiffData IFD="0" FirstC="{i}"><UUID FileName="{i}.tif">{uuid}</UUID></TiffData>'
        for i, uuid in enumerate(uuids)
    )
    (tmp_path / "1.tif").mkdir()  # opening it would fail
    text = ome(pixels("XYZCT", data, Z=1, C=2, T=1))
    tifffile.imwrite(tmp_path / "0.tif", values(5, 7), description=text, metadata=None)
    image = read_image(tmp_path / "0.tif")
    assert image.axes == "YX"
    assert "a data set of several files" in image.notes[0]


# ---- the other formats ----


def ome_zarr(path: Path, samples: Any, axes: list[Any], **image: Any) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("0", data=samples)
    group.attrs["multiscales"] = [{"axes": axes, "datasets": [{"path": "0"}], **image}]
    return path


@pytest.mark.parametrize(
    ("axes", "letters"),
    [
        (list("cyx"), "CYX"),
        ([{"name": "c", "type": "channel"}, {"name": "y"}, {"name": "x"}], "CYX"),
        ([{"name": "dye", "type": "channel"}, {"name": "y"}, {"name": "x"}], "CYX"),
        ([{"name": "angle"}, {"name": "y"}, {"name": "x"}], "QYX"),
        (["t", "y", "x"], "TYX"),
    ],
)
def test_axes_of_ome_zarr(tmp_path: Path, axes: list[Any], letters: str) -> None:
    samples = values(2, 5, 7)
    image = read_image(ome_zarr(tmp_path / "in.zarr", samples, axes))
    assert image.axes == letters
    assert np.array_equal(image.pixels, samples)
    with pytest.raises(ImageFileError, match="save it with y and x last"):
        read_image(ome_zarr(tmp_path / "other.zarr", samples, [axes[1], axes[2], axes[0]]))


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((7, 5), "YX"), ((7, 5, 4), "ZYX"), ((7, 5, 1, 3), "TZYX"), ((7, 5, 4, 3, 2), "QTZYX")],
)
def test_axes_of_nifti(tmp_path: Path, shape: tuple[int, ...], axes: str) -> None:
    nibabel.save(nibabel.Nifti1Image(values(*shape), np.eye(4)), tmp_path / "in.nii")
    assert read_image(tmp_path / "in.nii").axes == axes


@pytest.mark.parametrize(
    ("pointer", "axes"), [(None, "QYX"), (0x00181063, "TYX"), (0x3004000C, "ZYX"), (0x1, "QYX")]
)
def test_axes_of_dicom(tmp_path: Path, pointer: int | None, axes: str) -> None:
    dataset = pydicom.dcmread(FOLDER / "explicit.dcm")
    frames = np.stack([dataset.pixel_array] * 2)
    dataset.NumberOfFrames, dataset.PixelData = 2, frames.tobytes()
    if pointer is not None:
        dataset.FrameIncrementPointer = pointer
    dataset.PixelSpacing = [0.5, 0.25]
    dataset.SliceThickness, dataset.SpacingBetweenSlices = 9, 3
    dataset.FrameTime = 40
    dataset.save_as(tmp_path / "in.dcm")
    image = read_image(tmp_path / "in.dcm")
    assert image.axes == axes
    expected = {"Y": Spacing(0.5, "mm"), "X": Spacing(0.25, "mm")}
    more = {"Z": Spacing(3, "mm"), "T": Spacing(40, "ms")}
    assert image.spacing == expected | {k: v for k, v in more.items() if k in axes}


# ---- spacing ----


def test_spacing_of_tiff(tmp_path: Path) -> None:
    path = tmp_path / "in.tif"
    samples = values(3, 5, 7)
    about = {"axes": "ZYX", "spacing": 0.5, "unit": "micron"}
    tifffile.imwrite(path, samples, imagej=True, resolution=(4, 2), metadata=about)
    micrometres = {"Z": Spacing(0.5, "µm"), "Y": Spacing(0.5, "µm"), "X": Spacing(0.25, "µm")}
    assert read_image(path).spacing == micrometres
    about = {"axes": "TYX", "PhysicalSizeX": 20, "PhysicalSizeXUnit": "nm", "TimeIncrement": 2}
    tifffile.imwrite(path, samples, ome=True, metadata=about, **GREY)
    assert read_image(path).spacing == {"X": Spacing(20, "nm"), "T": Spacing(2, "s")}
    tifffile.imwrite(path, samples[0], resolution=(1000, 500), resolutionunit="CENTIMETER")
    assert read_image(path).spacing == {"X": Spacing(0.001, "cm"), "Y": Spacing(0.002, "cm")}
    for resolution, unit in (((72, 72), "INCH"), ((118.11, 118.11), "CENTIMETER"), ((1, 1), None)):
        tifffile.imwrite(path, samples[0], resolution=resolution, resolutionunit=unit)
        assert read_image(path).spacing == {}


@pytest.mark.parametrize("unit", ["mm", None])
def test_spacing_of_nifti(tmp_path: Path, unit: str | None) -> None:
    image = nibabel.Nifti1Image(values(7, 5, 4, 2), np.diag([0.5, 0.25, 2, 1]))
    image.header.set_zooms((0.5, 0.25, 2, 0))
    if unit is not None:
        image.header.set_xyzt_units(unit, "sec")
    nibabel.save(image, tmp_path / "in.nii.gz")
    expected = {"X": Spacing(0.5, unit), "Y": Spacing(0.25, unit), "Z": Spacing(2, unit)}
    assert read_image(tmp_path / "in.nii.gz").spacing == expected


def test_spacing_of_ome_zarr(tmp_path: Path) -> None:
    axes = [{"name": "c"}, {"name": "y", "unit": "micrometer"}, {"name": "x"}]
    scales = [{"type": "scale", "scale": [1, 0.5, 0.25]}]
    datasets = [{"path": "0", "coordinateTransformations": scales}]
    path = ome_zarr(
        tmp_path / "in.zarr",
        values(2, 5, 7),
        axes,
        datasets=datasets,
        coordinateTransformations=[{"type": "scale", "scale": [1, 2, 2]}],
    )
    assert read_image(path).spacing == {"Y": Spacing(1, "µm"), "X": Spacing(0.5, None)}


def test_spacing_that_makes_no_sense_is_left_out() -> None:
    odd = [0, -1, float("nan"), float("inf"), "wide", None, [], 10**400]
    assert declared([("X", value, "mm") for value in odd], "YX") == {}
    assert declared([("X", 1, "pixel"), ("Z", 1, "mm")], "YX") == {}
    assert declared([("X", "2", "furlong"), ("Y", 2, None)], "YX") == {
        "X": Spacing(2, "furlong"),
        "Y": Spacing(2, None),
    }


def test_spacing_survives_in_memory(tmp_path: Path) -> None:
    image = ImageFile(pixels=values(5, 7), spacing={"X": Spacing(2, "mm")})
    assert image.with_pixels(image.pixels).header.spacing == {"X": Spacing(2, "mm")}
    write_image(tmp_path / "out.npy", image)


# ---- whose fault an error is ----


@pytest.mark.parametrize("error", [AttributeError, TypeError, NameError, ImportError])
def test_faults_of_the_program_are_not_blamed_on_the_file(error: type[Exception]) -> None:
    with pytest.raises(error), decoding(Path("in.tif")):
        raise error("the library has changed")


def test_errors_from_inside_a_library_count_if_they_are_known() -> None:
    with pytest.raises(ImageFileError, match="damaged"), decoding(Path("in"), TypeError):
        json.dumps(object())  # fails in the code of json


def test_a_changed_library_is_not_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tifffile.imwrite(tmp_path / "in.tif", values(5, 7))
    monkeypatch.delattr(tifffile.TiffPageSeries, "dataoffset")
    with pytest.raises(AttributeError, match="dataoffset"):
        read_image(tmp_path / "in.tif")


def test_a_full_disk_is_not_a_damaged_file() -> None:
    with pytest.raises(ImageFileError) as caught, decoding(Path("in.zarr")):
        raise OSError(28, "No space left on device")
    assert str(caught.value) == "in.zarr: cannot be read: No space left on device"


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, Spacing(1, "µm")),
        ({"spacing": 3, "zunit": "nm"}, Spacing(3, "nm")),
        ({"spacing": -0.5}, Spacing(0.5, "µm")),
        ({"unit": ""}, None),
    ],
)
def test_spacing_that_imagej_leaves_out(
    tmp_path: Path, more: dict[str, Any], found: Spacing | None
) -> None:
    about = {"axes": "ZYX", "unit": "micron", **more}
    about = {name: value for name, value in about.items() if value}
    tifffile.imwrite(
        *(tmp_path / "a.tif", values(3, 5, 7)), imagej=True, resolution=(5, 5), metadata=about
    )
    assert read_image(tmp_path / "a.tif").spacing.get("Z") == found


def test_units_of_imagej(tmp_path: Path) -> None:
    about = {"axes": "TYX", "finterval": 40, "tunit": "ms", "unit": "mm", "yunit": "nm"}
    tifffile.imwrite(
        *(tmp_path / "a.tif", values(3, 5, 7)), imagej=True, resolution=(5, 5), metadata=about
    )
    found = read_image(tmp_path / "a.tif").spacing
    assert found["T"] == Spacing(40, "ms")
    assert (found["X"], found["Y"]) == (Spacing(0.2, "mm"), Spacing(0.2, "nm"))


@pytest.mark.parametrize("axes", ["YX", "YXS"])
def test_spacing_of_one_plane_survives_in_tiff(tmp_path: Path, axes: str) -> None:
    spacing = {"Y": Spacing(0.5, "µm"), "X": Spacing(0.25, "µm")}
    image = ImageFile(pixels=values(*(5, 7, 3)[: len(axes)]), axes=axes, spacing=spacing)
    assert write_image(tmp_path / "a.tif", image) == ()
    found = read_image(tmp_path / "a.tif")
    assert (found.axes, dict(found.spacing)) == (axes, spacing)
