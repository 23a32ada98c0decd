"""Files as people have them, before and after: what ``integrodiff denoise`` makes of each.

    python experiments/formats_table.py [--old PYTHON] [--json results/formats.json]
        [--height 192] [--width 256] [--rows NAME ...]

Every row writes a noisy file from generated data, as other programs would, denoises it by the
command line, and looks at the result through another library or program. With ``--old`` the
interpreter of an older installation denoises the same files, which is the column "before". Rows
that need a program or package which is not there are left out, and named.

The PSNR is that of the pixels in the result; the noise has the level 15 of 255, 24.6 dB, unless a
row says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from integrodiff.io.formats.webp_quality import webp_quality
from integrodiff.viz.metrics import psnr

SIGMA = 15.0
_PYTHON = "python"
Denoise: TypeAlias = Callable[[list[str]], str | None]
"""Runs ``integrodiff denoise`` with these arguments; returns its message if it fails. If the first
argument is ``python``, the second is a program to run instead."""


@dataclass(frozen=True)
class Outcome:
    """What became of a file: in words, and whether it is as it should be."""

    words: str
    good: bool


@dataclass(frozen=True)
class Scene:
    """Generated data: a clean image in colour and the same with noise, of 8 bits."""

    clean: NDArray[np.uint8]
    noisy: NDArray[np.uint8]
    folder: Path

    def psnr(self, result: NDArray[Any], clean: NDArray[Any] | None = None) -> float:
        """Return the PSNR of a result."""
        expected = self.clean if clean is None else clean
        return psnr(result.astype(np.float64), expected.astype(np.float64), 255.0)


def scene(height: int, width: int, folder: Path) -> Scene:
    """Return a scene of smooth shades with sharp edges."""
    y, x = np.mgrid[:height, :width] / min(height, width)
    shade = 110 + 60 * np.sin(3 * x + 1) * np.cos(4 * y)
    disc = ((y - 0.5) ** 2 + (x - 0.6) ** 2 < 0.09) * 50.0
    bars = ((10 * (x + y)).astype(int) % 3 == 0) * 25.0
    clean = np.stack([shade + disc, shade + bars, shade - disc / 2], axis=-1).clip(0, 255)
    noise = np.random.default_rng(0).normal(0, SIGMA, clean.shape)
    as_bytes = [np.rint(a).clip(0, 255).astype(np.uint8) for a in (clean, clean + noise)]
    return Scene(as_bytes[0], as_bytes[1], folder)


# ---- rows ----


@dataclass(frozen=True)
class Row:
    """One kind of file.

    Attributes
    ----------
    name : str
        What it is.
    run : callable
        Writes the file, denoises it, and looks at the result.
    needs : tuple of str
        Programs and modules without which there is no such file.
    """

    name: str
    run: Callable[[Scene, Denoise], Outcome]
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Programs and modules that are not there."""
        return [name for name in self.needs if not (shutil.which(name) or _has_module(name))]


def _has_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of the package around it
        return False


def refused(message: str) -> Outcome:
    """Return the outcome of a command that failed, with what it said about the file."""
    problem = message.strip().partition(": ")[2].partition(": ")[2]
    words = " ".join(problem.split())
    return Outcome(f"refused: {words[:90]}{'...' if len(words) > 90 else ''}", False)


def pyramid(below: bool) -> Callable[[Scene, Denoise], Outcome]:
    """Return the row of a pyramid in directories below the page, or in the chain of pages."""

    def run(data: Scene, denoise: Denoise) -> Outcome:
        source, target = data.folder / "in.ome.tif", data.folder / "out.ome.tif"
        options: dict[str, Any] = {"tile": (32, 32), "compression": "zlib", "photometric": "rgb"}
        half, quarter = data.noisy[::2, ::2], data.noisy[::4, ::4]
        with tifffile.TiffWriter(source, ome=below) as writer:
            meta: Any = {"axes": "YXS"} if below else None
            writer.write(data.noisy, subifds=2 if below else None, metadata=meta, **options)
            for level in (half, quarter):
                writer.write(level, subfiletype=1, metadata=None, **options)
        if message := denoise([str(source), str(target)]):
            return refused(message)
        with tifffile.TiffFile(target) as tif:
            levels = [level.asarray() for level in tif.series[0].levels]
            tiles = {level.keyframe.tile for level in tif.series[0].levels}
        quality = [data.psnr(level, data.clean[:: 2**n, :: 2**n]) for n, level in enumerate(levels)]
        words = f"{len(levels)} levels, {quality[0]:.1f} dB"
        return Outcome(words, len(levels) == 3 and tiles == {(32, 32)} and quality[0] > 27)

    return run


