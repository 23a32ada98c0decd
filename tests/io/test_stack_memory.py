"""A long stack takes no more memory than a short one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
import zarr
from foreign_files import FOLDER
from numpy.typing import NDArray

from stack_memory import denoise

Stack = NDArray[np.uint16]


def write_dicom(path: Path, stack: Stack) -> None:
    dataset = pydicom.dcmread(FOLDER / "explicit.dcm")
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = stack.shape
    dataset.PixelData = stack.tobytes()
    dataset.save_as(path)


WRITERS: dict[str, Callable[[Path, Stack], object]] = {
    ".tif": lambda path, stack: tifffile.imwrite(path, stack, photometric="minisblack"),
    ".npy": lambda path, stack: np.save(path, stack),
    ".nii": lambda path, stack: nibabel.save(nibabel.Nifti1Image(stack.T, np.eye(4)), path),
    ".dcm": write_dicom,
    ".zarr": lambda path, stack: zarr.create_array(path, data=stack, chunks=(1, *stack.shape[1:])),
}


@pytest.mark.long
@pytest.mark.parametrize("suffix", WRITERS)
def test_memory_does_not_grow_with_the_number_of_pages(tmp_path: Path, suffix: str) -> None:
    memory = []
    for pages in (4, 104):
        ramp = np.arange(512 * 512, dtype=np.uint16).reshape(512, 512)
        stack = np.stack([ramp + np.uint16(page) for page in range(pages)])
        source = tmp_path / f"{pages}{suffix}"
        WRITERS[suffix](source, stack)
        target = tmp_path / f"out{pages}{suffix}"
        memory.append(
            denoise(source, target, "--sigma", "0", "--engine", "numpy", "--quiet", "--slices")
        )
    # The long stack is larger by 52 MB.
    assert memory[1] - memory[0] < 20e6
