"""Scientific data before and after: masks, grey ranges, arrays and pictures, row by row.

    python experiments/before_and_after.py --old OLD/.venv/bin/python
        [--json results/before-and-after.json]

``OLD/.venv/bin/python`` is an interpreter with another version of the package, for the tables in
docs/masks.md and docs/data.md that of the commit 185952b; for the rows with xarray and dask it
needs both. Each row runs the same lines in both, on generated data or the cameraman of scikit-image
(CC0); an option or argument that the old package does not have is left out there. ``pytest
tests/tools/test_before_and_after.py`` runs all rows at a small size.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from integrodiff import denoise

Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = dict[str, float]

LEVEL = 20.0
FULL = 256
"""Side of the images in pixels."""

HU = -1000.0, 4.0
"""Hounsfield units of black, and of a grey level."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes
    ----------
    name : str
        The data.
    run : callable
        Takes a side in pixels and a folder; returns numbers, or a text.
    is_good : callable
        Whether a result is what is promised.
    """

    name: str
    run: Callable[[int, Path], Numbers | str]
    is_good: Callable[[Any], bool]


# ---- images ----


def clean_image(side: int) -> Floats:
    """Return a part of the cameraman: head, camera and sky."""
    from skimage.data import camera

    image: Floats = camera()[40 : 40 + side, 130 : 130 + side].astype(np.float64)
    return image


def noisy_image(side: int, level: float = LEVEL) -> tuple[Floats, Floats]:
    """Return an image with noise, and without."""
    clean = clean_image(side)
    return clean + np.random.default_rng(0).normal(0, level, clean.shape), clean


def scattered(side: int, share: float) -> NDArray[np.bool_]:
    """Return a mask that is False at single pixels and in a stripe."""
    mask = np.random.default_rng(1).random((side, side)) > share / 2
    mask[:, : round(side * share / 2)] = False
    return mask


def disc(side: int) -> NDArray[np.bool_]:
    """Return a mask that is True in a disc."""
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    return np.asarray(np.hypot(y, x) < 0.42 * side)


def psnr(image: Any, clean: Floats, mask: NDArray[np.bool_] | None = None) -> float:
    """Return the PSNR of valid pixels for the range 255."""
    difference = np.asarray(image, np.float64) - clean
    valid = difference if mask is None else difference[mask]
    return float(10 * np.log10(255**2 / np.mean(valid**2)))


def run_command(*words: object) -> tuple[int, str]:
    """Run the command line; leave out options that it does not have, such as ``--nodata 0``."""
    from typer.testing import CliRunner

    from integrodiff.cli import app

    texts = [str(word) for word in words]
    wide = {"COLUMNS": "300", "NO_COLOR": "1"}
    runner = CliRunner()
    known = runner.invoke(app, [texts[0], "--help"], env=wide).stdout
    for option in [text for text in texts if text.startswith("--") and text not in known]:
        start = texts.index(option)
        end = start + 1
        while end < len(texts) and not texts[end].startswith("--"):
            end += 1
        del texts[start:end]
    result = runner.invoke(app, texts, env=wide)
    return result.exit_code, result.output


def failure(output: str) -> str:
    """Return the message of a command that failed."""
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    text = lines[-1].removeprefix("error: ").split(": ", 1)[-1]
    return f"refused: {re.sub(r'[^ ]*/', '', text)[:90]}"


# ---- masks ----


def measured(result: Any, image: Any, clean: Floats, mask: NDArray[np.bool_]) -> Numbers:
    """Return the PSNR of valid pixels, and the number and size of changes at invalid ones."""
    result = np.asarray(result)
    same = (result == image) | (np.isnan(result) & np.isnan(image))
    changed = ~same & ~mask
    finite = np.abs(np.where(changed, np.nan_to_num(result) - np.nan_to_num(image), 0.0))
    return {
        "PSNR": psnr(result, clean, mask),
        "changed": float(changed.sum()),
        "by": float(finite.max()),
    }


def good_mask(found: Any) -> bool:
    """Whether noise was removed, and no invalid pixel changed."""
    return isinstance(found, dict) and found["PSNR"] > 25 and found["changed"] == 0


def _nan(side: int, _: Path) -> Numbers:
    (noisy, clean), mask = noisy_image(side), scattered(side, 0.05)
    image = np.where(mask, noisy, np.nan).astype(np.float32)
    return measured(denoise(image, LEVEL), image, clean, mask)


def _masked_array(side: int, _: Path) -> Numbers:
    (noisy, clean), mask = noisy_image(side), scattered(side, 0.05)
    image = np.ma.MaskedArray(np.where(mask, noisy, 0).astype(np.float32), mask=~mask)
    result = denoise(image, LEVEL)
    return measured(np.ma.getdata(result), image.data, clean, mask)


def _dead(side: int, _: Path) -> Numbers:
    noisy, clean = noisy_image(side)
    mask = np.random.default_rng(1).random(clean.shape) > 0.01
    image = np.where(mask, np.rint(noisy.clip(0)), 65535).astype(np.uint16)
    more: dict[str, Any] = {"mask": mask} if _takes("mask") else {}
    return measured(denoise(image, LEVEL, **more), image, clean, mask)


def _geotiff(side: int, folder: Path) -> Numbers | str:
    import tifffile

    (noisy, clean), mask = noisy_image(side), scattered(side, 0.05)
    image = np.where(mask, np.rint(noisy), -9999).astype(np.int16)
    tags = [(42113, "s", 0, "-9999", True)]
    tifffile.imwrite(folder / "scene.tif", image, extratags=tags)
    code, output = run_command(
        "denoise", folder / "scene.tif", folder / "clean.tif", "--sigma", LEVEL
    )
    if code:
        return failure(output)
    return measured(tifffile.imread(folder / "clean.tif"), image, clean, mask)


def _skull(side: int, folder: Path) -> Numbers | str:
    import nibabel

    (noisy, clean), mask = noisy_image(side), disc(side)
    image = np.where(mask, np.rint(noisy).clip(1), 0).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(image.T, np.eye(4)), folder / "brain.nii")
    code, output = run_command(
        *("denoise", folder / "brain.nii", folder / "clean.nii", "--sigma", LEVEL, "--nodata", 0)
    )
    if code:
        return failure(output)
    saved: Any = nibabel.load(folder / "clean.nii")
    return measured(np.asarray(saved.dataobj).T, image, clean, mask)


def _padding(side: int, folder: Path) -> Numbers | str:
    import pydicom

    (noisy, clean), mask = noisy_image(side), disc(side)
    image = np.where(mask, np.rint(noisy), -2000).astype(np.int16)
    write_dicom(folder / "slice.dcm", image, padding=-2000)
    code, output = run_command(
        "denoise", folder / "slice.dcm", folder / "clean.dcm", "--sigma", LEVEL
    )
    if code:
        return failure(output)
    return measured(pydicom.dcmread(folder / "clean.dcm").pixel_array, image, clean, mask)


def _estimated(side: int, _: Path) -> Numbers:
    noisy, clean = noisy_image(side)
    mask = np.ones(clean.shape, np.bool_)
    mask[side // 2 :] = False
    image = np.where(mask, noisy, 0).astype(np.float32)
    more: dict[str, Any] = {"mask": mask} if _takes("mask") else {}
    return measured(denoise(image, data_range=255, **more), image, clean, mask)


def write_dicom(path: Path, image: NDArray[np.int16], padding: int | None = None) -> None:
    """Write a CT slice."""
    from pydicom import Dataset, dcmwrite
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = CTImageStorage
    uid = generate_uid(entropy_srcs=[path.name])
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid
    dataset.StudyInstanceUID = dataset.SeriesInstanceUID = uid
    dataset.Modality, dataset.PhotometricInterpretation = "CT", "MONOCHROME2"
    dataset.Rows, dataset.Columns = image.shape
    dataset.SamplesPerPixel = dataset.PixelRepresentation = 1
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit = 15
    dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = 1, 0, "HU"
    if padding is not None:
        dataset.PixelPaddingValue = padding
    dataset.PixelData = image.astype("<i2").tobytes()
    dcmwrite(path, dataset, enforce_file_format=True)


def _takes(argument: str) -> bool:
    """Whether ``denoise`` has an argument."""
    from inspect import signature

    return argument in signature(denoise).parameters


MASKS = (
    Row("5 % NaN, float32", _nan, good_mask),
    Row("GeoTIFF, 5 % nodata -9999 by its tag", _geotiff, good_mask),
    Row("skull-stripped MRI, NIfTI, zeros around (`--nodata 0`)", _skull, good_mask),
    Row("CT, DICOM, padding value -2000 around", _padding, good_mask),
    Row("`numpy.ma`, 5 % masked", _masked_array, good_mask),
    Row("1 % dead pixels of 65535 (`mask=`)", _dead, good_mask),
    Row("half of the image empty, noise estimated (`mask=`)", _estimated, good_mask),
)


# ---- grey range ----


def _in_unit(
    black: float, factor: float, dtype: str, *, sigma_given: bool = True
) -> Callable[[int, Path], Numbers | str]:
    def run(side: int, _: Path) -> Numbers | str:
        noisy, clean = noisy_image(side)
        values = black + factor * noisy
        kind = np.dtype(dtype)
        image = (np.rint(values) if kind.kind in "iu" else values).astype(kind)
        sigma = LEVEL * factor if sigma_given else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = denoise(image, sigma, as_float=True)
            except ValueError as error:
                return f"refused: {str(error).split(':')[0]}"
        ranges = 255 * factor * np.geomspace(0.06, 4, 9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned = [denoise(image, sigma, as_float=True, data_range=span) for span in ranges]
        images = [(np.asarray(part, np.float64) - black) / factor for part in (result, *tuned)]
        found = [psnr(part, clean) for part in images]
        return {"PSNR": found[0], "best": max(found), "warnings": float(len(caught))}

    return run


def good_range(found: Any) -> bool:
    """Whether the result is close to the best of nine data ranges, without a warning."""
    return (
        isinstance(found, dict) and found["PSNR"] > found["best"] - 0.5 and found["warnings"] == 0
    )


RANGES = (
    Row("range of 8 bits, float32", _in_unit(0, 1, "float32"), good_range),
    Row("range of 16 bits, int32", _in_unit(0, 257, "int32"), good_range),
    Row("range of 16 bits, int32, a tenth of it used", _in_unit(400, 25.7, "int32"), good_range),
    Row("range of 16 bits, int32, a fiftieth of it used", _in_unit(400, 5.14, "int32"), good_range),
    Row("Hounsfield units, int16", _in_unit(*HU, "int16"), good_range),
    Row("kelvin, float32", _in_unit(280, 0.1, "float32"), good_range),
    Row("reflectance, float32 in [0, 0.3]", _in_unit(0, 0.3 / 255, "float32"), good_range),
    Row("float64, times 1e-6", _in_unit(0, 1e-6, "float64"), good_range),
    Row("float64, times 1e6", _in_unit(0, 1e6, "float64"), good_range),
    Row(
        "kelvin, noise level estimated",
        _in_unit(280, 0.1, "float32", sigma_given=False),
        good_range,
    ),
)


# ---- arrays ----


def _kind(result: Any) -> str:
    """Return the type of a result with its library."""
    kind = type(result)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def _answer(call: Callable[[], Any]) -> str:
    """Return the type of a result, or the first words of an error."""
    try:
        return _kind(call())
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {str(error)[:110]}"


def _xarray(side: int, _: Path) -> str:
    import xarray

    frames = np.stack([noisy_image(side)[0]] * 2)
    array = xarray.DataArray(
        frames,
        dims=("time", "lat", "lon"),
        coords={"time": [3, 4]},
        attrs={"units": "K"},
    )

    def call() -> Any:
        result: Any = denoise(array, LEVEL, data_range=255)
        if isinstance(result, xarray.DataArray):
            assert result.attrs == array.attrs  # noqa: S101
            assert result.coords.equals(array.coords)  # noqa: S101
        return result

    return _answer(call)


def _dask(side: int, _: Path) -> str:
    import dask.array

    arrays: Any = dask.array
    image = arrays.from_array(noisy_image(side)[0], chunks=side // 2)
    return _answer(lambda: denoise(image, LEVEL, data_range=255))


def _torch(side: int, _: Path) -> str:
    import torch

    return _answer(lambda: denoise(torch.from_numpy(noisy_image(side)[0]), LEVEL, data_range=255))


class Exchanged:
    """An array of a library of its own, which exchanges data by DLPack alone."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **how: Any) -> Any:
        return self.data.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()  # type: ignore[no-any-return]

    def __array_namespace__(self, **_: Any) -> type[Exchanged]:
        return Exchanged

    @staticmethod
    def from_dlpack(array: Any) -> Exchanged:
        """Return an array of this library."""
        return Exchanged(array)