def gdal(options: str) -> Callable[[Scene, Denoise], Outcome]:
    """Return the row of a file that GDAL writes with some options."""

    def run(data: Scene, denoise: Denoise) -> Outcome:
        Image.fromarray(data.noisy).save(data.folder / "in.ppm")
        height, width = data.noisy.shape[:2]
        place = f"-a_srs EPSG:32632 -a_ullr 500000 5500000 {500000 + 10 * width} "
        place += f"{5500000 - 10 * height} -mo SENSOR=imaginary"
        command = f"gdal_translate -q {place} {options} in.ppm in.tif"
        subprocess.run(command.split(), cwd=data.folder, check=True, capture_output=True)
        for extra in data.folder.glob("*.aux.xml"):
            extra.unlink()
        source, target = data.folder / "in.tif", data.folder / "out.tif"
        if message := denoise([str(source), str(target)]):
            return refused(message)
        (old, _), (new, warnings) = seen_by_gdal(source), seen_by_gdal(target)
        different = {key for key in {*old, *new} if old.get(key) != new.get(key)}
        with tifffile.TiffFile(target) as tif:
            result = tif.pages.first.asarray()
        same = f"all {len(old)} fields of gdalinfo the same"
        parts = [f"{len(different)} of {len(old)} fields of gdalinfo differ" if different else same]
        parts += [f"{warnings} warnings"] if warnings else []
        if result.shape == data.clean.shape:
            parts.append(f"{data.psnr(result):.1f} dB")
        else:  # the fourth band is the first one again
            extra_band = data.psnr(result[..., 3], data.clean[..., 0])
            parts.append(f"fourth band {extra_band:.1f} dB")
            return Outcome(", ".join(parts), not different and not warnings and extra_band > 27)
        return Outcome(", ".join(parts), not different and not warnings)

    return run


def seen_by_gdal(path: Path) -> tuple[dict[str, Any], int]:
    """Return all fields of gdalinfo except for names of files, and the number of warnings."""
    done = subprocess.run(["gdalinfo", "-json", path], capture_output=True, text=True, check=True)  # noqa: S607

    def fields(value: Any, name: str) -> Iterable[tuple[str, Any]]:
        pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in pairs:
            if isinstance(part, (dict, list)):
                yield from fields(part, f"{name}.{key}")
            else:
                yield f"{name}.{key}", part

    found = dict(fields(json.loads(done.stdout), ""))
    names = (".files", ".description")
    kept = {key: value for key, value in found.items() if not key.startswith(names)}
    return kept, done.stderr.count("Warning") + done.stderr.count("ERROR")


def picture(suffix: str, **options: Any) -> Callable[[Scene, Denoise], Outcome]:
    """Return the row of a picture that Pillow writes."""

    def run(data: Scene, denoise: Denoise) -> Outcome:
        source, target = data.folder / f"in{suffix}", data.folder / f"out{suffix}"
        save(data.noisy, source, **options)
        if message := denoise([str(source), str(target)]):
            return refused(message)
        found = data.psnr(loaded(target))
        return Outcome(f"{found:.1f} dB", found > 27)

    return run


def save(pixels: NDArray[np.uint8], path: Path, **options: Any) -> None:
    """Save a picture, in HEIC by its own package."""
    made = Image.fromarray(pixels)
    if path.suffix == ".heic":
        import pillow_heif

        pillow_heif.from_pillow(made).save(path, **options)
    else:
        made.save(path, **options)


def loaded(path: Path) -> NDArray[Any]:
    """Return the pixels of a picture in colour."""
    if path.suffix == ".heic":
        import pillow_heif

        return np.asarray(pillow_heif.open_heif(path))
    with Image.open(path) as opened:
        return np.asarray(opened.convert("RGB"))


