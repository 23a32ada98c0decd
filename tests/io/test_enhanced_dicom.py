"""Frames of an enhanced multi-frame DICOM file are the slices of a volume, where they lie so."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import SimpleITK
from command_line import run
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import (
    UID,
    CTImageStorage,
    EnhancedCTImageStorage,
    EnhancedMRImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    RLELossless,
    SecondaryCaptureImageStorage,
    generate_uid,
)

from integrodiff import ImageFileError, denoise
from integrodiff.io import open_image, read_image, write_image

SETTINGS = ("--sigma", 12, "--data-range", 255, "--engine", "numpy")
ARGUMENTS: dict[str, Any] = {"sigma": 12, "data_range": 255, "engine": "numpy"}
TURN = np.array([[0.8, 0.6, 0.0], [0.0, 0.0, -1.0]])
"""Directions of rows and columns, as of an oblique scan."""

DISTANCE = 1.25
SHUFFLED = (3, 0, 4, 1, 2)
"""Numbers of the slices in the order of the file."""

Change = Callable[[Dataset], object]


def volume() -> NDArray[np.int16]:
    z, y, x = np.mgrid[:5, :20, :24]
    noise = np.random.default_rng(1).normal(0, 12, z.shape)
    return np.asarray(100 + 60 * (x + y + 3 * z > 24) + noise, np.int16)


def item(**elements: Any) -> list[Dataset]:
    """Return a sequence with one item."""
    dataset = Dataset()
    for name, value in elements.items():
        setattr(dataset, name, value)
    return [dataset]


def position(height: float) -> list[float]:
    """Return where a slice begins, at a multiple of the distance."""
    normal = np.cross(*TURN)
    return [float(x) for x in np.array([7.0, -30, 12]) + DISTANCE * height * normal]


def enhanced(heights: Any = SHUFFLED, kind: str = EnhancedCTImageStorage) -> Dataset:
    """Return a file with a frame of the volume at each of these heights, in this order."""
    pixels = volume()
    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.SOPClassUID, dataset.SOPInstanceUID = kind, generate_uid()
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = generate_uid(), generate_uid()
    dataset.FrameOfReferenceUID, dataset.PatientName = "1.2.3", "Gradient^Ann"
    dataset.Modality = "MR" if kind == EnhancedMRImageStorage else "CT"
    dataset.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    dataset.SeriesDescription, dataset.InstanceNumber = "T1 axial", 1
    dataset.Rows, dataset.Columns = pixels.shape[1:]
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
    dataset.PixelRepresentation, dataset.NumberOfFrames = 1, len(heights)
    shared = Dataset()
    shared.PlaneOrientationSequence = item(ImageOrientationPatient=TURN.ravel().tolist())
    # Neither of the last two is the distance of the slices.
    shared.PixelMeasuresSequence = item(
        PixelSpacing=[1.0, 1.0], SliceThickness=5.0, SpacingBetweenSlices=4.0
    )
    frame_type = item(FrameType=["ORIGINAL", "PRIMARY", "VOLUME", "NONE"])
    if kind == EnhancedMRImageStorage:
        shared.MRImageFrameTypeSequence = frame_type
    else:
        shared.CTImageFrameTypeSequence = frame_type
        shared.PixelValueTransformationSequence = item(
            RescaleSlope=1, RescaleIntercept=-1024, RescaleType="HU"
        )
    dataset.SharedFunctionalGroupsSequence = [shared]
    frames = []
    for number, height in enumerate(heights):
        frame = Dataset()
        frame.PlanePositionSequence = item(ImagePositionPatient=position(height))
        frame.FrameContentSequence = item(
            StackID="1", InStackPositionNumber=number + 1, DimensionIndexValues=[1, number + 1]
        )
        frame.FrameVOILUTSequence = item(WindowCenter=int(100 + 10 * height), WindowWidth=401)
        frames.append(frame)
    dataset.PerFrameFunctionalGroupsSequence = frames
    shown = pixels[[round(height) % len(pixels) for height in heights]]
    dataset.PixelData = shown.tobytes()
    dataset["PixelData"].VR = "OW"
    return dataset


def save(path: Path, dataset: Dataset, syntax: UID = ExplicitVRLittleEndian) -> None:
    dataset = deepcopy(dataset)
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    if syntax == RLELossless:
        dataset.compress(RLELossless, encoding_plugin="pydicom", generate_instance_uid=False)
    elif syntax == ExplicitVRBigEndian:
        dataset.PixelData = np.frombuffer(dataset.PixelData, "<i2").astype(">i2").tobytes()
        dataset.file_meta.TransferSyntaxUID = syntax
    else:
        dataset.file_meta.TransferSyntaxUID = syntax
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.save_as(path, enforce_file_format=True)


def saved(path: Path, *changes: Change, heights: Any = SHUFFLED) -> Path:
    """Write a file after some changes."""
    dataset = enhanced(heights)
    for change in changes:
        change(dataset)
    save(path, dataset)
    return path


def write_series(folder: Path) -> None:
    """Write the same slices as single files."""
    folder.mkdir()
    whole = enhanced()
    for number, height in enumerate(SHUFFLED):
        dataset = deepcopy(whole)
        del dataset.SharedFunctionalGroupsSequence, dataset.PerFrameFunctionalGroupsSequence
        del dataset.NumberOfFrames
        dataset.SOPClassUID, dataset.SOPInstanceUID = CTImageStorage, generate_uid()
        dataset.ImagePositionPatient = position(height)
        dataset.ImageOrientationPatient = TURN.ravel().tolist()
        dataset.PixelSpacing, dataset.SliceThickness = [1.0, 1.0], 5.0
        dataset.RescaleSlope, dataset.RescaleIntercept = 1, -1024
        dataset.WindowCenter, dataset.WindowWidth = 100 + 10 * height, 401
        dataset.PixelData = volume()[height].tobytes()
        save(folder / f"{number}.dcm", dataset)


def group(dataset: Dataset, number: int) -> Dataset:
    found: Dataset = dataset.PerFrameFunctionalGroupsSequence[number]
    return found


@pytest.mark.parametrize("heights", [range(5), range(4, -1, -1), SHUFFLED])
@pytest.mark.parametrize("kind", [EnhancedCTImageStorage, EnhancedMRImageStorage])
def test_order_and_spacing_follow_from_positions(tmp_path: Path, heights: Any, kind: str) -> None:
    save(tmp_path / "in.dcm", enhanced(tuple(heights), kind))
    image = read_image(tmp_path / "in.dcm")
    np.testing.assert_array_equal(image.pixels, volume())
    assert image.axes == "ZYX"
    assert {axis: (s.value, s.unit) for axis, s in image.spacing.items()} == {
        "Z": (pytest.approx(DISTANCE), "mm"),
        "Y": (1.0, "mm"),
        "X": (1.0, "mm"),
    }
    assert image.header.window == (120 - 0.5 - 200, 120 - 0.5 + 200)  # of the slice in the middle
    display = (1, -1024, "HU") if kind == EnhancedCTImageStorage else (1, 0, "")
    assert tuple(image.header.display) == display


@pytest.mark.parametrize(
    "syntax", [ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless]
)
@pytest.mark.parametrize("count", [5, 4])
def test_copies_have_the_order_of_the_file(tmp_path: Path, syntax: UID, count: int) -> None:
    heights = [height for height in SHUFFLED if height < count]
    save(tmp_path / "in.dcm", enhanced(heights), syntax)
    image = read_image(tmp_path / "in.dcm")
    np.testing.assert_array_equal(image.pixels, volume()[:count])
    write_image(tmp_path / "out.dcm", image)
    old, new = (pydicom.dcmread(tmp_path / f"{name}.dcm") for name in ("in", "out"))
    np.testing.assert_array_equal(new.pixel_array, volume()[heights])
    np.testing.assert_array_equal(new.pixel_array, old.pixel_array)


def test_compressed_frames_in_several_parts_are_found(tmp_path: Path) -> None:
    """There is no table of such frames, and the decoder looks for them itself."""
    save(tmp_path / "in.dcm", enhanced(), RLELossless)
    dataset = pydicom.dcmread(tmp_path / "in.dcm")
    frames = list(generate_frames(dataset.PixelData, number_of_frames=5))
    dataset.PixelData = encapsulate(frames, fragments_per_frame=2, has_bot=True)
    dataset.save_as(tmp_path / "in.dcm")
    np.testing.assert_array_equal(read_image(tmp_path / "in.dcm").pixels, volume())


@pytest.mark.slow
def test_result_is_that_of_a_series(tmp_path: Path) -> None:
    """Bit for bit, with an estimated noise level too."""
    write_series(tmp_path / "series")
    save(tmp_path / "in.dcm", enhanced())
    for number, options in enumerate((SETTINGS, ("--engine", "numpy"))):
        for source, target in (("series", f"out{number}"), ("in.dcm", f"out{number}.dcm")):
            result = run("denoise", tmp_path / source, tmp_path / target, *options)
            assert result.exit_code == 0, result.stderr
            words = " ".join(result.stderr.split())
            assert "spacing 1.25 : 1 : 1 (z : y : x, from the file)" in words
            assert "shifts by -1024 for display" in words
        one, many = (read_image(tmp_path / f"out{number}{end}") for end in (".dcm", ""))
        np.testing.assert_array_equal(one.pixels, many.pixels)
        assert (one.pixels != volume()).any()
        assert one.spacing == many.spacing
        assert one.header.window == many.header.window
        assert one.header.display == many.header.display
    expected = denoise(volume(), axes="ZYX", spacing=(DISTANCE, 1, 1), **ARGUMENTS)
    np.testing.assert_array_equal(read_image(tmp_path / "out0.dcm").pixels, expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EnhancedCTImageStorage, EnhancedMRImageStorage])
def test_result_is_a_new_series_with_the_old_geometry(tmp_path: Path, kind: str) -> None:
    """Every element is compared, and another program finds the frames where they were."""
    save(tmp_path / "in.dcm", enhanced((4, 3, 2, 1, 0), kind))
    result = run("denoise", tmp_path / "in.dcm", tmp_path / "out.dcm", *SETTINGS)
    assert result.exit_code == 0, result.stderr
    old, new = (pydicom.dcmread(tmp_path / f"{name}.dcm") for name in ("in", "out"))
    keys = {e.keyword for e in old}, {e.keyword for e in new}
    assert keys[1] - keys[0] == {"SourceImageSequence", "DerivationDescription"}
    assert not keys[0] - keys[1]
    changed = {"SOPInstanceUID", "SeriesInstanceUID", "PixelData", "ImageType"}
    changed |= {"SeriesDescription", "SharedFunctionalGroupsSequence"}
    same = keys[0] - changed
    assert {key: new[key].value for key in same} == {key: old[key].value for key in same}
    assert new.SOPInstanceUID != old.SOPInstanceUID
    assert new.SeriesInstanceUID != old.SeriesInstanceUID
    assert new.SourceImageSequence[0].ReferencedSOPInstanceUID == old.SOPInstanceUID
    assert new.SeriesDescription == "T1 axial (denoised)"
    assert list(new.ImageType) == ["DERIVED", "PRIMARY", "VOLUME", "NONE"]
    # Frames say so as well, and nothing else changes in their groups.
    kinds = "MRImageFrameTypeSequence" if "MR" in old.Modality else "CTImageFrameTypeSequence"
    marked = new.SharedFunctionalGroupsSequence[0]
    assert list(marked[kinds][0].FrameType) == ["DERIVED", "PRIMARY", "VOLUME", "NONE"]
    marked[kinds][0].FrameType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    assert marked == old.SharedFunctionalGroupsSequence[0]
    before, after = (SimpleITK.ReadImage(str(tmp_path / f"{n}.dcm")) for n in ("in", "out"))
    assert after.GetSpacing() == pytest.approx(before.GetSpacing())
    assert after.GetOrigin() == before.GetOrigin()
    assert after.GetDirection() == before.GetDirection()
    offset = 1024 if kind == EnhancedCTImageStorage else 0
    seen = SimpleITK.GetArrayFromImage(after) + offset
    np.testing.assert_array_equal(seen, read_image(tmp_path / "out.dcm").pixels[::-1])


@pytest.mark.slow
def test_slices_on_request(tmp_path: Path) -> None:
    save(tmp_path / "in.dcm", enhanced())
    result = run("denoise", tmp_path / "in.dcm", tmp_path / "out.dcm", *SETTINGS, "--slices")
    assert result.exit_code == 0, result.stderr
    assert "spacing" not in result.stderr
    expected = denoise(volume(), axes="QYX", **ARGUMENTS)
    np.testing.assert_array_equal(read_image(tmp_path / "out.dcm").pixels, expected)


def tilted(dataset: Dataset) -> None:
    for number, height in enumerate(SHUFFLED):
        place = np.array(position(height)) + height * np.array([0.8, 0.6, 0])
        group(dataset, number).PlanePositionSequence = item(ImagePositionPatient=place.tolist())


def turned(dataset: Dataset) -> None:
    group(dataset, 2).PlaneOrientationSequence = item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])


def without_right_angles(dataset: Dataset) -> None:
    group(dataset, 1).PlaneOrientationSequence = item(ImageOrientationPatient=[1, 0, 0, 1, 0, 0])


def scaled(dataset: Dataset) -> None:
    for number in range(5):
        group(dataset, number).PixelValueTransformationSequence = item(
            RescaleSlope=1 + number, RescaleIntercept=0, RescaleType="BQML"
        )


def mapped(dataset: Dataset) -> None:
    for number in range(5):
        group(dataset, number).RealWorldValueMappingSequence = item(
            RealWorldValueSlope=1.0 + number, RealWorldValueIntercept=0.0
        )


def zoomed(dataset: Dataset) -> None:
    group(dataset, 4).PixelMeasuresSequence = item(PixelSpacing=[2.0, 2.0])


@pytest.mark.parametrize(
    ("heights", "change", "message"),
    [
        ((3, 0, 4, 1, 5), None, "1 slice is missing .*: 1 between frame 4 and frame 1. Get the f"),
        ((0, 1, 4, 5, 7), None, "3 slices are missing .*: 2 between frame 2 and frame 3, 1 betw"),
        ((4.4, 0, 1, 2, 3), None, "equal distances: they are 1.25 to 1.75 mm .* frame 5 and frame"),
        ((0, 1, 2, 0, 1, 2), None, "frame 1 and frame 4 lie at the same place, as in a file of"),
        (SHUFFLED, tilted, "frame . is shifted sideways against frame . by 1 mm"),
        (SHUFFLED, turned, "frame 1 and frame 3 lie at different angles"),
        (SHUFFLED, without_right_angles, "ImageOrientationPatient of frame 2 has no two direct"),
        (SHUFFLED, scaled, "frame 1 and frame 2 differ in their scale of values"),
        (SHUFFLED, mapped, "frame 1 and frame 2 differ in their scale of values"),
        (SHUFFLED, zoomed, "frame 1 and frame 5 differ in their spacing of pixels"),
    ],
)
def test_frames_that_are_no_volume_are_refused(
    tmp_path: Path, heights: Any, change: Change | None, message: str
) -> None:
    path = saved(tmp_path / "in.dcm", *filter(None, [change]), heights=heights)
    with pytest.raises(ImageFileError, match=f"^{path}: .*{message}.*--slices takes its frames"):
        read_image(path)
    image = read_image(path, slices=True)
    assert image.axes == "QYX"
    np.testing.assert_array_equal(image.pixels, pydicom.dcmread(path).pixel_array)


@pytest.mark.slow
def test_commands_take_such_frames_one_by_one(tmp_path: Path) -> None:
    path = saved(tmp_path / "in.dcm", heights=(0, 1, 2, 0, 1))
    result = run("denoise", path, tmp_path / "out.dcm", *SETTINGS)
    assert result.exit_code == 3
    assert "frame 1 and frame 4 lie at the same place" in " ".join(result.stderr.split())
    assert not (tmp_path / "out.dcm").exists()
    result = run("denoise", path, tmp_path / "out.dcm", *SETTINGS, "--slices")
    assert result.exit_code == 0, result.stderr
    expected = denoise(volume()[[0, 1, 2, 0, 1]], axes="QYX", **ARGUMENTS)
    np.testing.assert_array_equal(pydicom.dcmread(tmp_path / "out.dcm").pixel_array, expected)
    views = ("compare", path, tmp_path / "out.dcm"), ("explain", path, "--sigma", 12)
    for number, command in enumerate(views):
        output = tmp_path / f"out{number}.png"
        refused = run(*command, "--output", output)
        assert refused.exit_code == 3, refused.stderr
        drawn = run(*command, "--output", output, "--slices")
        assert drawn.exit_code == 0, drawn.stderr


def test_frames_with_scales_of_their_own_are_shown_as_stored(tmp_path: Path) -> None:
    image = read_image(saved(tmp_path / "in.dcm", scaled), slices=True)
    assert tuple(image.header.display) == (1, 0, "")
    assert image.header.window is None
    assert any("its frames have scales of their own" in note for note in image.notes)
    assert image.spacing["Y"].value == 1
    assert not read_image(saved(tmp_path / "zoomed.dcm", zoomed), slices=True).spacing


def test_frames_without_places_are_pages(tmp_path: Path) -> None:
    def unplaced(dataset: Dataset) -> None:
        for frame in dataset.PerFrameFunctionalGroupsSequence:
            del frame.PlanePositionSequence

    def without_groups(dataset: Dataset) -> None:
        del dataset.PerFrameFunctionalGroupsSequence

    for number, change in enumerate((unplaced, without_groups)):
        image = read_image(saved(tmp_path / f"{number}.dcm", change))
        assert image.axes == "QYX"
        np.testing.assert_array_equal(image.pixels, volume()[list(SHUFFLED)])
        assert any("does not say where its frames lie" in note for note in image.notes)


def test_other_files_with_frames_are_pages(tmp_path: Path) -> None:
    def other(dataset: Dataset) -> None:
        dataset.SOPClassUID = SecondaryCaptureImageStorage

    image = read_image(saved(tmp_path / "in.dcm", other, tilted))
    assert image.axes == "QYX"
    np.testing.assert_array_equal(image.pixels, volume()[list(SHUFFLED)])


def test_single_frame_is_an_image(tmp_path: Path) -> None:
    """Its scale and window are those of its groups."""
    image = read_image(saved(tmp_path / "in.dcm", heights=(2,)))
    assert image.axes == "YX"
    assert tuple(image.header.display) == (1, -1024, "HU")
    assert image.header.window == (120 - 0.5 - 200, 120 - 0.5 + 200)


def odd_position(*value: object) -> Change:
    def change(dataset: Dataset) -> None:
        place = group(dataset, 1).PlanePositionSequence[0]
        place.add_new(0x00200032, "DS", "")
        place["ImagePositionPatient"]._value = list(value)

    return change


def fewer_groups(dataset: Dataset) -> None:
    del dataset.PerFrameFunctionalGroupsSequence[3]


def no_orientation(dataset: Dataset) -> None:
    del dataset.SharedFunctionalGroupsSequence


def one_without_position(dataset: Dataset) -> None:
    group(dataset, 4).PlanePositionSequence = []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (odd_position("nan", "0", "0"), "frame 2 has no usable element ImagePositionPatient"),
        (odd_position("inf", "0", "0"), "frame 2 has no usable element ImagePositionPatient"),
        (odd_position("1e300", "0", "0"), "frame 2 has no usable element ImagePositionPatient"),
        (odd_position("1", "0"), "frame 2 has no usable element ImagePositionPatient"),
        (one_without_position, "frame 5 has no usable element ImagePositionPatient"),
        (no_orientation, "frame 1 has no usable element ImageOrientationPatient"),
        (fewer_groups, "it has 5 frames, and PerFrameFunctionalGroupsSequence has 4 items"),
    ],
)
def test_damaged_groups_are_named(tmp_path: Path, change: Change, message: str) -> None:
    path = saved(tmp_path / "in.dcm", change)
    with pytest.raises(ImageFileError, match=f"^{path}: .*{message}") as caught:
        read_image(path)
    assert len(str(caught.value)) < 500
    with open_image(path, slices=True) as reader:
        assert reader.header.axes == "QYX"
        assert len(list(reader.planes())) == 5


@pytest.mark.parametrize("frames", [2**31 - 1, 6, -3])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_absurd_numbers_of_frames(tmp_path: Path, frames: int) -> None:
    def change(dataset: Dataset) -> None:
        dataset.NumberOfFrames = frames

    path = saved(tmp_path / "in.dcm", change)
    with pytest.raises(ImageFileError, match=r"bytes of pixels in|-3 frames|cannot be decoded \("):
        read_image(path, slices=True)


def test_groups_of_another_type_are_refused(tmp_path: Path) -> None:
    """Several slopes in place of one, and text in place of a sequence."""

    def slopes(dataset: Dataset) -> None:
        shared = dataset.SharedFunctionalGroupsSequence[0]
        shared.PixelValueTransformationSequence[0].RescaleSlope = [1, 2]

    path = saved(tmp_path / "in.dcm", slopes)
    with pytest.raises(ImageFileError, match=r"RescaleSlope .* must be one number"):
        read_image(path)

    def text(dataset: Dataset) -> None:
        del dataset.PerFrameFunctionalGroupsSequence
        dataset.add_new(0x52009230, "LO", "none")

    image = read_image(saved(tmp_path / "text.dcm", text))
    assert image.axes == "QYX"


def test_every_cut_is_refused(tmp_path: Path) -> None:
    whole = saved(tmp_path / "in.dcm").read_bytes()
    for length in range(140, len(whole) - 5 * 20 * 24 * 2, 97):
        (tmp_path / "cut.dcm").write_bytes(whole[:length])
        with pytest.raises(ImageFileError, match=r"cut\.dcm: "):
            read_image(tmp_path / "cut.dcm")


def test_result_with_other_frames_is_refused(tmp_path: Path) -> None:
    image = read_image(saved(tmp_path / "in.dcm"))
    with pytest.raises(ImageFileError, match="as many frames as its source"):
        write_image(tmp_path / "out.dcm", replace(image, pixels=image.pixels[:3]))