def _dlpack(side: int, _: Path) -> str:
    image: Any = Exchanged(noisy_image(side)[0])
    return _answer(lambda: denoise(image, LEVEL, data_range=255)).replace("__main__", "own")


def _pillow(side: int, _: Path) -> str:
    from PIL import Image

    grey = noisy_image(side)[0].clip(0, 255).astype(np.uint8)
    image: Any = Image.fromarray(np.stack([grey] * 3, axis=-1))
    return _answer(lambda: denoise(image, LEVEL))


def _rgba(side: int, _: Path) -> str:
    grey = noisy_image(side)[0].clip(0, 255).astype(np.uint8)
    alpha = (np.indices(grey.shape).sum(axis=0) % 2 * 255).astype(np.uint8)
    image = np.stack([grey, grey, grey, alpha], axis=-1)
    result = denoise(image, LEVEL, channel_axis=-1)
    return f"{np.mean(result[..., 3] != alpha):.0%} of alpha changed"


def _bare(side: int, _: Path) -> str:
    return _answer(lambda: denoise(np.stack([noisy_image(side)[0]] * 3), LEVEL))


def _four_axes(side: int, _: Path) -> str:
    stack = np.stack([np.stack([noisy_image(side)[0]] * 2)] * 2)
    more: dict[str, Any] = {"axes": "TCYX"} if _takes("axes") else {}
    return _answer(lambda: denoise(stack, LEVEL, data_range=255, **more))


