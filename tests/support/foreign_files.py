"""Image files that other programs write from the same small gradients.

``python tests/foreign_files.py`` writes ``tests/data/foreign`` anew; it needs ImageMagick, the
tools of libtiff, DCMTK, GDCM, exiv2, nifti_tool and GDAL (Debian: ``imagemagick libtiff-tools dcmtk
libgdcm-tools exiv2 nifti-bin gdal-bin``), and the Python package ome-zarr.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import ImageCms

FOLDER = Path(__file__).parents[1] / "data" / "foreign"
HEIGHT, WIDTH = 13, 17


@dataclass(frozen=True, kw_only=True)
class ForeignFile:
    """How a file is made, and what is in it.

    Attributes
    ----------
    commands : tuple of str
        What makes it; ``magick`` stands for ImageMagick under any of its names.
    pixels : str
        Name of the gradient; two of them for a stack of two pages.
    tolerance : int
        Largest difference of grey values, for compression with loss.
    """

    commands: tuple[str, ...]
    pixels: str
    tolerance: int = 0


def gradients() -> dict[str, NDArray[Any]]:
    """Return the gradients by name."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    grey8, grey16 = (12 * y + 5 * x).astype(np.uint8), (3000 * y + 700 * x).astype(np.uint16)
    found = {"grey8": grey8, "grey16": grey16, "negative": 65535 - grey16, "grey12": grey16 // 16}
    found["rgb8"] = np.stack([grey8, 255 - grey8, grey8 // 2], axis=-1)
    found["rgb16"] = np.stack([grey16, 65535 - grey16, grey16 // 2], axis=-1)
    return found


def expected(name: str) -> NDArray[Any]:
    """Return the pixels of a gradient, or of a stack of several."""
    parts = [gradients()[part] for part in name.split("+")]
    return parts[0] if len(parts) == 1 else np.stack(parts)


STACK = ("magick grey16.pgm negative.pgm -density 300 -units PixelsPerInch s.tif",)
DICOM = ("gdcmimg grey12.pgm g.dcm", "dcmconv +te g.dcm e.dcm")
CAMERA = (
    'exiv2 -M"set Exif.Image.Make a camera" -M"set Exif.Image.DateTime 2026:11:15 12:00:00" '
    '-M"set Exif.Image.Orientation 8" -M"set Exif.Photo.ExposureTime 1/250" '
    '-M"set Exif.Photo.LensModel a long lens" -M"set Exif.Photo.ISOSpeedRatings 400" '
    '-M"set Exif.Photo.UserComment charset=Ascii grain" -M"set Exif.GPSInfo.GPSLatitudeRef N" '
    '-M"set Exif.GPSInfo.GPSLatitude 49/1 15/1 30/1" -M"set Exif.Iop.InteroperabilityIndex R98" '
    "{out}"
)
EARTH = "-a_srs EPSG:32632 -a_ullr 500000 5500000 500170 5499870 -mo NOTE=gradient"
CLOUD = "-of COG -co BLOCKSIZE=16 -co OVERVIEW_COUNT=2 -co COMPRESS=DEFLATE"
DENSITY = "-density 300 -units PixelsPerInch"
PROFILE = f"-profile srgb.icc {DENSITY}"

FILES = {
    "grey8.png": ForeignFile(commands=("magick grey8.pgm {out}",), pixels="grey8"),
    "grey16.png": ForeignFile(commands=(f"magick grey16.pgm {PROFILE} {{out}}",), pixels="grey16"),
    "rgb16.png": ForeignFile(commands=(f"magick rgb16.ppm {PROFILE} {{out}}",), pixels="rgb16"),
    "rgb8.jpg": ForeignFile(
        commands=(
            f"magick rgb8.ppm {PROFILE} -quality 100 -sampling-factor 1x1 {{out}}",
            'exiv2 -M"set Exif.Image.Make a camera" {out}',
        ),
        pixels="rgb8",
        tolerance=3,
    ),
    "rgb8.webp": ForeignFile(
        commands=(
            "magick rgb8.ppm -profile srgb.icc -define webp:lossless=true {out}",
            'exiv2 -M"set Exif.Image.Make a camera" {out}',
        ),
        pixels="rgb8",
    ),
    "grey8.gif": ForeignFile(
        commands=("magick grey8.pgm -set comment gradient {out}",), pixels="grey8", tolerance=6
    ),
    "rgb8.bmp": ForeignFile(
        commands=("magick rgb8.ppm -density 300 -units PixelsPerInch bmp3:{out}",), pixels="rgb8"
    ),
    "cmyk.jpg": ForeignFile(
        commands=(f"magick rgb8.ppm {DENSITY} -colorspace CMYK -quality 90 {{out}}",), pixels=""
    ),
    "cmyk.tif": ForeignFile(
        commands=(f"magick rgb8.ppm {DENSITY} -colorspace CMYK -compress LZW {{out}}",), pixels=""
    ),
    "exif.jpg": ForeignFile(
        commands=("magick grey8.pgm -quality 100 {out}", CAMERA), pixels="grey8", tolerance=3
    ),
    "exif.tif": ForeignFile(
        commands=("magick grey16.pgm -endian MSB -compress Zip {out}", CAMERA), pixels="grey16"
    ),
    "lzw.tif": ForeignFile(
        commands=(f"magick rgb16.ppm {PROFILE} -compress LZW {{out}}",), pixels="rgb16"
    ),
    "deflate.tif": ForeignFile(
        commands=("magick grey16.pgm -compress Zip {out}",), pixels="grey16"
    ),
    "jpeg.tif": ForeignFile(
        commands=("magick rgb8.ppm -quality 100 -compress JPEG {out}",),
        pixels="rgb8",
        tolerance=6,
    ),
    "palette.tif": ForeignFile(
        commands=("magick grey8.pgm -type Palette {out}",), pixels="grey8", tolerance=6
    ),
    "pages.tif": ForeignFile(commands=(*STACK, "tiffcp s.tif {out}"), pixels="grey16+negative"),
    "tiles.tif": ForeignFile(
        commands=(*STACK, "tiffcp -t -w 16 -l 16 -c lzw s.tif {out}"), pixels="grey16+negative"
    ),
    "big.tif": ForeignFile(commands=(*STACK, "tiffcp -8 s.tif {out}"), pixels="grey16+negative"),
    "packbits.tif": ForeignFile(
        commands=(*STACK, "tiffcp -c packbits s.tif {out}"), pixels="grey16+negative"
    ),
    "zstandard.tif": ForeignFile(
        commands=(*STACK, "tiffcp -c zstd s.tif {out}"), pixels="grey16+negative"
    ),
    "planes.tif": ForeignFile(
        commands=("magick rgb8.ppm c.tif", "tiffcp -B -p separate c.tif {out}"), pixels="rgb8"
    ),
    "geo.tif": ForeignFile(
        commands=(f"gdal_translate {EARTH} -a_nodata 7000 grey16.pgm {{out}}",), pixels="grey16"
    ),
    "overviews.tif": ForeignFile(
        commands=(
            f"gdal_translate {EARTH} -co TILED=YES -co BLOCKXSIZE=16 -co BLOCKYSIZE=16 "
            "-co COMPRESS=LZW rgb8.ppm {out}",
            "gdaladdo -r average {out} 2 4",
        ),
        pixels="rgb8",
    ),
    "cog.tif": ForeignFile(
        commands=(
            f"gdal_translate {EARTH} -a_nodata 7000 grey16.pgm g.tif",
            f"gdal_translate {CLOUD} -co PREDICTOR=YES g.tif {{out}}",
        ),
        pixels="grey16",
    ),
    "bigcog.tif": ForeignFile(
        commands=(f"gdal_translate {EARTH} {CLOUD} -co BIGTIFF=YES rgb8.ppm {{out}}",),
        pixels="rgb8",
    ),
    "explicit.dcm": ForeignFile(commands=(*DICOM, "dcmconv +te e.dcm {out}"), pixels="grey12"),
    "implicit.dcm": ForeignFile(commands=(*DICOM, "dcmconv +ti e.dcm {out}"), pixels="grey12"),
    "bigendian.dcm": ForeignFile(commands=(*DICOM, "dcmconv +tb e.dcm {out}"), pixels="grey12"),
    "rle.dcm": ForeignFile(commands=(*DICOM, "dcmcrle e.dcm {out}"), pixels="grey12"),
    "colour.dcm": ForeignFile(commands=("gdcmimg rgb8.ppm {out}",), pixels="rgb8"),
    "secondary.dcm": ForeignFile(
        commands=("magick rgb8.ppm bmp3:c.bmp", "img2dcm -i BMP c.bmp {out}"), pixels="rgb8"
    ),
    "lossless-jpeg.dcm": ForeignFile(commands=(*DICOM, "gdcmconv --jpeg e.dcm {out}"), pixels=""),
    "deflated.dcm": ForeignFile(commands=(*DICOM, "dcmconv +td e.dcm {out}"), pixels=""),
    "empty.nii": ForeignFile(
        commands=(
            "nifti_tool -make_im -prefix n.nii -new_dim 4 17 13 2 3 0 0 0 -new_datatype 512",
            "nifti_tool -mod_hdr -infiles n.nii -prefix {out} -mod_field descrip gradient "
            "-mod_field pixdim '1 0.5 0.25 2 1 0 0 0' -mod_field scl_slope 2",
        ),
        pixels="",
    ),
}
"""The files by name; those without pixels are looked at in tests of their own."""


def make_ome_zarr(folder: Path) -> None:
    """Write the stack by ome-zarr in two versions of its format, as a pyramid of two levels."""
    writer, versions = import_module("ome_zarr.writer"), import_module("ome_zarr.format")
    stack = expected("grey16+negative")[None]
    for name, version in (("ome04.zarr", versions.FormatV04), ("ome05.zarr", versions.FormatV05)):
        writer.write_image(stack, str(folder / name), axes="czyx", fmt=version(), scale_factors=[2])


def program(name: str) -> str | None:
    """Return the path of a program, if it is there."""
    names = ("magick", "convert-im6.q16", "convert-im7.q16") if name == "magick" else (name,)
    return next(filter(None, map(shutil.which, names)), None)


def missing_programs(file: ForeignFile) -> list[str]:
    """Return the programs that making the file needs and that are not there."""
    return sorted({c.split()[0] for c in file.commands if program(c.split()[0]) is None})


def make(name: str, folder: Path) -> Path:
    """Make a file by the other programs."""
    write_gradients(folder)
    (folder / "srgb.icc").write_bytes(
        ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    )
    for command in FILES[name].commands:
        first, *words = shlex.split(command.format(out=name))
        subprocess.run(
            [program(first) or first, *words], cwd=folder, check=True, capture_output=True
        )
    return folder / name


def write_gradients(folder: Path) -> None:
    """Write the gradients, for the programs to read."""
    for gradient, pixels in gradients().items():
        _write_netpbm(folder / f"{gradient}.{'pgm' if pixels.ndim == 2 else 'ppm'}", pixels)


def _write_netpbm(path: Path, pixels: NDArray[Any]) -> None:
    """Write a file that needs no library."""
    kind, largest = ("P5" if pixels.ndim == 2 else "P6"), np.iinfo(pixels.dtype).max
    head = f"{kind}\n{pixels.shape[1]} {pixels.shape[0]}\n{largest}\n".encode()
    path.write_bytes(head + pixels.astype(pixels.dtype.newbyteorder(">")).tobytes())


def main() -> None:
    """Write all files anew."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(make(name, Path(folder)), FOLDER / name)
    make_ome_zarr(FOLDER)


if __name__ == "__main__":
    main()
