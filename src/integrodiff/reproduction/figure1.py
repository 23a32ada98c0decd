r"""Figure 1 of the paper: trained weights and contrasts over the scales, and laws through them.

The free numbers are those of a model that was trained with the smoothness penalty. Through them
go the paper's laws, fitted by least squares to both noise levels together. Our scales carry the
weights :math:`w_i` of a quadrature, so that what a scale contributes is
:math:`c_i = w_i \gamma_i^2`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from integrodiff.models import IAD, ByNoiseLevel, FullLaw, Model, ReducedLaw
from integrodiff.reproduction._results import (
    Result,
    about,
    markdown_table,
    significant,
    write_numbers,
)
from integrodiff.reproduction.published import FIGURE_1_LEVELS, REDUCED_LAW

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FREE, REDUCED = "iad-smooth", "iad"
MODELS = (FREE, REDUCED)

_STYLES = {"20": ("tab:blue", "s"), "50": ("tab:orange", "o")}
_LARGEST = 1e4  # of alpha and beta: beyond it a law is zero, or a mere power, on our scales
_SMALLEST = 1e-6


@dataclass(frozen=True, kw_only=True)
class FreeNumbers:
    """Weights, contrasts and effective weights over the scales at one noise level."""

    level: float
    gammas: tuple[float, ...]
    lambdas: tuple[float, ...]
    weights: tuple[float, ...]


class FittedLaws(NamedTuple):
    """The laws, and how far the numbers are from them: root mean squares of the residuals."""

    law: ReducedLaw
    gamma_deviation: float
    lambda_deviation: float


def compute(models: Mapping[str, Model]) -> Result:
    """Return the free numbers, the laws fitted to them, and the laws of the reduced model."""
    scales, free = free_numbers(models[FREE])
    fitted = fit_laws(scales, free)
    reduced = models[REDUCED]
    if not isinstance(reduced, IAD) or not isinstance(reduced.law, ReducedLaw):
        raise TypeError(f"the model {REDUCED} has no reduced law")
    return {
        "what": "Figure 1: weights gamma and contrasts lambda over the scales",
        **about({name: models[name] for name in MODELS}),
        "scales": [significant(scale) for scale in scales],
        "free": {
            f"{numbers.level:g}": {
                name: [significant(value) for value in getattr(numbers, name)]
                for name in ("gammas", "lambdas", "weights")
            }
            for numbers in free
        },
        "laws": {
            "fitted": {
                **_rounded(fitted.law),
                "gamma_deviation": significant(fitted.gamma_deviation),
                "lambda_over_s_deviation": significant(fitted.lambda_deviation),
            },
            "reduced": _rounded(reduced.law),
            "paper": dict(REDUCED_LAW),
        },
    }


def free_numbers(model: Model) -> tuple[tuple[float, ...], list[FreeNumbers]]:
    """Return the scales, and the numbers of a full model at the noise levels of the figure.

    A common factor of all weights changes nothing if contrasts and step size follow. So the
    first weight is made one, and the contrasts are divided by what it was.
    """
    found = []
    scales: tuple[float, ...] = ()
    for level in FIGURE_1_LEVELS:
        member = model.at(level) if isinstance(model, ByNoiseLevel) else model
        if not isinstance(member, IAD) or not isinstance(member.law, FullLaw):
            raise TypeError(f"the model {FREE} has no free weights and contrasts")
        unit = member.law.gammas[0]
        gammas = tuple(gamma / unit for gamma in member.law.gammas)
        scales, quadrature = member.scales.scales, member.scales.quadrature_weights
        found.append(
            FreeNumbers(
                level=level,
                gammas=gammas,
                lambdas=tuple(value / unit for value in member.law.lambdas),
                weights=tuple(w * g**2 for w, g in zip(quadrature, gammas, strict=True)),
            )
        )
    return scales, found


def fit_laws(scales: Sequence[float], free: Sequence[FreeNumbers]) -> FittedLaws:
    r"""Fit the paper's laws to the numbers of all levels together, by least squares.

    The weights give :math:`\alpha`. The contrasts over the noise level, so that levels count
    alike, give :math:`\beta` and :math:`\lambda_0`; there each scale counts by its effective
    weight, since the contrast of a scale without weight means nothing.
    """
    variance = np.square(np.array(scales))
    levels = np.array([[numbers.level] for numbers in free])
    gammas = np.array([numbers.gammas for numbers in free])
    ratios = np.array([numbers.lambdas for numbers in free]) / levels
    shares = np.array([numbers.weights for numbers in free])
    shares = shares / shares.sum()

    def gamma_residuals(log: NDArray[np.float64]) -> NDArray[np.float64]:
        law = np.exp(-np.exp(log[0]) * variance / np.sqrt(levels))
        residuals: NDArray[np.float64] = (law - gammas).ravel()
        return residuals

    def lambda_residuals(log: NDArray[np.float64]) -> NDArray[np.float64]:
        law = np.exp(log[1]) / (1 + np.exp(log[0]) * variance)
        residuals: NDArray[np.float64] = (np.sqrt(shares) * (law - ratios)).ravel()
        return residuals

    (alpha,), gamma_squares = _best(gamma_residuals, [[0.01], [0.1], [1.0], [10.0]])
    finest = float(np.clip(ratios[:, 0].mean(), _SMALLEST, _LARGEST))
    (beta, lambda_0), lambda_squares = _best(
        lambda_residuals, [[beta, finest] for beta in (0.1, 1.0, 10.0, 100.0)]
    )
    return FittedLaws(
        ReducedLaw(alpha=alpha, beta=beta, lambda_0=lambda_0),
        gamma_deviation=float(np.sqrt(gamma_squares / gammas.size)),
        lambda_deviation=float(np.sqrt(lambda_squares)),
    )


def _best(
    residuals: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    starts: Sequence[Sequence[float]],
) -> tuple[list[float], float]:
    """Return the numbers whose logarithms minimise the sum of squares, and that sum."""
    from scipy.optimize import least_squares

    limits = (float(np.log(_SMALLEST)), float(np.log(_LARGEST)))
    fits = [
        least_squares(residuals, np.log(start), bounds=limits, xtol=1e-14, ftol=1e-14, gtol=1e-14)
        for start in starts
    ]
    found = min(fits, key=lambda fit: float(fit.cost))
    return np.exp(found.x).tolist(), 2 * float(found.cost)


def _rounded(law: ReducedLaw) -> dict[str, float]:
    return {name: significant(value) for name, value in asdict(law).items()}


def markdown(result: Result) -> str:
    """Return the parameters of the laws beside the paper's, and the free numbers."""
    laws = result["laws"]
    names = ("alpha", "beta", "lambda_0")
    rows = [
        [label, *(f"{laws[key][name]:.4g}" for name in names)]
        for key, label in (
            ("fitted", "fitted to the free numbers"),
            ("reduced", "trained reduced model"),
            ("paper", "paper, trained reduced model"),
        )
    ]
    for key in ("fitted", "reduced"):
        row = [f"difference, {key} and paper"]
        rows.append(row + [f"{laws[key][name] - laws['paper'][name]:+.4g}" for name in names])
    numbers = []
    for number, scale in enumerate(result["scales"]):
        columns = [
            f"{row[name][number]:.4g}"
            for row in result["free"].values()
            for name in ("gammas", "lambdas", "weights")
        ]
        numbers.append([f"{scale:.3g}", *columns])
    header = [
        f"{name}, s = {level}" for level in result["free"] for name in ("gamma", "lambda", "c")
    ]
    fitted = laws["fitted"]
    return (
        "## Figure 1: weights and contrasts over the scales\n\n"
        f"{markdown_table(['laws', *names], rows)}\n"
        f"Root mean square distance of the free numbers from the fitted laws: "
        f"{fitted['gamma_deviation']:.3f} in gamma, {fitted['lambda_over_s_deviation']:.3f} in "
        "lambda / s (there weighted by c). The parameters depend on the scales and their "
        "quadrature weights, which the paper does not state, so they need not agree with its.\n\n"
        f"{markdown_table(['scale', *header], numbers)}\n"
        "c is the quadrature weight of a scale times gamma squared.\n"
    )