ARRAYS = (
    Row("`xarray.DataArray`, time, lat, lon", _xarray, lambda found: found == "xarray.DataArray"),
    Row("dask array", _dask, lambda found: "integrodiff.dask.denoise" in found),
    Row("PyTorch tensor", _torch, lambda found: found == "torch.Tensor"),
    Row("array that supports DLPack only", _dlpack, lambda found: "Exchanged" in found),
    Row("Pillow image, RGB", _pillow, lambda found: found == "PIL.Image"),
    Row("RGBA array", _rgba, lambda found: found == "0% of alpha changed"),
    Row("array of three axes", _bare, lambda found: "ambiguous" in found),
    Row('array of four axes, `axes="TCYX"`', _four_axes, lambda found: found == "numpy.ndarray"),
)


# ---- pictures ----


@contextmanager
def figures() -> Any:
    """Collect the figures that are saved in the block, and save them small."""
    from matplotlib.figure import Figure

    found: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, target: Any, **_: Any) -> None:
        found.append(figure)
        save(figure, target, format="png", dpi=20)

    Figure.savefig = keep  # type: ignore[assignment,method-assign]
    try:
        yield found
    finally:
        Figure.savefig = save  # type: ignore[method-assign]


def _volume(side: int, folder: Path) -> Path:
    """Write a CT volume in Hounsfield units whose first slice is air; return its path."""
    import nibabel

    noisy, _ = noisy_image(side)
    air = np.random.default_rng(2).normal(0, LEVEL, noisy.shape)
    slices = np.stack([air, noisy, noisy, noisy, air])
    image = np.rint(HU[0] + HU[1] * slices).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(image.T, np.eye(4)), folder / "scan.nii")
    return folder / "scan.nii"


