"""DICOM, through pydicom. Frames are read and written one by one, all other elements are kept.

The frames of an enhanced multi-frame file of CT, MR or PET are the slices of a volume if they lie
behind each other at equal distances. They are read in the order of their places, and a result has
them in the order of its source.

Values are the stored ones: slope and intercept stay as they are. The result is a derived image in
the sense of the standard, so it gets a new identity in a new series, a description of what was done
and a reference to its source. The new series follows from the old one and the settings, so that the
files of a series stay together however they are denoised. The element of the pixels is written
here: pydicom takes a seekable buffer of all frames, which would first have to be written to a
second file.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Generator, Iterator
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from pydicom import Dataset, dcmread, dcmwrite
from pydicom.datadict import keyword_for_tag
from pydicom.errors import BytesLengthException, InvalidDicomError
from pydicom.filereader import _read_file_meta_info, read_preamble
from pydicom.multival import MultiValue
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.utils import iter_pixels
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    EnhancedCTImageStorage,
    EnhancedMRImageStorage,
    EnhancedPETImageStorage,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    LegacyConvertedEnhancedCTImageStorage,
    LegacyConvertedEnhancedMRImageStorage,
    LegacyConvertedEnhancedPETImageStorage,
    generate_uid,
)

from integrodiff.io.access import (
    ImageReader,
    ImageWriter,
    refusal,
    refuse_bomb,
    refuse_missing_bytes,
    refuse_no_pixels,
)
from integrodiff.io.formats.dicom_elements import (
    GREY_VALUES,
    SPACING,
    compared_properties,
    display_of,
    distances_of,
    frame_elements,
    image_elements,
    items_of,
    pixel_spacing_of,
    rescaling,
    scale_of,
    window_of,
    without,
)
from integrodiff.io.formats.dicom_frames import BoundedFile, checked_frames, frame_places
from integrodiff.io.formats.dicom_slices import (
    NoVolumeError,
    Words,
    order_and_distance,
    refuse_differences,
)
from integrodiff.io.image import (
    Derivation,
    Display,
    FormatDetails,
    ImageHeader,
    Metadata,
    Page,
)
from integrodiff.io.spacing import Spacing, declared
from integrodiff.validity import Nodata, nodata_value

_PIXELS = 0x7FE00010
_PLAIN = (ImplicitVRLittleEndian, ExplicitVRLittleEndian, ExplicitVRBigEndian)
_WHITE_IS_ZERO, _COLOUR = "MONOCHROME1", "RGB"
_GREY = (_WHITE_IS_ZERO, "MONOCHROME2")
_KINDS = (*_GREY, _COLOUR, "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT")
_ENHANCED = (
    EnhancedCTImageStorage,
    EnhancedMRImageStorage,
    EnhancedPETImageStorage,
    LegacyConvertedEnhancedCTImageStorage,
    LegacyConvertedEnhancedMRImageStorage,
    LegacyConvertedEnhancedPETImageStorage,
)
"""Kinds of files whose frames may be the slices of a volume."""

_REMEDY = "--slices takes its frames one by one"
_WORDS = Words(whole="file", remedy=_REMEDY, apart=_REMEDY)

_LARGEST = 2**32 - 2
"""Largest number of bytes in an element."""

# Elements about the encoding of frames, or their extremes, that are not true for a new file.
_DROPPED = (
    "ExtendedOffsetTable",
    "ExtendedOffsetTableLengths",
    "LargestImagePixelValue",
    "PixelDataProviderURL",
    "SmallestImagePixelValue",
)
_FRAME_KINDS = ("CTImageFrameTypeSequence", "MRImageFrameTypeSequence", "PETFrameTypeSequence")
_SUFFIX = " (denoised)"
"""What the description of a series gets."""

_LONGEST_NAME, _LONGEST_TEXT = 64, 1024
"""Characters of a short and of a long description."""

_BEHIND_PIXELS = 0x7FE00008
"""From here on there are only pixels, padding, and signatures that are no longer valid."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DicomDetails(FormatDetails):
    """All elements before the pixels.

    Attributes
    ----------
    dataset : Dataset
        The elements.
    shown : Dataset
        Those that say how grey values are shown, of the image or of a frame that stands for all.
    order : tuple of int
        Where each page is in the file, counted from zero; empty if pages are in its order.
    """

    format: ClassVar[str] = "DICOM"
    dataset: Dataset
    shown: Dataset = field(default_factory=Dataset)
    order: tuple[int, ...] = ()

    @property
    def only_here(self) -> str | None:
        """The metadata that is lost in a file of another format, in words for the user."""
        return "all that the DICOM file says about patient, study and geometry"

    @property
    def display(self) -> Display:
        """The values after the rescaling of the file, in Hounsfield units for CT."""
        return display_of(self.shown)

    @property
    def window(self) -> tuple[float, float] | None:
        """The first window that the file proposes, for the frame in the middle of several."""
        return window_of(self.shown)


