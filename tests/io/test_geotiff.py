"""GeoTIFF as GDAL sees it: every field of gdalinfo is the same, and there is no warning."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from foreign_files import FOLDER, program, write_gradients

from integrodiff.io import read_image, write_image

pytestmark = pytest.mark.skipif(
    shutil.which("gdalinfo") is None, reason="needs the programs of GDAL"
)

EARTH = "-a_srs EPSG:32632 -a_ullr 500000 5500000 500170 5499870"
BANDS = "-b 1 -b 2 -b 3 -b 1"
VARIANTS = {
    "float.tif": "-ot Float32 -a_nodata nan -co TILED=YES -co COMPRESS=DEFLATE -co PREDICTOR=3",
    "zstandard.tif": "-of COG -co COMPRESS=ZSTD -co PREDICTOR=YES -co BLOCKSIZE=128",
    "infrared.tif": f"{BANDS} -colorinterp red,green,blue,undefined -co COMPRESS=LZW",
    "five.tif": f"{BANDS} -b 2 -colorinterp red,green,blue,undefined,undefined -co PHOTOMETRIC=RGB",
    "alpha.tif": f"{BANDS} -colorinterp red,green,blue,alpha -of COG -co BLOCKSIZE=128",
    "planes.tif": "-co INTERLEAVE=BAND -a_scale 0.1 -a_offset 5 -co ENDIANNESS=BIG",
    "masked.tif": "-b 1 -b 2 -b 3 -mask 1 -of COG -co BLOCKSIZE=128 "
    "--config GDAL_TIFF_INTERNAL_MASK YES",
    "int16.tif": "-ot Int16 -a_nodata -9999 -mo SENSOR=imaginary -co BIGTIFF=YES",
}
"""Options of gdal_translate."""


def fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Give all values with where they are."""
    pairs: Any = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in pairs:
        if isinstance(part, (dict, list)):
            yield from fields(part, f"{name}.{key}")
        else:
            yield f"{name}.{key}", part


def seen_by_gdal(path: Path) -> dict[str, Any]:
    command = [program("gdalinfo") or "gdalinfo", "-json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = dict(fields(json.loads(done.stdout)))
    return {key: value for key, value in found.items() if not key.startswith((".files", ".desc"))}


def round_trip(source: Path, target: Path) -> None:
    image = read_image(source)
    write_image(target, image)
    assert np.array_equal(read_image(target).pixels, image.pixels, equal_nan=True)


@pytest.mark.parametrize("name", ["geo.tif", "overviews.tif", "cog.tif", "bigcog.tif"])
def test_committed_files(name: str, tmp_path: Path) -> None:
    round_trip(FOLDER / name, tmp_path / name)
    found = seen_by_gdal(tmp_path / name)
    assert found == seen_by_gdal(FOLDER / name)
    assert found[".geoTransform.0"] == 500000
    assert found[".metadata..NOTE"] == "gradient"
    assert ("LAYOUT" in str(found.keys())) == ("cog" in name)
    assert (".bands.0.overviews.0.size.0" in found) == (name != "geo.tif")


@pytest.mark.long
@pytest.mark.parametrize("name", VARIANTS)
def test_variants(name: str, tmp_path: Path) -> None:
    write_gradients(tmp_path)
    command = f"gdal_translate -q {EARTH} {VARIANTS[name]} rgb8.ppm {name}"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    for extra in tmp_path.glob("*.aux.xml"):
        extra.unlink()
    round_trip(tmp_path / name, tmp_path / f"new-{name}")
    assert seen_by_gdal(tmp_path / f"new-{name}") == seen_by_gdal(tmp_path / name)


@pytest.mark.slow
def test_rotated_images_and_ground_control_points(tmp_path: Path) -> None:
    write_gradients(tmp_path)
    points = "-gcp 0 0 9 50 -gcp 17 0 10 50.1 -gcp 0 13 9.1 49 -gcp 17 13 10 49"
    command = f"gdal_translate -q -a_srs EPSG:4326 {points} grey16.pgm points.tif"
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    with tifffile.TiffFile(FOLDER / "geo.tif") as tif:
        keys, names = (tif.pages.first.tags[code].value for code in (34735, 34737))
    matrix = (7.0, -7.0, 0.0, 5e5, 7.0, 7.0, 0.0, 5.5e6, *[0.0] * 7, 1.0)
    tags: Any = [(34735, 3, len(keys), keys, False), (34264, 12, 16, matrix, False)]
    tags.append((34737, 2, len(names) + 1, names, False))
    pixels = read_image(FOLDER / "geo.tif").pixels
    tifffile.imwrite(tmp_path / "turned.tif", pixels, extratags=tags, metadata=None)
    for name in ("points.tif", "turned.tif"):
        round_trip(tmp_path / name, tmp_path / f"new-{name}")
        assert seen_by_gdal(tmp_path / f"new-{name}") == seen_by_gdal(tmp_path / name)
    assert seen_by_gdal(tmp_path / "new-turned.tif")[".geoTransform.2"] == -7


def test_files_beside_are_named(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "geo.tif", tmp_path / "in.tif")
    (tmp_path / "in.tif.aux.xml").write_text("<PAMDataset/>")
    assert "in.tif.aux.xml" in read_image(tmp_path / "in.tif").notes[-1]