def _explained(*words: object) -> Any:
    """Return the figure of ``explain``, or why there is none."""
    with figures() as found:
        code, output = run_command("explain", *words)
    return failure(output) if code else found[0]


def _shown(figure: Any) -> tuple[Floats, tuple[float, float]]:
    """Return the values of the denoised image of a figure, of all its planes, and its window."""
    from matplotlib.axes import Axes

    after = (axes for axes in figure.findobj(Axes) if axes.get_title().startswith("after"))
    images = next(after).get_images()
    values = np.concatenate([np.ma.getdata(image.get_array()).ravel() for image in images])
    return values, images[0].get_clim()


def _ct(side: int, folder: Path) -> str:
    figure = _explained(
        *(_volume(side, folder), "--output", folder / "e.png", "--sigma", LEVEL * HU[1])
    )
    if isinstance(figure, str):
        return figure
    values, (low, high) = _shown(figure)
    return f"{np.mean(values <= low):.0%} of the result black, {np.mean(values >= high):.0%} white"


def _units(side: int, folder: Path) -> str:
    """Collect what a figure says of the noise level: title, histogram and curve."""
    from matplotlib.text import Text

    page = ("--at", "Z=3") if "--at" in run_command("explain", "--help")[1] else ("--page", 3)
    figure = _explained(
        *(_volume(side, folder), "--output", folder / "e.png", "--sigma", LEVEL * HU[1], *page)
    )
    if isinstance(figure, str):
        return figure
    texts = " | ".join(text.get_text() for text in figure.findobj(Text))
    levels = re.findall(r"(?:noise level|sigma|noise of) ([0-9.]+)", texts)
    levels += [
        f"{line.get_ydata()[0]:.3g}"
        for axes in figure.axes
        for line in axes.get_lines()
        if line.get_label() == "noise level"
    ]
    return ", ".join(dict.fromkeys(f"{float(level):.3g}" for level in levels))