class Reader(ImageReader):
    """A DICOM image with one or more frames."""

    # The first two over elements that are missing or of the wrong type.
    library_errors = (AttributeError, TypeError, BytesLengthException, InvalidDicomError)

    def _read_header(self) -> ImageHeader:
        with BoundedFile(self.path) as stream:
            read_preamble(stream, force=False)
            syntax = UID(str(_read_file_meta_info(stream).get("TransferSyntaxUID", "")))
            _refuse_syntax(self.path, syntax)
            stream.seek(0)
            dataset = dcmread(stream, stop_before_pixels=True)
        kind = str(dataset.get("PhotometricInterpretation", ""))
        if kind not in _KINDS:
            raise refusal(
                self.path,
                f"has pixels of the kind {_shown(kind)}; supported are MONOCHROME1, "
                "MONOCHROME2, RGB and YBR. Convert it",
            )
        size = _number(self.path, dataset, "Rows"), _number(self.path, dataset, "Columns")
        frames = _number(self.path, dataset, "NumberOfFrames", 1) or 1
        samples = _number(self.path, dataset, "SamplesPerPixel")
        dtype = _dtype(self.path, dataset)
        if samples != (1 if kind in _GREY else 3):
            raise refusal(
                self.path, f"has {samples} samples per pixel, which contradicts its kind {kind}"
            )
        if frames < 1:
            raise refusal(self.path, f"is damaged: it has {frames} frames")
        refuse_no_pixels(self.path, size)
        self._compressed = compressed = syntax not in _PLAIN
        needed = frames * size[0] * size[1] * samples * dtype.itemsize
        if kind == "YBR_FULL_422":
            needed = needed * 2 // 3
        there = self.path.stat().st_size
        refuse_missing_bytes(self.path, needed, there, compressed=compressed)
        if compressed:
            refuse_bomb(self.path, size)
        stack = _stack(dataset, frames)
        letter = "Z" if stack.order else _frame_axis(dataset)
        axes = (letter if frames > 1 else "") + ("YXS" if samples == 3 else "YX")
        spacing = declared(_distances(dataset, stack.shown), axes)
        if stack.distance is not None:
            spacing["Z"] = Spacing(stack.distance, "mm")
        self._order = stack.order
        return ImageHeader(
            shape=(*((frames,) if frames > 1 else ()), *size, *((3,) if samples == 3 else ())),
            dtype=dtype,
            axes=axes,
            spacing=spacing,
            nodata=_padding(dataset, dtype) if samples == 1 else (),
            metadata=Metadata(
                white_is_zero=kind == _WHITE_IS_ZERO,
                own=DicomDetails(dataset=dataset, shown=stack.shown, order=stack.order),
            ),
            notes=(*_notes(stack.shown, kind, syntax), *stack.notes),
            no_volume=stack.no_volume,
        )

    def _read_pages(self) -> Iterator[Page]:
        order = None if self._order == tuple(range(self.header.pages)) else self._order or None
        with BoundedFile(self.path) as stream, BoundedFile(self.path) as again:
            known: dict[str, Any] = {"indices": order}
            places = None
            if self._compressed and order is not None:
                places = frame_places(again, self.header.pages)
                known |= {} if places is None else {"extended_offsets": places}
            frames = cast("Generator[NDArray[Any], None, None]", iter_pixels(stream, **known))
            checked = checked_frames(
                again, self.header.pages, self.header.size, order=order, places=places
            )
            with closing(frames):
                while True:
                    if self._compressed:
                        next(checked)
                    if (pixels := next(frames, None)) is None:
                        return
                    yield Page(np.ascontiguousarray(pixels, self.header.dtype))


