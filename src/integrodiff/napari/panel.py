"""The panel of the plugin: choose a layer and settings, preview, denoise, cancel, copy as Python.

It holds no denoising of its own. What a person chooses becomes :class:`~integrodiff.napari.job.\
Settings`, the arguments of :func:`integrodiff.denoise`; messages, warnings and errors are those of
the package, in the words of the panel.
"""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import numpy as np
from magicgui.widgets import (
    CheckBox,
    ComboBox,
    Container,
    FileEdit,
    Label,
    LineEdit,
    ProgressBar,
    PushButton,
)
from napari.layers import Image, Labels
from napari.utils.notifications import notification_manager, show_error

from integrodiff import __version__
from integrodiff._default_model import DEFAULT_MODEL
from integrodiff.colour import COLOURS
from integrodiff.models import MODEL_NAMES
from integrodiff.napari.code import as_python
from integrodiff.napari.job import Outcome, Progress, Settings, denoising
from integrodiff.napari.layers import (
    Part,
    appearance,
    display,
    known_axes,
    pixels,
    possible_axes,
    spacing,
    valid_pixels,
    visible_part,
    whole,
)
from integrodiff.request import NOISES

CHOOSE = "choose"
"""Entry for axes that the layer does not tell."""

PREVIEW = "preview of "

_LOG = logging.getLogger(__name__)


@dataclass(eq=False)
class _Run:
    """A computation, and how its result is to be shown."""

    name: str
    is_preview: bool
    shown: dict[str, Any]
    grey: dict[str, Any]
    code: str
    settings: Settings
    stopped: threading.Event = field(default_factory=threading.Event)
    warnings: list[str] = field(default_factory=list)
    worker: Any = None