def _with_nan(side: int, folder: Path) -> str:
    import tifffile

    image = np.where(scattered(side, 0.05), noisy_image(side)[0], np.nan).astype(np.float32)
    tifffile.imwrite(folder / "nan.tif", image)
    figure = _explained(
        *(folder / "nan.tif", "--output", folder / "e.png", "--sigma", LEVEL, "--data-range", 255)
    )
    return figure if isinstance(figure, str) else "drawn, invalid pixels grey"


def _pair(side: int, folder: Path, pixels: Floats, **how: Any) -> list[Path]:
    """Write an image with noise and one without, as TIFF files."""
    import tifffile

    noise = np.random.default_rng(0).normal(0, LEVEL, pixels.shape)
    names = [folder / "before.tif", folder / "after.tif"]
    for name, image in zip(names, (pixels + noise, pixels), strict=True):
        tifffile.imwrite(name, np.rint(image).astype(np.int16), **how)
    return names


def _compared(folder: Path, *words: object) -> str:
    code, output = run_command("compare", *words, "--output", folder / "c.png", "--overwrite")
    return failure(output) if code else "drawn"


def _bands(side: int, folder: Path) -> str:
    clean = clean_image(side)
    scene = np.stack([clean, clean, clean / 2, clean * 2], axis=-1)
    names = _pair(side, folder, scene, photometric="minisblack", planarconfig="contig")
    return _compared(folder, *names, "--bands", "4,3,2")


