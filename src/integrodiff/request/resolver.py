"""The resolver: combine a request with an image, and determine what is computed."""

from __future__ import annotations

from integrodiff.request.arguments import Request, Source
from integrodiff.request.given import check_map
from integrodiff.request.resolved import InvalidPixels, ResolvedRequest
from integrodiff.request.survey import Survey
from integrodiff.request.volumes import checked_volume
from integrodiff.request.warn import (
    warn_of_doubt,
    warn_of_variation,
    warn_of_void_planes,
    warn_outside_training,
)


def resolve(request: Request, source: Source, sample: Source | None = None) -> ResolvedRequest:
    """Determine noise, grey range and colour space of each channel; estimate what is missing.

    The image is read, once and plane by plane, only if something depends on its values.

    Parameters
    ----------
    request : Request
        What is asked for.
    source : Source
        The image. If there is a sample, its planes are not read.
    sample : Source, optional
        Windows of an image that is too large to read, as planes with the same channels and samples.
        All missing values are estimated from them, and the number of invalid pixels is unknown.

    Raises
    ------
    ValueError
        If the request does not fit the image, or too few pixels are valid to estimate the noise.

    Warns
    -----
    NoiseLevelWarning
        If the noise cannot be estimated well, or a given data range puts the noise level far
        outside the range that the model was trained for.
    NoValidPixelsWarning
        If a plane has no valid pixel.
    VolumeModelWarning
        If the image is a volume, and the parameters of the model were trained on images, or its
        slices are thick.
    """
    layout, request = source.layout, request.stored(source.units)
    check_map(request, layout)
    volume = checked_volume(request, source)
    if request.noise == "rician" and layout.samples > 1:
        raise ValueError(
            "Rician noise is that of magnitudes, one value at each pixel; this image has "
            f"{layout.samples} samples"
        )
    seen = layout if sample is None else sample.layout
    planes = seen.plane_count // seen.channels
    surveys = [
        Survey(request, source, number, volume, planes, sampled=sample is not None)
        for number in range(layout.channels)
    ]
    if sample is None:
        invalid = _read(surveys, source)
    else:
        invalid = None
        if any(survey.looks_closer or survey.needs_extremes for survey in surveys):
            _read(surveys, sample)
    varying = [survey.variation() for survey in surveys]
    if len(surveys) == 1 and varying[0] is not None and surveys[0].can_share_a_map:
        request = surveys[0].with_map(layout)
        varying = [None]
    channels = tuple(survey.resolved(channel, layout) for channel, survey in enumerate(surveys))
    warn_of_void_planes(invalid)
    for number, channel in enumerate(channels):
        which = f" of channel {number + 1}" if len(channels) > 1 else ""
        reported = channel.in_units(source.units)
        warn_outside_training(request, reported, which)
        warn_of_doubt(reported, which)
        warn_of_variation(varying[number], source.units.size, which)
    return ResolvedRequest(
        request=request,
        layout=layout,
        dtype=source.dtype,
        channels=channels,
        validity=source.validity,
        invalid=invalid,
        volume=volume,
        units=source.units,
    )


def _read(surveys: list[Survey], source: Source) -> InvalidPixels | None:
    """Pass the planes of an image to the surveys of their channels, if any needs them.

    Return the number of invalid pixels, or None if there are none.
    """
    layout, validity = source.layout, source.validity
    masked = validity.may_exclude(source.dtype)
    if not masked and not any(survey.looks_closer or survey.needs_extremes for survey in surveys):
        return None
    invalid: list[int] = []
    reasons: dict[str, None] = {}
    for number, plane in enumerate(source.planes()):
        channel = layout.channel_of(number)
        mask = validity.of(plane, number) if masked else None
        invalid.append(0 if mask is None else layout.pixels - int(mask.sum()))
        if mask is not None:
            reasons |= dict.fromkeys(validity.reasons(plane, number))
        slice_ = number // layout.planes_between_slices % layout.slices
        surveys[channel].look_at(plane, mask, slice_)
    if not any(invalid):
        return None
    height, width = layout.size
    return InvalidPixels(counts=tuple(invalid), plane_size=height * width, reasons=tuple(reasons))