class _Stack(NamedTuple):
    """What the frames of a file are.

    Attributes
    ----------
    shown : Dataset
        Elements that hold for all frames, or for the one in the middle.
    order : tuple of int
        Where each slice of a volume is in the file; empty if the frames are none.
    distance : float, optional
        Distance of the slices in mm.
    no_volume : str, optional
        Why frames with places in space are no volume.
    notes : tuple of str
        Remarks for the user.
    """

    shown: Dataset
    order: tuple[int, ...] = ()
    distance: float | None = None
    no_volume: str | None = None
    notes: tuple[str, ...] = ()


def _stack(dataset: Dataset, frames: int) -> _Stack:
    """Find out whether frames are the slices of a volume."""
    common = image_elements(dataset)
    if dataset.get("SOPClassUID") not in _ENHANCED:
        return _Stack(common)
    each = frame_elements(dataset)
    if frames == 1:
        return _Stack(each[0] if len(each) == 1 else common)
    if not any(elements.get("ImagePositionPatient") for elements in (common, *each)):
        words = "does not say where its frames lie (ImagePositionPatient), so that they are pages"
        return _pages(common, each, frames, notes=(f"{words} and no volume",))
    try:
        if len(each) != frames:
            raise NoVolumeError(
                f"is damaged: it has {frames} frames, and PerFrameFunctionalGroupsSequence has "
                f"{len(each)} items; {_REMEDY}"
            )
        names = [f"frame {number}" for number in range(1, frames + 1)]
        order, distance = order_and_distance(names, each, _WORDS)
        refuse_differences(names, map(compared_properties, each), _WORDS)
    except NoVolumeError as error:
        return _pages(common, each, frames, no_volume=str(error))
    return _Stack(each[order[frames // 2]], tuple(order), distance)


def _pages(
    common: Dataset,
    each: list[Dataset],
    frames: int,
    *,
    no_volume: str | None = None,
    notes: tuple[str, ...] = (),
) -> _Stack:
    """Return frames that are no volume; what differs between them is said of none."""
    if len(each) != frames:
        return _Stack(common, no_volume=no_volume, notes=notes)
    shown = each[frames // 2]
    if len({pixel_spacing_of(elements) for elements in each}) > 1:
        shown = without(shown, SPACING)
    if len({scale_of(elements) for elements in each}) > 1:
        shown = without(shown, GREY_VALUES)
        notes = (
            *notes,
            "its frames have scales of their own: sigma is that of the stored grey levels, and "
            "pictures show the stored ones",
        )
    return _Stack(shown, no_volume=no_volume, notes=notes)


def _refuse_syntax(path: Path, syntax: UID) -> None:
    """Refuse an encoding that cannot be decoded here."""
    if syntax in _PLAIN:
        return
    if syntax == DeflatedExplicitVRLittleEndian:
        raise refusal(
            path,
            "is compressed as a whole, which is not supported; decompress it first, for example "
            "by dcmconv +te IN OUT",
        )
    remedy = "Decompress it first, for example by gdcmconv --raw IN OUT"
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise refusal(path, f"has pixels encoded as {_shown(syntax.name)}. {remedy}") from None
    if not decoder.is_available:
        raise refusal(
            path,
            f"has pixels compressed as {syntax.name}, and no package that decodes them is "
            f"installed: pip install 'pylibjpeg[all]'. {remedy}",
        )


def _shown(value: str) -> str:
    """Return what a file says in a form that fits into a message."""
    return ascii(value)[1:-1][:80] or "unknown"


def _number(path: Path, dataset: Dataset, name: str, default: int | None = None) -> int:
    """Return an element that counts, or refuse a file that has none."""
    value = dataset.get(name)
    if value is None and default is not None:
        return default
    try:
        return int(value)
    except (TypeError, ValueError):
        raise refusal(path, f"is damaged: it has no usable element {name}") from None


def _frame_axis(dataset: Dataset) -> str:
    """Return the axis that frames are counted along, if the file says it in a word."""
    pointer = dataset.get("FrameIncrementPointer")
    axes = {"FrameTime": "T", "FrameTimeVector": "T", "TimeSlotVector": "T"}
    axes |= {"SliceVector": "Z", "GridFrameOffsetVector": "Z"}
    keyword = keyword_for_tag(pointer) if isinstance(pointer, int) else ""
    return axes.get(keyword, "Q")


def _distances(dataset: Dataset, shown: Dataset) -> Iterator[tuple[str, Any, str]]:
    """Give the distances of pixels and slices, and of frames in time."""
    yield from distances_of(shown)
    yield "T", dataset.get("FrameTime"), "ms"


def _dtype(path: Path, dataset: Dataset) -> np.dtype[Any]:
    """Return the dtype of the stored values."""
    bits, used = (_number(path, dataset, name) for name in ("BitsAllocated", "BitsStored"))
    if bits not in (8, 16, 32) or not 1 < used <= bits:
        raise refusal(path, f"has {used} of {bits} bits per sample; supported are 8, 16 and 32")
    if _number(path, dataset, "HighBit", used - 1) != used - 1:
        raise refusal(path, "has its values in the upper bits of its samples; convert it")
    signed = _number(path, dataset, "PixelRepresentation") == 1
    return np.dtype(f"{'i' if signed else 'u'}{bits // 8}")


def _padding(dataset: Dataset, dtype: np.dtype[Any]) -> tuple[Nodata, ...]:
    """Return the stored values that stand for no image at all, outside of a round field of view."""
    ends = [dataset.get(name) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit")]
    values = [_stored(value, dtype) for value in ends if isinstance(value, int)]
    if not isinstance(ends[0], int):
        return ()
    lowest, highest = min(values), max(values)
    if lowest == highest:
        return (nodata_value(lowest, "padding value"),)
    return (Nodata(lowest, highest, f"padding values {lowest} to {highest}"),)


def _stored(value: int, dtype: np.dtype[Any]) -> int:
    """Return a value as pixels store it; some programs write negative ones as if unsigned."""
    bits = 8 * dtype.itemsize
    wrapped = dtype.kind == "i" and 2 ** (bits - 1) <= value < 2**bits
    return value - 2**bits if wrapped else value


def _notes(shown: Dataset, kind: str, syntax: UID) -> tuple[str, ...]:
    """Report what differs from the file, or from what other programs show."""
    notes = []
    slope, intercept = rescaling(shown)
    if (slope, intercept) != (1, 0):
        notes.append(
            f"the file scales its grey levels by {slope:g} and shifts by {intercept:g} for "
            "display: sigma is that of the stored ones, pictures show the displayed ones"
        )
    if kind.startswith("YBR"):
        notes.append(f"the colours were converted from {kind} to RGB")
    if syntax not in _PLAIN:
        notes.append(f"the pixels were compressed ({syntax.name}); those of a DICOM result are not")
    return tuple(notes)


class Writer(ImageWriter):
    """A DICOM file with the elements of the one that the image came from."""

    format = "DICOM"

    def _start(self) -> None:
        header, own = self.header, self.header.metadata.own
        if not isinstance(own, DicomDetails):
            raise TypeError("a DICOM file is written only from another one, with its elements")
        elements, syntax = _encoded(own.dataset, header.metadata.derivation)
        order: Literal["<", ">"] = ">" if syntax == ExplicitVRBigEndian else "<"
        self._dtype = header.dtype.newbyteorder(order)
        used = int(own.dataset.BitsStored)
        signed = header.dtype.kind == "i"
        self._limits = (-(2 ** (used - 1)), 2 ** (used - 1) - 1) if signed else (0, 2**used - 1)
        self._padding = header.nbytes % 2
        self._bytes = header.nbytes // header.pages
        # Pages that are too many follow all frames; the count of pages refuses them.
        self._numbers = chain(own.order or range(header.pages), count(header.pages))
        self._stream = self._opened.enter_context(self.path.open("wb"))
        # The element of the pixels comes last, so the frames can follow one by one.
        self._stream.write(elements)
        length = header.nbytes + self._padding
        self._stream.write(struct.pack(f"{order}HH", _PIXELS >> 16, _PIXELS & 0xFFFF))
        if syntax == ImplicitVRLittleEndian:
            self._stream.write(struct.pack("<I", length))
        else:
            kind = b"OB" if header.dtype.itemsize == 1 else b"OW"
            self._stream.write(struct.pack(f"{order}2sHI", kind, 0, length))
        self._first = self._stream.tell()

    @staticmethod
    def problem(header: ImageHeader) -> str | None:
        """Return why DICOM cannot hold the image, or None if it can."""
        own = header.metadata.own
        if own is not None and own.format.startswith(f"{DicomDetails.format} "):
            return "a DICOM series is a folder of files; give a name without file extension"
        if not isinstance(own, DicomDetails):
            return (
                "DICOM is written from DICOM only, which says what patient and study the pixels "
                "belong to; write TIFF (.tif) instead"
            )
        if header.dtype.kind not in "iu":
            return f"DICOM images hold integers, not {header.dtype}; write TIFF (.tif) instead"
        if own.order and header.pages != len(own.order):
            return "DICOM is written with as many frames as its source has; write TIFF instead"
        if header.nbytes > _LARGEST:
            return "DICOM cannot hold more than 4 GB of pixels without compression; write TIFF"
        try:
            _encoded(own.dataset, header.metadata.derivation)
        except Exception as error:  # whatever comes of elements that are damaged
            reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            return f"elements of the DICOM file cannot be written again ({reason}); write TIFF"
        return None

    def write(self, page: Page) -> None:
        """Write the next frame to its place, with values that its bits can hold."""
        pixels = np.clip(page.pixels, *self._limits)
        if page.valid is not None:
            pixels = np.where(
                page.valid if pixels.ndim == 2 else page.valid[..., None], pixels, page.pixels
            )
        self._stream.seek(self._first + next(self._numbers) * self._bytes)
        self._stream.write(np.ascontiguousarray(pixels, self._dtype).tobytes())

    def close(self) -> None:
        """Finish the file."""
        if not self._stream.closed:
            self._stream.seek(0, io.SEEK_END)
            self._stream.write(bytes(self._padding))
        super().close()

    @property
    def notes(self) -> tuple[str, ...]:
        """Say that the file is another one now."""
        return ("the file belongs to a new series and is marked as derived from its source",)


def _encoded(original: Dataset, derivation: Derivation | None) -> tuple[bytes, UID]:
    """Return the elements of the derived image, and their transfer syntax."""
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is odd in the source stays so
        dataset = _derived(original, derivation or Derivation())
        syntax = UID(dataset.file_meta.TransferSyntaxUID)
        dcmwrite(
            stream,
            dataset,
            implicit_vr=syntax == ImplicitVRLittleEndian,
            little_endian=syntax != ExplicitVRBigEndian,
        )
    return stream.getvalue(), syntax


def _derived(original: Dataset, derivation: Derivation) -> Dataset:
    """Return the elements for an image that is derived from another."""
    dataset = deepcopy(original)
    for name in _DROPPED:
        if name in dataset:
            delattr(dataset, name)
    for tag in [tag for tag in dataset.keys() if tag >= _BEHIND_PIXELS]:  # noqa: SIM118
        del dataset[tag]
    source = Dataset()
    source.ReferencedSOPClassUID = original.get("SOPClassUID", "")
    source.ReferencedSOPInstanceUID = original.get("SOPInstanceUID", "")
    dataset.SourceImageSequence = [*original.get("SourceImageSequence", []), source]
    kinds = original.get("ImageType") or []
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    dataset.ImageType = ["DERIVED", *(kinds[1:] or ["PRIMARY"])]
    _mark_frames(dataset)
    _identify(dataset, original, derivation)
    meta = dataset.file_meta
    meta.FileMetaInformationGroupLength = 0  # pydicom counts, but writes over a damaged one in part
    meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    if meta.TransferSyntaxUID not in _PLAIN:
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
    if str(dataset.PhotometricInterpretation).startswith("YBR"):
        dataset.PhotometricInterpretation = _COLOUR
    if "PlanarConfiguration" in dataset:
        dataset.PlanarConfiguration = 0
    return dataset


def _mark_frames(dataset: Dataset) -> None:
    """Mark the frames of an enhanced file as derived, where it says how they came about."""
    for name in ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"):
        for groups in items_of(dataset, name):
            for kind in _FRAME_KINDS:
                for item in items_of(groups, kind):
                    if isinstance(words := item.get("FrameType"), MultiValue):
                        item.FrameType = ["DERIVED", *words[1:]]


def _identify(dataset: Dataset, original: Dataset, derivation: Derivation) -> None:
    """Give a derived image identifiers of its own, and words on how it came about."""
    settings = derivation.settings
    for name in ("SOPInstanceUID", "SeriesInstanceUID"):
        old = original.get(name)
        # Without settings, nobody knows whether two images are the same.
        same = old and (settings or name == "SeriesInstanceUID")
        setattr(dataset, name, generate_uid(entropy_srcs=[str(old), settings] if same else None))
    before = str(original.get("SeriesDescription") or "").removesuffix(_SUFFIX)
    dataset.SeriesDescription = (before[: _LONGEST_NAME - len(_SUFFIX)] + _SUFFIX).lstrip()
    told = [str(original.get("DerivationDescription") or ""), derivation.words or "denoised"]
    dataset.DerivationDescription = "; ".join(filter(None, told))[-_LONGEST_TEXT:]
