"""Image files with declared axes, written by the libraries of their formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

_INTEGERS = ("uint8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
_ALL = (*_INTEGERS, "float16", "float32", "float64")


@dataclass(frozen=True)
class Writer:
    """A format: which axes and dtypes it holds, and what writes it."""

    axes: tuple[str, ...]
    dtypes: tuple[str, ...]
    write: Callable[[Path, NDArray[Any], str], None]
    holds_float: bool = True
    named: bool = True

    def declared(self, axes: str) -> str:
        """Return the axes that a file of this format declares."""
        if self.named:
            return axes
        plane = "YXS" if axes.endswith("S") else "YX"
        return "Q" * (len(axes) - len(plane)) + plane


def _png(path: Path, array: NDArray[Any], axes: str) -> None:
    Image.fromarray(array).save(path)


def _npy(path: Path, array: NDArray[Any], axes: str) -> None:
    np.save(path, array)


def _tiff(path: Path, array: NDArray[Any], axes: str) -> None:
    photometric = "rgb" if axes.endswith("S") else "minisblack"
    tifffile.imwrite(path, array, photometric=photometric, metadata={"axes": axes})


def _ome_tiff(path: Path, array: NDArray[Any], axes: str) -> None:
    photometric = "rgb" if axes.endswith("S") else "minisblack"
    tifffile.imwrite(path, array, ome=True, photometric=photometric, metadata={"axes": axes})


def _imagej(path: Path, array: NDArray[Any], axes: str) -> None:
    tifffile.imwrite(path, array, imagej=True, metadata={"axes": axes})


def _nifti(path: Path, array: NDArray[Any], axes: str) -> None:
    import nibabel

    image = nibabel.Nifti1Image(array.T, np.eye(4), dtype=array.dtype)
    image.to_filename(path)


def _zarr(path: Path, array: NDArray[Any], axes: str) -> None:
    import zarr

    kinds = {"t": "time", "c": "channel"}
    names = [{"name": a, "type": kinds.get(a, "space")} for a in axes.lower()]
    scale = [{"type": "scale", "scale": [1.0] * len(axes)}]
    image: dict[str, Any] = {"version": "0.4", "axes": names, "name": "image"}
    image["datasets"] = [{"path": "0", "coordinateTransformations": scale}]
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.attrs["multiscales"] = [image]
    chunks = tuple(min(n, 16) for n in array.shape)
    group.create_array("0", shape=array.shape, dtype=array.dtype, chunks=chunks)[...] = array


def _dicom(path: Path, array: NDArray[Any], axes: str) -> None:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    dataset = Dataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    dataset.Rows, dataset.Columns = array.shape[-2:]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 8 * array.itemsize
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(array.dtype.kind == "i")
    if array.ndim == 3:
        dataset.NumberOfFrames = len(array)
    dataset.PixelData = array.tobytes()
    dataset["PixelData"].VR = "OB" if array.itemsize == 1 else "OW"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.save_as(path, enforce_file_format=True)


WRITERS = {
    "png": Writer(("YX", "YXS"), ("uint8",), _png, holds_float=False),
    "bmp": Writer(("YX", "YXS"), ("uint8",), _png, holds_float=False),
    "gif": Writer(("YX",), ("uint8",), _png, holds_float=False),
    "npy": Writer(("YX", "YXS", "QYX", "QYXS"), _ALL, _npy),
    "tif": Writer(("YX", "YXS", "TYX", "CYX", "TCYX", "ZYX"), _ALL, _tiff),
    "ome.tif": Writer(
        ("YX", "TYX", "CYX", "TCYX", "CZYX"), ("uint8", "uint16", "float32"), _ome_tiff
    ),
    "imagej.tif": Writer(("TYX", "CYX", "TCYX"), ("uint8", "uint16", "float32"), _imagej),
    "nii": Writer(("YX", "ZYX", "TZYX"), ("uint8", "int16", "float32"), _nifti),
    "dcm": Writer(("YX", "QYX"), ("uint8", "uint16", "int16"), _dicom, holds_float=False),
    "zarr": Writer(("YX", "CYX", "TCYX", "CZYX"), ("uint8", "uint16", "float32"), _zarr),
}


def write_array(path: Path, array: NDArray[Any], axes: str) -> None:
    """Write an array in the format of the file name; lossy ones are for 8 bits."""
    forms = [form for form in WRITERS if path.name.endswith(f".{form}")]
    write = WRITERS[max(forms, key=len)].write if forms else _png
    write(path, array, axes)
