"""The parameters of a model as trainable tensors, and its laws evaluated with derivatives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from integrodiff.models import ByNoiseLevel, ExplicitModel, Model
from integrodiff.models.description import Parameter
from integrodiff.models.limits import require_computable
from integrodiff.nn.volumes import DifferentiableVolumeGradient
from integrodiff.stages import Evolution, StepLimit, Term, VolumeGradient, step_limit
from integrodiff.stages._arrays import Scalar
from integrodiff.stages.thick_slices import for_spacing

_KEPT = ("noise_levels", "dimensions")
"""What is still true about the origin of parameters after they were trained on."""

# As in integrodiff.models.base: a step size stored as the bound itself may exceed it by rounding.
_ROUNDING = 1 + 1e-9

_KNOWN = 16
"""Processes that a layer keeps."""

_limit_of = lru_cache(maxsize=256)(step_limit)


class ModelLaw(nn.Module):
    """Turns noise levels into the numbers of a diffusion process, with derivatives.

    Each parameter of the model is a parameter of this module under its name in model files, on the
    scale on which it is trained: positive numbers are stored as logarithms, numbers from -1 to 1 as
    inverse hyperbolic tangents, others as they are. A model with parameters for several noise
    levels has a leading axis for the levels.

    No parameters are: what a model file leaves out, a scalar that is zero and has no logarithm, and
    a step size that the model fixes. A zero in a sequence has the logarithm minus infinity, and
    stays zero.

    Parameters
    ----------
    model : Model
        The model to start from.
    spacing : (float, float, float), optional
        For volumes: distance of slices, rows and columns.
    device, dtype
        Of the parameters.
    """

    def __init__(
        self,
        model: Model,
        *,
        spacing: tuple[float, float, float] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._origin: Model = model
        self._known: dict[tuple[Any, ...], Evolution] = {}
        self.spacing = spacing
        for name, value in self._stored(model).items():
            tensor = torch.tensor(value, dtype=dtype or torch.get_default_dtype(), device=device)
            self.register_parameter(name, nn.Parameter(tensor))
        # Refuses a model that cannot be run, or not in volumes.
        level = max(model.noise_levels, default=25.0)
        self.steps = model._computable_evolution(level, spacing).steps

    @property
    def _members(self) -> tuple[ExplicitModel, ...]:
        return _members_of(self._origin)

    @property
    def _declared(self) -> dict[str, Parameter]:
        return self._members[0].declared()

    def _stored(self, model: Model) -> dict[str, Any]:
        """Return the parameters of a model on the scale of training."""
        members = _members_of(model)
        first = members[0]
        found: dict[str, Any] = {}
        for name, declared in first.declared().items():
            values = [member.parameters().get(name) for member in members]
            if any(value is None for value in values):
                continue
            if name == "tau" and first.neutral("tau") is not None:
                continue
            if declared.transform == "log" and any(value == 0 for value in values):
                continue
            stored = [_forward(declared, value) for value in values]
            found[name] = stored if isinstance(model, ByNoiseLevel) else stored[0]
        return found

    def constrained(self) -> dict[str, torch.Tensor]:
        """Return the values of all parameters, in double precision and with derivatives."""
        declared = self._declared
        return {
            name: declared[name].backward(number.double())
            for name, number in self.named_parameters()
        }

    def model(self) -> Model:
        """Return the model with the present numbers; the original one if none has changed."""
        stored = self._stored(self._origin)
        if all(
            torch.equal(number.detach().cpu(), torch.tensor(stored[name], dtype=number.dtype))
            for name, number in self.named_parameters()
        ):
            return self._origin
        values = {name: value.detach().cpu().tolist() for name, value in self.constrained().items()}
        provenance = {
            "status": "trained further by integrodiff.nn",
            **{
                key: self._origin.provenance[key] for key in _KEPT if key in self._origin.provenance
            },
        }
        if isinstance(self._origin, ByNoiseLevel):
            members = tuple(
                _with_values(member, {name: value[i] for name, value in values.items()}, {})
                for i, member in enumerate(self._origin.models)
            )
            return replace(self._origin, models=members, provenance=provenance)
        return _with_values(self._members[0], values, provenance)

    def forward(self, sigma: torch.Tensor) -> Evolution:
        """Return the process at noise levels on the scale [0, 255], one per image or a single one.

        Its numbers are tensors ``(image, 1, 1, 1)`` in double precision, and plain numbers where
        they are constants. The step size of each image is the smaller of what the law of the model
        has and the largest stable one.

        Without derivatives, as inside ``torch.no_grad()``, the processes of the last few noise
        levels are kept, and used again for the same values of the parameters.
        """
        if torch.is_grad_enabled() or self._carries_derivatives(sigma):
            return self._evaluated(sigma)
        key = self._values(sigma)
        if key not in self._known:
            while len(self._known) >= _KNOWN:
                self._known.pop(next(iter(self._known)))
            self._known[key] = self._evaluated(sigma)
        return self._known[key]

    def _carries_derivatives(self, sigma: torch.Tensor) -> bool:
        """Whether there are derivatives in forward mode, or those of a function transform."""
        tensors = (sigma, *self.parameters())
        unpack_dual: Any = forward_ad.unpack_dual
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        return any(
            is_wrapped(tensor) or unpack_dual(tensor).tangent is not None for tensor in tensors
        )

    def _values(self, sigma: torch.Tensor) -> tuple[Any, ...]:
        """Return all that a process depends on; the device is waited for once."""
        numbers = [sigma, *self.parameters()]
        together = torch.cat([n.detach().to(sigma.device).double().reshape(-1) for n in numbers])
        place = str(sigma.device), torch.is_inference_mode_enabled()
        return tuple(sigma.shape), *place, *numbers_of(together)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_known": {}}

    def _evaluated(self, sigma: torch.Tensor) -> Evolution:
        """Return the process at noise levels, computed anew."""
        axes = 3 if self.spacing is None else 4
        levels = sigma.double().reshape(-1, *(1,) * axes)
        evolution = self._law(levels)._evolution(levels)  # type: ignore[arg-type]
        if self.spacing is not None:
            volume = evolution.in_volume(self.spacing)
            trained = self._origin.dimensions == 3
            evolution = _differentiable(for_spacing(volume) if trained else volume)
        evolution = replace(
            evolution.mapped(lambda number: _with_axes(number, axes)),
            scales=tuple(_with_axes(scale, axes) for scale in evolution.scales),
        )
        return self._stable(evolution, levels)

    def _law(self, levels: torch.Tensor) -> ExplicitModel:
        """Return the model whose parameters are tensors."""
        template, origin = self._members[0], self._origin
        if not isinstance(origin, ByNoiseLevel):
            return template.with_arrays(self.constrained())
        if len(origin.levels) == 1:
            return template.with_arrays({k: v[0] for k, v in self.constrained().items()})
        known = torch.tensor(origin.levels, dtype=torch.float64, device=levels.device)
        has_rule = template.extrapolated(1.0) is not None
        inside = levels.clamp(known[0], known[-1]) if has_rule else levels
        right = torch.tensor([origin.upper_level(level) for level in numbers_of(inside)])
        right = right.to(levels.device)
        lower, upper = (known[index].reshape(levels.shape) for index in (right - 1, right))
        position = torch.log(inside / lower) / torch.log(upper / lower)
        declared = self._declared
        values: dict[str, Any] = {}
        for name, number in self.named_parameters():
            rows = number.double()
            first, second = rows[right - 1], rows[right]
            if rows.ndim == 1:
                at = (1 - position) * first.reshape(levels.shape)
                at = at + position * second.reshape(levels.shape)
                values[name] = declared[name].backward(at)
            else:
                pairs = zip(first.unbind(1), second.unbind(1), strict=True)
                values[name] = tuple(
                    declared[name].backward(
                        (1 - position) * a.reshape(levels.shape)
                        + position * b.reshape(levels.shape)
                    )
                    for a, b in pairs
                )
        law = template.with_arrays(values)
        return law.extrapolated(levels / inside) or law

    def _stable(self, evolution: Evolution, levels: torch.Tensor) -> Evolution:
        """Return the process with step sizes that are stable, image by image."""
        numbers = evolution.numbers()
        images = max([len(levels), *(len(n) for n in numbers if isinstance(n, torch.Tensor))])
        plain = _transferred([*numbers, *evolution.scales, levels], images)
        scales, sigmas = plain[len(numbers) : -1], plain[-1]
        share = self._origin.share_of_bound
        taus, changed = [], False
        for i in range(images):
            here = replace(
                evolution.with_numbers([values[i] for values in plain[: len(numbers)]]),
                scales=tuple(values[i] for values in scales),
            )
            require_computable(here, sigmas[i])
            limit = _limit_of(here)
            largest = _largest(evolution, limit, i)
            bound = share * 2 / _number(largest) if _number(largest) > 0 else math.inf
            tau = _of_image(evolution.tau, i)
            if _number(tau) > bound * _ROUNDING:
                tau, changed = share * 2 / largest, True
            taus.append(torch.as_tensor(tau, dtype=torch.float64, device=levels.device))
        if not changed:
            return evolution
        return replace(evolution, tau=torch.stack(taus).reshape(-1, *(1,) * (levels.ndim - 1)))


def _members_of(model: Model) -> tuple[ExplicitModel, ...]:
    """Return the models of all noise levels, or the only one."""
    if isinstance(model, ByNoiseLevel):
        return model.models
    if isinstance(model, ExplicitModel):
        return (model,)
    raise TypeError(f"model must be a model of this package, got {type(model).__name__}")


def numbers_of(tensor: torch.Tensor) -> list[float]:
    """Return the values of a tensor without their derivatives."""
    # Not `tolist`, which PyTorch 2.8 refuses inside of function transforms.
    return [float(value.item()) for value in tensor.detach().cpu().reshape(-1).unbind()]


def _forward(declared: Parameter, value: Any) -> Any:
    """Return values on the scale of training; the ends of the ranges are infinite."""
    if isinstance(value, (list, tuple)):
        return [_forward(declared, member) for member in value]
    if declared.transform == "log" and value == 0:
        return -math.inf
    if declared.transform == "tanh" and abs(value) == 1:
        return math.copysign(math.inf, value)
    return declared.forward(value)


def _with_values(member: ExplicitModel, values: dict[str, Any], provenance: Any) -> ExplicitModel:
    parameters = {**member.parameters(), **values}
    return type(member).build(parameters, member.settings(), provenance)


def _differentiable(evolution: Evolution) -> Evolution:
    """Return the process with operators whose derivatives are finite everywhere."""

    def changed(term: Term) -> Term:
        operator = term.derivatives
        if not isinstance(operator, VolumeGradient):
            return term
        numbers = operator.theta, operator.spacing, operator.units, operator.twists
        smooth = DifferentiableVolumeGradient(*numbers)
        return replace(term, derivatives=smooth)

    schedule = tuple(tuple(map(changed, terms)) for terms in evolution.schedule)
    return replace(evolution, schedule=schedule)


def _with_axes(number: Scalar, axes: int) -> Scalar:
    """Return a number as one per image, unless it is a plain number."""
    if not isinstance(number, torch.Tensor):
        return number
    return number.reshape(-1, *(1,) * axes)


def _transferred(numbers: Sequence[Scalar], images: int) -> list[list[float]]:
    """Return each number for every image without derivatives; the device is waited for once."""
    tensors = [number for number in numbers if isinstance(number, torch.Tensor)]
    spread = [tensor.detach().reshape(-1).expand(images) for tensor in tensors]
    values = iter(numbers_of(torch.stack(spread)))
    return [
        list(islice(values, images)) if isinstance(number, torch.Tensor) else [number] * images
        for number in numbers
    ]


def _of_image(number: Scalar, image: int) -> Scalar:
    if not isinstance(number, torch.Tensor):
        return number
    return number.reshape(-1)[image if len(number) > 1 else 0]


def _number(value: Scalar) -> float:
    return value.item() if isinstance(value, torch.Tensor) else float(value)


def _largest(evolution: Evolution, limit: StepLimit, image: int) -> Scalar:
    """Return the largest eigenvalue that limits the step size of an image, with derivatives."""
    total: Scalar = 2 * _of_image(evolution.pull_at(limit.pull_step), image)
    for term, shares in zip(evolution.terms(limit.step), limit.shares, strict=True):
        for weight, share in zip(term.flux_weights, shares, strict=True):
            if share:
                total = total + share * _of_image(weight, image)
    return total
