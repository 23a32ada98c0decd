"""What can be reproduced, and what each of it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from integrodiff.models import Model
from integrodiff.reproduction import ablation, figure1, figure2, table1
from integrodiff.reproduction.evaluation import Cell, Evaluation
from integrodiff.reproduction.figure2 import Cameraman
from integrodiff.reproduction.published import FIGURE_1_LEVELS, LEVELS


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the targets compute from; each takes what it needs."""

    models: Mapping[str, Model]
    evaluation: Evaluation | None = None
    cameraman: Cameraman | None = None


@dataclass(frozen=True)
class Reproduction:
    """The result in words, and a function that writes it to a folder and returns the paths."""

    markdown: str
    write: Callable[[Path], list[Path]]


@dataclass(frozen=True, kw_only=True)
class Target:
    """One table or figure.

    Attributes
    ----------
    compute : callable
        Computes it.
    models : tuple of str
        Models it needs.
    cells : tuple of (str, float)
        Which models it evaluates on the test crops, at which noise levels.
    draws : bool
        Whether it is a picture, too, which needs Matplotlib.
    needs_cameraman : bool
        Whether it needs that image.
    """

    compute: Callable[[Inputs], Reproduction]
    models: tuple[str, ...]
    cells: tuple[Cell, ...] = ()
    draws: bool = False
    needs_cameraman: bool = False


def training_levels(model: str) -> tuple[float, ...]:
    """Return the noise levels at which the paper trains a model."""
    return FIGURE_1_LEVELS if model == figure1.FREE else LEVELS


def _table1(inputs: Inputs) -> Reproduction:
    result = table1.compute(_evaluation(inputs))
    return Reproduction(table1.markdown(result), lambda folder: table1.write(result, folder))


def _ablation(inputs: Inputs) -> Reproduction:
    result = ablation.compute(_evaluation(inputs))
    return Reproduction(ablation.markdown(result), lambda folder: ablation.write(result, folder))


def _figure1(inputs: Inputs) -> Reproduction:
    result = figure1.compute(inputs.models)
    return Reproduction(figure1.markdown(result), lambda folder: figure1.write(result, folder))


def _figure2(inputs: Inputs) -> Reproduction:
    if inputs.cameraman is None:
        raise ValueError("figure2 needs the cameraman")
    result, panels = figure2.compute(inputs.models, inputs.cameraman)
    return Reproduction(
        figure2.markdown(result), lambda folder: figure2.write(result, panels, folder)
    )


def _evaluation(inputs: Inputs) -> Evaluation:
    if inputs.evaluation is None:
        raise ValueError("this target needs an evaluation on the test crops")
    return inputs.evaluation


TARGETS = {
    "figure1": Target(compute=_figure1, models=figure1.MODELS, draws=True),
    "figure2": Target(compute=_figure2, models=figure2.MODELS, draws=True, needs_cameraman=True),
    "ablation": Target(compute=_ablation, models=ablation.MODELS, cells=ablation.CELLS),
    "table1": Target(compute=_table1, models=table1.MODELS, cells=table1.CELLS),
}
"""All tables and figures, the quick ones first."""