class DenoisePanel(Container):  # type: ignore[misc]  # napari may not be installed
    """Choose a layer and settings, preview on the visible part, and denoise.

    Parameters
    ----------
    napari_viewer : napari.Viewer
        The viewer.
    """

    def __init__(self, napari_viewer: Any) -> None:
        self._viewer = napari_viewer
        self._run: _Run | None = None
        self.message = ""
        self.layer = ComboBox(label="layer", choices=self._images)
        self.axes = ComboBox(label="axes", choices=self._axes_choices)
        self.use_scale = CheckBox(text="spacing from the layer's scale", value=True)
        self.geometry = Label(value="")
        self.model = ComboBox(label="model", choices=MODEL_NAMES, value=DEFAULT_MODEL)
        self.model_file = FileEdit(label="own model", mode="r", filter="*.json", nullable=True)
        self.noise = ComboBox(label="noise", choices=NOISES)
        self.sigma = LineEdit(label="noise level")
        self.sigma.native.setPlaceholderText("estimate")
        self.sigma.tooltip = (
            "Standard deviation in grey levels of the layer, or one for each channel or colour "
            "sample, separated by commas. Empty: it is estimated."
        )
        self.mask = ComboBox(label="valid where", choices=self._masks, nullable=True)
        self.mask.tooltip = "A layer that is not zero at valid pixels. NaN is invalid by itself."
        self.colour = ComboBox(label="colour", choices=COLOURS)
        self.as_float = CheckBox(text="result in floating point", value=False)
        self.exact = CheckBox(text="exact, without shortcuts", value=False)
        self.keep_removed = CheckBox(text="removed noise as a layer", value=True)
        self.preview = PushButton(text="Preview the visible part")
        self.start = PushButton(text="Denoise the whole layer")
        self.cancel = PushButton(text="Cancel", enabled=False)
        self.progress = ProgressBar(value=0, min=0, max=1)
        self.copy = PushButton(text="Copy as Python")
        self.status = Label(value="")
        for label in (self.geometry, self.status):
            label.native.setWordWrap(True)
            label.native.setMinimumWidth(240)  # otherwise words break where there is room
        super().__init__(
            widgets=[
                self.layer,
                self.axes,
                self.use_scale,
                self.geometry,
                self.model,
                self.model_file,
                self.noise,
                self.sigma,
                self.mask,
                self.colour,
                self.as_float,
                self.exact,
                self.keep_removed,
                self.preview,
                self.start,
                self.progress,
                self.cancel,
                self.copy,
                self.status,
            ]
        )
        self._watched: Any = None
        self.layer.changed.connect(self._layer_changed)
        for widget in (self.axes, self.use_scale):
            widget.changed.connect(self._show_geometry)
        self.preview.clicked.connect(self.start_preview)
        self.start.clicked.connect(self.start_whole)
        self.cancel.clicked.connect(self.stop)
        self.copy.clicked.connect(self.copy_code)
        layers = self._viewer.layers
        for event in (layers.events.inserted, layers.events.removed, layers.events.renamed):
            event.connect(self._layers_changed)
        active = layers.selection.active
        if isinstance(active, Image):
            self.layer.value = active
        self._layer_changed()

    # What can be chosen.

    def _images(self, _: Any) -> list[Any]:
        return [layer for layer in self._viewer.layers if isinstance(layer, Image)]

    def _masks(self, _: Any) -> list[Any]:
        return [layer for layer in self._viewer.layers if isinstance(layer, (Labels, Image))]

    def _axes_choices(self, _: Any) -> list[str]:
        layer = self.layer.value
        if layer is None or layer.ndim < 2:
            return [CHOOSE]
        known, possible = known_axes(layer), possible_axes(layer)
        if known is None:
            return possible if len(possible) == 1 else [CHOOSE, *possible]
        return [known, *(axes for axes in possible if axes != known)]

    def _layers_changed(self, _: Any = None) -> None:
        """Offer the layers that there are now; keep what was chosen."""
        before, axes, mask = self.layer.value, self.axes.value, self.mask.value
        self.layer.reset_choices()
        self.mask.reset_choices()
        # To the boxes a layer with another name is another one.
        if mask in self.mask.choices:
            self.mask.value = mask
        if before is not None and before in self.layer.choices:
            self.layer.value, self.axes.value = before, axes
        elif self.layer.value is not before:
            self._layer_changed()

    def _layer_changed(self, _: Any = None) -> None:
        self._watch(self.layer.value)
        self.axes.reset_choices()
        self.axes.value = self.axes.choices[0]
        self.colour.visible = self.layer.value is not None and bool(self.layer.value.rgb)
        self._show_geometry()

    def _watch(self, layer: Any) -> None:
        """Follow what the chosen layer says about itself."""
        if layer is self._watched:
            return
        for one, change in ((self._watched, "disconnect"), (layer, "connect")):
            if one is None:
                continue
            for name in ("scale", "units"):
                getattr(getattr(one.events, name), change)(self._show_geometry)
            for name in ("axis_labels", "data"):
                getattr(getattr(one.events, name), change)(self._axes_changed)
        self._watched = layer

    def _axes_changed(self, _: Any = None) -> None:
        """Offer the axes of the layer as it is now; keep the choice if they did not change."""
        before = list(self.axes.choices)
        self.axes.reset_choices()
        if list(self.axes.choices) != before:
            self.axes.value = self.axes.choices[0]
        self._show_geometry()

    def _show_geometry(self, _: Any = None) -> None:
        """Show shape, data type and spacing of the layer."""
        self.geometry.value = self._geometry()

    def _geometry(self) -> str:
        layer = self.layer.value
        if layer is None:
            return "no image layer"
        image = pixels(layer)
        size = " x ".join(str(length) for length in image.shape)
        text = f"{size}, {image.dtype}"
        if self.axes.value in (None, CHOOSE):
            return text
        try:
            distances = spacing(layer, self.axes.value)
        except ValueError as error:
            return f"{text}; {error}" if self.use_scale.value else text
        letters = " : ".join(letter.lower() for letter in self.axes.value if letter in "ZYX")
        numbers = " : ".join(f"{distance:.4g}" for distance in distances)
        used = "" if self.use_scale.value else ", not used"
        return f"{text}; spacing {numbers} {layer.units[-1]} ({letters}{used})"

    @property
    def settings(self) -> Settings:
        """The arguments of :func:`integrodiff.denoise` as they are chosen now.

        Raises
        ------
        ValueError
            If the axes are not chosen, the noise level is not a number, or units cannot be
            compared.
        """
        axes = self.axes.value
        if axes in (None, CHOOSE):
            raise ValueError(
                "choose the axes above: Z for the slices of a volume, T for frames that share a "
                "noise level, C for channels with a noise level each, Q for pages that are "
                "denoised one by one"
            )
        named = self.model_file.value
        own = "" if named is None or str(named) in ("", ".") else str(named)
        distances = spacing(self.layer.value, axes) if self.use_scale.value else None
        if distances is not None and len(set(distances)) == 1:
            distances = None  # equal, which is what denoise assumes
        return Settings(
            model=own or self.model.value,
            sigma=_levels(self.sigma.value),
            noise=self.noise.value,
            axes=None if axes == "YX" else axes,
            spacing=distances,
            colour=self.colour.value if self.layer.value.rgb else "auto",
            as_float=self.as_float.value,
            exact=self.exact.value,
        )

    # What can be done.

    @property
    def is_running(self) -> bool:
        """Whether a computation is under way."""
        return self._run is not None

    def start_preview(self) -> None:
        """Denoise the visible part."""
        self._start(preview=True)

    def start_whole(self) -> None:
        """Denoise the whole layer."""
        self._start(preview=False)

    def stop(self) -> None:
        """Cancel: nothing is added, and the computation ends with the present step."""
        run = self._run
        if run is not None:
            run.stopped.set()
            run.worker.quit()
            self._finish("cancelled")

    def copy_code(self) -> str:
        """Copy the code that denoises the whole layer with these settings to the clipboard."""
        from qtpy.QtWidgets import QApplication

        layer = self.layer.value
        try:
            if layer is None:
                raise ValueError("there is no image layer")
            code = as_python(layer, self.settings, whole(layer), self.mask.value)
        except ValueError as error:
            self._show(error)
            return ""
        QApplication.clipboard().setText(code)
        self._say("copied; paste it into napari's console")
        return code

    def _start(self, *, preview: bool) -> None:
        if self._run is not None:
            return
        layer = self.layer.value
        try:
            if layer is None:
                raise ValueError("there is no image layer")
            settings = self.settings
            axes = settings.axes or "YX"
            part = visible_part(layer, axes, self._viewer.dims) if preview else whole(layer)
            self._launch(layer, settings, part, axes, preview=preview)
        except (TypeError, ValueError) as error:
            self._show(error)

    def _launch(
        self, layer: Any, settings: Settings, part: Part, axes: str, *, preview: bool
    ) -> None:
        """Start a worker for a part of a layer."""
        from napari.qt.threading import create_worker

        image = pixels(layer)
        mask_layer = self.mask.value
        mask = None if mask_layer is None else valid_pixels(mask_layer, image, axes, part)
        if preview:
            settings = _for_part(settings, axes, part)
            # Of an image that is not in memory only this part is computed.
            image = np.asarray(image[part])
        run = _Run(
            name=layer.name,
            is_preview=preview,
            shown=display(layer, part),
            grey=appearance(layer),
            code=as_python(layer, settings, part, mask_layer),
            settings=settings,
        )
        run.worker = create_worker(
            denoising,
            image,
            settings,
            mask,
            run.stopped,
            _start_thread=False,
            _connect={
                "yielded": lambda progress: self._advance(run, progress),
                "returned": lambda outcome: self._take(run, outcome),
                "warned": lambda shown: self._warn(run, shown[0]),
                "errored": lambda error: self._take(run, Outcome(error=error)),
            },
        )
        self._run = run
        self.preview.enabled = self.start.enabled = False
        self.cancel.enabled = True
        self.progress.min, self.progress.max, self.progress.value = 0, 0, 0
        self._say("estimating the noise" if settings.sigma is None else "starting")
        run.worker.start()

    # What a worker reports.

    def _advance(self, run: _Run, progress: Progress) -> None:
        if run is not self._run or not progress.total:
            return
        self.progress.max, self.progress.value = progress.total, progress.number
        self._say(f"step {progress.number} of {progress.total}; {progress.noise}", *run.warnings)

    def _take(self, run: _Run, outcome: Outcome) -> None:
        """Add the layers of a result, or show an error."""
        if run is not self._run:
            return
        if outcome.error is not None or outcome.result is None:
            self._finish()
            self._show(outcome.error or RuntimeError("the computation ended without a result"))
            return
        name = f"{PREVIEW}{run.name}" if run.is_preview else f"{run.name} denoised"
        about = {
            "version": __version__,
            "engine": outcome.engine,
            "noise": outcome.noise,
            "code": run.code,
            **run.settings.arguments(),
        }
        self._remove_previews()  # of other settings, and it would hide the result
        shown = {**run.shown, "metadata": {"integrodiff": about}}
        layer = self._viewer.add_image(outcome.result, name=name, **run.grey, **shown)
        if self.keep_removed.value and outcome.removed is not None:
            what = "removed noise, mean of colours" if shown["rgb"] else "removed noise"
            self._add_removed(f"{name}, {what}", outcome.removed, shown)
            self._viewer.layers.selection.active = layer  # not the one that is hidden
        self._finish(f"done; {outcome.noise}; engine {outcome.engine}", *run.warnings, done=True)

    def _add_removed(self, name: str, removed: Any, shown: dict[str, Any]) -> None:
        """Show removed noise as grey values around zero; of colours their mean."""
        if shown["rgb"]:
            removed = removed[..., :3].mean(axis=-1)
        finite = np.abs(removed[np.isfinite(removed)])
        most = 4 * float(np.sqrt((finite.astype(np.float64) ** 2).mean())) if finite.size else 0.0
        most = most or 1.0
        layer = self._viewer.add_image(
            removed, name=name, contrast_limits=(-most, most), **{**shown, "rgb": False}
        )
        layer.visible = False

    def _remove_previews(self) -> None:
        for layer in [layer for layer in self._viewer.layers if layer.name.startswith(PREVIEW)]:
            if "integrodiff" in layer.metadata:
                self._viewer.layers.remove(layer)

    def _warn(self, run: _Run, warning: Any) -> None:
        """Show a warning of the package; napari shows it as a notification, too."""
        if run is self._run:
            run.warnings.append(f"warning: {_in_words_of_panel(str(warning))}")

    def _show(self, error: Exception) -> None:
        """Show an error; its traceback too, unless the package refuses what was chosen."""
        text = _in_words_of_panel(str(error))
        self._say(f"error: {text}")
        if isinstance(error, (TypeError, ValueError)):
            _LOG.debug("refused", exc_info=error)
            show_error(text)
        else:
            notification_manager.receive_error(type(error), error, error.__traceback__)

    def _say(self, *messages: str) -> None:
        """Show messages below each other."""
        self.message = "\n".join(messages)
        self.status.value = "<qt>" + "<br>".join(map(escape, messages)) + "</qt>"

    def _finish(self, *messages: str, done: bool = False) -> None:
        """Make ready for the next run."""
        self._run = None
        self.preview.enabled = self.start.enabled = True
        self.cancel.enabled = False
        self.progress.max, self.progress.value = 1, int(done)
        self._say(*messages)


def _in_words_of_panel(text: str) -> str:
    """Return a message of the package with the argument ``sigma`` as the panel labels it."""
    return re.sub(r"\bsigma\b(?!=)", "noise level", text)


def _levels(text: str) -> float | tuple[float, ...] | None:
    """Return noise levels that were entered; None if there are none."""
    words = [word.strip() for word in text.split(",")]
    if words == [""]:
        return None
    try:
        levels = tuple(float(word) for word in words)
    except ValueError as error:
        raise ValueError(
            f"the noise level must be a number such as 12.5, or one for each channel, separated "
            f"by commas; got {text!r}"
        ) from error
    return levels[0] if len(levels) == 1 else levels


def _for_part(settings: Settings, axes: str, part: Part) -> Settings:
    """Return settings for a part with fewer channels: the noise levels of these."""
    if not isinstance(settings.sigma, tuple) or "C" not in axes:
        return settings
    return replace(settings, sigma=settings.sigma[part[axes.index("C")]])