def inks(suffix: str, **options: Any) -> Callable[[Scene, Denoise], Outcome]:
    """Return the row of a picture in CMYK."""

    def run(data: Scene, denoise: Denoise) -> Outcome:
        source, target = data.folder / f"in{suffix}", data.folder / f"out{suffix}"
        clean, noisy = (
            np.concatenate([255 - colours, colours[..., :1] // 2], axis=-1)
            for colours in (data.clean, data.noisy)
        )
        size = noisy.shape[1::-1]
        Image.frombytes("CMYK", size, noisy.tobytes()).save(source, **options)
        if message := denoise([str(source), str(target)]):
            return refused(message)
        with Image.open(target) as opened:
            mode, result = opened.mode, np.asarray(opened)
        found = [data.psnr(result[..., n], clean[..., n]) for n in range(4)]
        words = f"{mode}, {min(found):.1f} dB in the noisiest ink"
        return Outcome(words, mode == "CMYK" and min(found) > 27)

    return run


def jpeg_quality(data: Scene, denoise: Denoise) -> Outcome:
    """Denoise a JPEG file of middle quality."""
    source, target = data.folder / "in.jpg", data.folder / "out.jpg"
    Image.fromarray(data.noisy).save(source, quality=75, subsampling="4:2:0")
    if message := denoise([str(source), str(target)]):
        return refused(message)

    def coding(path: Path) -> tuple[Any, int]:
        with Image.open(path) as opened:
            if not isinstance(opened, JpegImagePlugin.JpegImageFile):
                raise TypeError("this is not a JPEG file")
            return opened.quantization, JpegImagePlugin.get_sampling(opened)

    same = coding(source) == coding(target)
    share = target.stat().st_size / source.stat().st_size
    words = f"{'the same' if same else 'another'} quality, {share:.1f} times the bytes"
    return Outcome(words, same)


def webp(**options: Any) -> Callable[[Scene, Denoise], Outcome]:
    """Return the row of a WebP file."""

    def run(data: Scene, denoise: Denoise) -> Outcome:
        source, target = data.folder / "in.webp", data.folder / "out.webp"
        Image.fromarray(data.noisy).save(source, **options)
        if message := denoise([str(source), str(target)]):
            return refused(message)
        old, new = webp_quality(source), webp_quality(target)
        share = target.stat().st_size / source.stat().st_size
        kind = "without loss" if new is None else f"quality {new:.0f}"
        same = (old is None and new is None) or (
            old is not None and new is not None and abs(old - new) < 4
        )
        return Outcome(f"{kind}, {share:.1f} times the bytes", same)

    return run


def scaled_nifti(data: Scene, denoise: Denoise) -> Outcome:
    """Denoise a volume of one slice whose values are stored in hundredths."""
    import nibabel

    source, target = data.folder / "in.nii", data.folder / "out.nii"
    stored = data.noisy[..., 0].astype(np.int16) * 100
    image: Any = nibabel.Nifti1Image(stored.T[..., None], np.eye(4))
    image.header.set_slope_inter(0.01, 0)
    nibabel.save(image, source)
    if message := denoise([str(source), str(target), "--sigma", str(SIGMA)]):
        return refused(message)
    result = np.asarray(nibabel.load(target).get_fdata())[..., 0].T  # type: ignore[attr-defined]
    found = data.psnr(result, data.clean[..., 0])
    return Outcome(f"`--sigma {SIGMA:g}`: {found:.1f} dB", found > 27)


def dicom_folder(data: Scene, denoise: Denoise) -> Outcome:
    """Denoise a folder of DICOM files without extension."""
    import pydicom

    (data.folder / "series").mkdir()
    series = pydicom.uid.generate_uid()
    for number in range(2):
        write_dicom(data.folder / "series" / f"IM{number}", data.noisy[..., number], series)
    target = data.folder / "clean"
    if message := denoise([str(data.folder / "series"), str(target)]):
        return refused(message)
    results = [pydicom.dcmread(path) for path in sorted(target.glob("IM*"))]
    new = {str(result.SeriesInstanceUID) for result in results}
    kind = "a new series" if len(new) == 1 and str(series) not in new else "the old series"
    return Outcome(f"{len(results)} files, {kind}", len(results) == 2 and kind == "a new series")


def write_dicom(path: Path, pixels: NDArray[np.uint8], series: str) -> None:
    """Write a slice."""
    import pydicom
    from pydicom.dataset import FileDataset, FileMetaDataset

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    made = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    made.SOPClassUID, made.SOPInstanceUID = meta[0x00020002].value, meta[0x00020003].value
    made.SeriesInstanceUID, made.StudyInstanceUID = series, pydicom.uid.generate_uid()
    made.Modality, made.PatientName, made.SeriesDescription = "CT", "nobody", "generated"
    made.Rows, made.Columns = pixels.shape
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated = made.BitsStored = 8
    made.HighBit, made.PixelRepresentation = 7, 0
    made.PixelData = pixels.tobytes()
    made.save_as(path, enforce_file_format=True)


def rgba_array(data: Scene, denoise: Denoise) -> Outcome:
    """Denoise an array with four samples per pixel in Python."""
    alpha = data.noisy[..., 0]
    np.save(data.folder / "in.npy", np.concatenate([data.noisy, alpha[..., None]], axis=-1))
    paths = [str(data.folder / name) for name in ("in.npy", "out.npy")]
    program = (
        "import numpy, integrodiff; "
        f"result = integrodiff.denoise(numpy.load({paths[0]!r}), {SIGMA}, channel_axis=-1); "
        f"numpy.save({paths[1]!r}, result)"
    )
    if message := denoise([_PYTHON, program]):
        return Outcome(f"refused: {message}", False)
    result = np.load(paths[1])
    same = np.array_equal(result[..., 3], alpha)
    words = f"alpha {'as it was' if same else 'changed'}, {data.psnr(result[..., :3]):.1f} dB"
    return Outcome(words, same)


ROWS = (
    Row("OME-TIFF with a pyramid (SubIFDs)", pyramid(below=True)),
    Row("TIFF with a pyramid in the chain of pages", pyramid(below=False)),
    Row("GeoTIFF of GDAL", gdal(""), ("gdalinfo",)),
    Row(
        "GeoTIFF with a pyramid, cloud-optimised (COG)",
        gdal("-of COG -co BLOCKSIZE=128 -co COMPRESS=DEFLATE -co OVERVIEW_COUNT=2"),
        ("gdalinfo",),
    ),
    Row(
        "GeoTIFF with red, green, blue and infrared",
        gdal("-b 1 -b 2 -b 3 -b 1 -colorinterp red,green,blue,undefined"),
        ("gdalinfo",),
    ),
    Row("CMYK, JPEG of quality 95", inks(".jpg", quality=95)),
    Row("CMYK, TIFF", inks(".tif")),
    Row("GIF", picture(".gif")),
    Row("BMP", picture(".bmp")),
    Row("AVIF of quality 95", picture(".avif", quality=95), ("PIL._avif",)),
    Row("HEIC of quality 95", picture(".heic", quality=95), ("pillow_heif",)),
    Row("JPEG of quality 75", jpeg_quality),
    Row("WebP of quality 80", webp(quality=80)),
    Row("WebP without loss", webp(lossless=True)),
    Row("NIfTI with a scale of 0.01", scaled_nifti, ("nibabel",)),
    Row("RGBA array in Python", rgba_array),
    Row("folder of DICOM files without extension", dicom_folder, ("pydicom",)),
)


# ---- running ----


def by_interpreter(python: Path) -> Denoise:
    """Return the command line of an installation."""

    def denoise(arguments: list[str]) -> str | None:
        words = [str(python), "-m", "integrodiff.cli", "denoise", *arguments]
        if arguments[0] == _PYTHON:
            words = [str(python), "-c", arguments[1]]
        environment = {**os.environ, "COLUMNS": "400", "NO_COLOR": "1"}
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        return None if done.returncode == 0 else done.stderr.splitlines()[-1]

    return denoise


def outcome(row: Row, size: tuple[int, int], denoise: Denoise) -> Outcome:
    """Run a row in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return row.run(scene(*size, Path(folder)), denoise)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, help="interpreter of an older installation")
    parser.add_argument("--json", type=Path, help="where to write the outcomes")
    parser.add_argument("--height", type=int, default=192)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--rows", nargs="*", help="names of rows, by default all")
    arguments = parser.parse_args()
    size = arguments.height, arguments.width
    found: list[dict[str, Any]] = []
    print("| file | before | after |" if arguments.old else "| file | after |")
    print("|---|---|---|" if arguments.old else "|---|---|")
    for row in ROWS:
        if arguments.rows and row.name not in arguments.rows:
            continue
        if row.missing:
            print(f"left out, since it needs {', '.join(row.missing)}: {row.name}", file=sys.stderr)
            continue
        interpreters = [*([arguments.old] if arguments.old else []), Path(sys.executable)]
        outcomes = [outcome(row, size, by_interpreter(python)) for python in interpreters]
        print(f"| {row.name} | {' | '.join(one.words for one in outcomes)} |", flush=True)
        names = ("before", "after")[-len(outcomes) :]
        found.append(
            {"file": row.name}
            | {name: vars(one) for name, one in zip(names, outcomes, strict=True)}
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"size": size, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
