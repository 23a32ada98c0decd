"""Small valid files of every reader, for the fuzzer to damage."""

from __future__ import annotations

import gzip
import io
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import mrcfile
import nibabel
import nrrd
import numpy as np
import pydicom
import tifffile
import zarr
from PIL import Image
from pydicom.encaps import encapsulate
from zarr.codecs import BloscCodec, ZstdCodec

from integrodiff.io.registry import SUFFIXES

FOREIGN = Path(__file__).parents[1] / "tests" / "data" / "foreign"
_PIXELS: Any = np.arange(2 * 9 * 11, dtype=np.uint16).reshape(2, 9, 11) * 300
_COLOUR = np.stack([_PIXELS[0] // 256] * 3, axis=-1).astype(np.uint8)


def write_seeds(folder: Path) -> list[Path]:
    """Write the files and folders; return them in a fixed order."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in FOREIGN.iterdir():
        copy = shutil.copy if path.is_file() else shutil.copytree
        copy(path, folder / path.name)
    _write_pictures(folder)
    _write_stacks(folder)
    _write_zarr(folder)
    _write_dicom(folder)
    _write_enhanced(folder)
    _write_series(folder / "series")
    _write_maps(folder)
    return sorted(folder.iterdir())


def _write_pictures(folder: Path) -> None:
    colour = Image.fromarray(_COLOUR)
    rgba = Image.fromarray(np.concatenate([_COLOUR, _COLOUR[..., :1]], axis=-1))
    colour.quantize(8).save(folder / "palette.png", transparency=3)
    colour.save(folder / "key.png", transparency=(1, 1, 1), dpi=(300, 300))
    rgba.save(folder / "rgba.png", icc_profile=bytes(200))
    rgba.save(folder / "lossy.webp", quality=80, exif=Image.Exif().tobytes())
    Image.fromarray(_COLOUR[..., 0]).save(folder / "progressive.jpg", progressive=True)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    exif.get_ifd(0x8769)[0x9286] = b"a comment"
    metadata: Any = {"exif": exif.tobytes(), "xmp": b"<x:xmpmeta/>", "icc_profile": bytes(200)}
    colour.save(folder / "metadata.jpg", dpi=(72, 72), comment="a comment", **metadata)
    colour.save(folder / "metadata.webp", lossless=True, **metadata)
    colour.save(folder / "metadata.png", exif=metadata["exif"], dpi=(72, 72))
    colour.convert("CMYK").save(folder / "inks.jpg", quality=60)
    colour.save(folder / "colour.gif", comment=b"a comment")
    rgba.save(folder / "rgba.gif")
    colour.save(folder / "colour.bmp", dpi=(72, 72))
    colour.quantize(8).save(folder / "palette.bmp")
    if SUFFIXES[".avif"].missing is None:
        rgba.save(folder / "rgba.avif", exif=metadata["exif"])
    if SUFFIXES[".heic"].missing is None:
        heif = import_module("pillow_heif")
        heif.from_pillow(rgba).save(folder / "rgba.heic", exif=metadata["exif"])


def _write_stacks(folder: Path) -> None:
    np.save(folder / "plain.npy", _PIXELS)
    np.save(folder / "fortran.npy", np.asfortranarray(_PIXELS.astype(">f4")))
    np.save(folder / "colour.npy", _COLOUR)
    tifffile.imwrite(folder / "imagej.tif", _PIXELS, imagej=True, metadata={"axes": "ZYX"})
    tifffile.imwrite(folder / "ome.ome.tif", _PIXELS, photometric="minisblack")
    tifffile.imwrite(folder / "float.tif", _PIXELS.astype(np.float32), compression="zlib")
    Image.fromarray(_COLOUR).convert("CMYK").save(folder / "inks.tif")
    _write_pyramid(folder / "pyramid.ome.tif")
    volume: Any = nibabel.Nifti2Image(_PIXELS.T, np.eye(4))
    volume.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"a comment"))
    stream = io.BytesIO()
    volume.to_file_map({"image": nibabel.FileHolder(fileobj=stream)})
    (folder / "volume.nii").write_bytes(stream.getvalue())
    (folder / "volume.nii.gz").write_bytes(gzip.compress(stream.getvalue()))


def _write_pyramid(path: Path) -> None:
    options: Any = {"tile": (16, 16), "photometric": "minisblack", "compression": "zlib"}
    with tifffile.TiffWriter(path, ome=True) as writer:
        writer.write(_PIXELS, subifds=1, metadata={"axes": "CYX"}, **options)
        writer.write(_PIXELS[:, ::2, ::2], subfiletype=1, **options)
    with tifffile.TiffWriter(path.with_name("mask.tif")) as writer:
        writer.write(_PIXELS[0], metadata=None, **options)
        options["photometric"] = 4
        writer.write(_PIXELS[0] > 9000, subfiletype=4, metadata=None, **options)


def _write_zarr(folder: Path) -> None:
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    image: Any = {"version": "0.4", "axes": axes, "datasets": [{"path": "0"}]}
    old = zarr.open_group(folder / "version2.zarr", mode="w", zarr_format=2)
    old.attrs["multiscales"] = [image]
    new = zarr.open_group(folder / "version3.zarr", mode="w", zarr_format=3)
    new.attrs["ome"] = {"version": "0.5", "multiscales": [image]}
    for group in (old, new):
        group.create_array("0", data=_PIXELS, chunks=(1, 9, 8))
    zarr.save_array(folder / "plain.zarr", _PIXELS, zarr_format=3)
    for name, codec in (("zstd", ZstdCodec()), ("blosc", BloscCodec())):
        zarr.create_array(
            folder / f"shards-{name}.zarr",
            data=_PIXELS,
            chunks=(1, 3, 4),
            shards=(1, 9, 12),
            compressors=codec,
        )


def _write_dicom(folder: Path) -> None:
    dataset = pydicom.dcmread(FOREIGN / "explicit.dcm")
    dataset.Rows, dataset.Columns, dataset.NumberOfFrames = 9, 11, 2
    dataset.PixelData = _PIXELS.tobytes()
    dataset.save_as(folder / "frames.dcm")
    dataset.compress(pydicom.uid.RLELossless, encoding_plugin="pydicom")
    dataset.save_as(folder / "frames-rle.dcm")
    grey = Image.fromarray(_COLOUR[..., 0])
    for kind, syntax in (
        ("JPEG", pydicom.uid.JPEGBaseline8Bit),
        ("JPEG2000", pydicom.uid.JPEG2000),
    ):
        stream = io.BytesIO()
        grey.save(stream, kind, **({"no_jp2": True} if kind == "JPEG2000" else {}))
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
        dataset.PixelData = encapsulate([stream.getvalue()] * 2)
        dataset.file_meta.TransferSyntaxUID = syntax
        dataset.save_as(folder / f"frames-{kind.lower()}.dcm")


def _write_enhanced(folder: Path) -> None:
    """Write frames that are the slices of a volume, stored from the last to the first."""
    dataset = pydicom.dcmread(FOREIGN / "explicit.dcm")
    dataset.SOPClassUID = pydicom.uid.EnhancedMRImageStorage
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.Rows, dataset.Columns, dataset.NumberOfFrames = 9, 11, 2
    shared, orientation, measures = (pydicom.Dataset() for _ in range(3))
    orientation.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    measures.PixelSpacing = [1, 1]
    shared.PlaneOrientationSequence, shared.PixelMeasuresSequence = [orientation], [measures]
    dataset.SharedFunctionalGroupsSequence = [shared]
    frames = []
    for number in (1, 0):
        frame, place = pydicom.Dataset(), pydicom.Dataset()
        place.ImagePositionPatient = [0, 0, 2 * number]
        frame.PlanePositionSequence = [place]
        frames.append(frame)
    dataset.PerFrameFunctionalGroupsSequence = frames
    dataset.PixelData = _PIXELS.tobytes()
    dataset.save_as(folder / "enhanced.dcm")
    dataset.compress(pydicom.uid.RLELossless, encoding_plugin="pydicom")
    dataset.save_as(folder / "enhanced-rle.dcm")


def _write_series(folder: Path) -> None:
    dataset = pydicom.dcmread(FOREIGN / "explicit.dcm")
    dataset.Rows, dataset.Columns, dataset.PixelSpacing = 9, 11, [1, 1]
    dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    folder.mkdir()
    for number in range(3):
        uid = pydicom.uid.UID(f"1.2.{number}")
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid
        dataset.ImagePositionPatient = [0, 0, 2 * number]
        dataset.PixelData = _PIXELS[number % 2].tobytes()
        dataset.save_as(folder / f"slice{number}.dcm")


def _write_maps(folder: Path) -> None:
    for name, dtype in (("short.mrc", "<i2"), ("float.map", ">f4"), ("byte.mrc", "i1")):
        with mrcfile.new(folder / name) as file:
            file.set_data((_PIXELS // 600).astype(dtype))
            file.set_volume()
            file.voxel_size = 2.5
            file.set_extended_header(np.zeros(20, "V1"))
    fields = {"kinds": ["domain"] * 3, "space directions": np.eye(3), "space dimension": 3}
    for name in ("raw", "gzip", "bzip2"):
        options: Any = {**fields, "encoding": name, "comment": "a pair"}
        nrrd.write(str(folder / f"{name}.nrrd"), _PIXELS.T, options)
    nrrd.write(str(folder / "colour.nrrd"), _COLOUR.T, {"kinds": ["RGB-color", "domain", "domain"]})