def _window(side: int, folder: Path) -> str:
    import tifffile
    from PIL import Image

    flat = np.full((side, side), 40.0)
    flat[: side // 2] = 100.0
    flat[:5] = 3000.0
    names = _pair(side, folder, flat)
    found = _compared(folder, *names, "--window", -160, 240)
    if found != "drawn":
        return found
    picture = np.asarray(Image.open(folder / "c.png").convert("L"))
    tissue = tifffile.imread(names[1])
    step = np.unique(picture[picture < 250], return_counts=True)
    common = sorted(step[0][np.argsort(step[1])[-2:]].tolist())
    assert tissue.shape == (side, side)  # noqa: S101
    return f"tissues differ by {common[-1] - common[0]} of 255"


def _orientation(side: int, folder: Path) -> str:
    from PIL import Image

    wide = clean_image(side)[: side // 2].astype(np.uint8)
    exif = Image.Exif()
    exif[0x112] = 6
    Image.fromarray(wide).save(folder / "photo.png", exif=exif)
    found = _compared(folder, folder / "photo.png", folder / "photo.png")
    if found != "drawn":
        return found
    height, width = np.asarray(Image.open(folder / "c.png")).shape[:2]
    return "upright" if height > width * 0.6 else "on its side"


def _mask_option(side: int, folder: Path) -> str:
    from PIL import Image

    mask = disc(side)
    Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "valid.png")
    names = _pair(side, folder, clean_image(side))
    found = _compared(folder, *names, "--mask", folder / "valid.png")
    if found != "drawn":
        return found
    picture = np.asarray(Image.open(folder / "c.png").convert("RGB")).astype(int)
    coloured = np.ptp(picture, axis=-1) > 10
    yellow = picture[..., 0] > picture[..., 2] + 60
    greyed = float((coloured & ~yellow).mean())
    return "invalid pixels greyed out" if greyed > 0.05 else "drawn as data"


def _in_python(side: int, _: Path) -> str:
    import integrodiff

    noisy, clean = noisy_image(side)
    try:
        pictures = [
            integrodiff.compare(noisy, clean),
            integrodiff.explain(noisy, LEVEL, model="pm"),
        ]
    except AttributeError as error:
        return f"AttributeError: {error}"
    return "figures" if all(hasattr(each, "savefig") for each in pictures) else "something else"


PICTURES = (
    Row("`explain` of a CT volume", _ct, lambda found: found.startswith(("0%", "1%"))),
    Row("noise levels in the figure of `explain`, in HU: 80", _units, lambda found: found == "80"),
    Row("`explain` with NaN", _with_nan, lambda found: found.startswith("drawn")),
    Row(
        "`compare --window -160 240` of two tissues, 40 and 100 HU",
        _window,
        lambda found: found.startswith("tissues differ by 3"),
    ),
    Row("`compare --bands 4,3,2` of a scene", _bands, lambda found: found == "drawn"),
    Row("`compare` of a photograph held upright", _orientation, lambda found: found == "upright"),
    Row("`compare --mask valid.png`", _mask_option, lambda found: "greyed" in found),
    Row("`integrodiff.compare`, `integrodiff.explain`", _in_python, lambda f: f == "figures"),
)

TABLES = {
    "masks": MASKS,
    "grey range": RANGES,
    "arrays": ARRAYS,
    "pictures": PICTURES,
}


def answer(row: Row, side: int, folder: Path) -> Numbers | str:
    """Run a row; an error of the package is an answer, too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return row.run(side, folder)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:90]}"
    except ImportError as error:
        return f"not tried: {error}"


def answers(side: int) -> dict[str, dict[str, Numbers | str]]:
    """Run all rows in this interpreter."""
    found: dict[str, dict[str, Numbers | str]] = {}
    for table, rows in TABLES.items():
        for row in rows:
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(table, {})[row.name] = answer(row, side, Path(folder))
    return found


def _words(table: str, found: Numbers | str) -> str:
    """Return a cell of a table."""
    if isinstance(found, str):
        return found.replace("|", "\\|")
    if table == "masks":
        count = int(found["changed"])
        changed = f"{count} changed, by up to {found['by']:.5g}" if count else "none changed"
        return f"{found['PSNR']:.2f} dB, {changed}"
    warned = f", {int(found['warnings'])} warning" if found["warnings"] else ""
    return f"{found['PSNR']:.2f} dB{warned}"


def markdown(results: dict[str, Any]) -> str:
    """Return all tables."""
    parts = []
    for table, rows in TABLES.items():
        best = table == "grey range"
        columns = ["data", "before", "after"] + (["best of nine data ranges"] if best else [])
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for row in rows:
            cells = [_words(table, results[when][table][row.name]) for when in ("before", "after")]
            if best:
                after = results["after"][table][row.name]
                cells.append(f"{after['best']:.2f} dB")
            lines.append(f"| {' | '.join([row.name, *cells])} |")
        parts.append(f"### {table}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    """Run all rows in both interpreters, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--old", type=Path, help="interpreter with the old package")
    parser.add_argument("--json", type=Path, help="file for the answers")
    parser.add_argument("--run", action="store_true", help="print the answers of this interpreter")
    parser.add_argument("--size", type=int, default=FULL, help="side of the images")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(answers(options.size)))
        return
    if options.old is None:
        parser.error("--old is needed, an interpreter with the package to compare with")
    command = [options.old, __file__, "--run", "--size", str(options.size)]
    before = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    results = {"before": json.loads(before), "after": answers(options.size)}
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(markdown(results))
    wrong = [
        row.name
        for table, rows in TABLES.items()
        for row in rows
        if not row.is_good(results["after"][table][row.name])
    ]
    if wrong:
        sys.exit(f"not as promised: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