def write(result: Result, folder: Path) -> list[Path]:
    """Write ``figure1`` as JSON, CSV, Markdown and PNG; return the paths."""
    from integrodiff.viz.drawing import new_figure, save_figure

    table: list[list[object]] = [["scale", "s", "gamma", "lambda", "weight"]]
    for level, row in result["free"].items():
        columns = (row["gammas"], row["lambdas"], row["weights"])
        for scale, *numbers in zip(result["scales"], *columns, strict=True):
            table.append([scale, level, *numbers])
    paths = write_numbers(folder, "figure1", result, markdown(result), table)
    figure = new_figure(9.0, 3.6)
    weights, contrasts = figure.subplots(1, 2)
    _draw(weights, result, "gammas", "weight $\\gamma$")
    _draw(contrasts, result, "lambdas", "contrast $\\lambda$")
    weights.legend(fontsize="small")
    return [*paths, save_figure(figure, folder / "figure1.png")]


def _draw(axes: Axes, result: Result, name: str, label: str) -> None:
    """Draw the free numbers as markers, and the laws as lines."""
    scales = np.linspace(0.0, max(result["scales"]), 300)
    names = ("alpha", "beta", "lambda_0")
    for level, row in result["free"].items():
        colour, marker = _STYLES[level]
        axes.plot(
            result["scales"], row[name], marker, color=colour, label=f"trained, $s = {level}$"
        )
        for key, style, width in (("fitted", "-", 1.5), ("reduced", "--", 0.8)):
            law = ReducedLaw(**{key_: result["laws"][key][key_] for key_ in names})
            values = getattr(law.values(scales.tolist(), float(level)), name)
            described = {"fitted": "fitted law", "reduced": "law of the reduced model"}[key]
            axes.plot(scales, values, style, color=colour, linewidth=width, label=described)
    axes.set_xlabel("scale $\\sigma$")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
