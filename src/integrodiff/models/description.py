"""How models describe themselves: what each field is, said where the field is declared.

A model's *parameters* are the numbers that training finds, its *settings* everything that is chosen
beforehand. A class declares both in the metadata of its fields::

    contrast: float = field(metadata=parameter(positive_number))
    drift: float = field(default=0.0, metadata=parameter(finite_number, transform="identity"))
    law: ReducedLaw | FullLaw = field(metadata=law(ReducedLaw, FullLaw))
    scales: ScaleGrid = field(default_factory=ScaleGrid, metadata=setting(a_grid))

Model files, training, interpolation between noise levels and the count of numbers follow from it.
A parameter with a default has no effect at that value: the default is its neutral value. A *law* is
an object with parameters of its own, which count, and are stored, as those of its model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields
from math import atanh, exp, log, tanh
from typing import Any, ClassVar, Literal, Self, TypeAlias

from integrodiff._checks import (
    finite_number,
    nonnegative_number,
    positive_number,
    sequence_of_numbers,
    shown,
)
from integrodiff.errors import ModelFileError
from integrodiff.stages._arrays import Scalar

Transform: TypeAlias = Literal["log", "identity", "tanh"]
Check: TypeAlias = Callable[[str, Any], Any]
Json: TypeAlias = Any

_KEY = "integrodiff"


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A number, or a sequence of numbers, that training finds.

    Attributes
    ----------
    check : callable
        Takes name and value, and returns the value as it is stored, or raises an error.
    transform : {"log", "identity", "tanh"}
        The scale on which the number is trained, and interpolated between noise levels: its
        logarithm, the number itself, or, for numbers from -1 to 1, their inverse hyperbolic
        tangent.
    optional : bool
        Whether files leave it out at its neutral value. For parameters that a class was given
        when there were files of it already.
    """

    check: Check
    transform: Transform = "log"
    optional: bool = False

    def forward(self, value: float) -> float:
        """Return a value on the scale of training."""
        if self.transform == "tanh":
            return atanh(value)
        return log(value) if self.transform == "log" else value

    def backward(self, number: Scalar) -> Scalar:
        """Return the value of a number on the scale of training; tensors keep derivatives."""
        if self.transform == "identity":
            return number
        if self.transform == "tanh":
            return number.tanh() if hasattr(number, "tanh") else tanh(number)
        return number.exp() if hasattr(number, "exp") else exp(number)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A choice made before training.

    Attributes
    ----------
    check : callable
        As for a parameter.
    optional : bool
        Whether files leave it out at its default, as for a parameter.
    to_json, from_json : callable
        To and from the value in a model file.
    """

    check: Check
    optional: bool = False
    to_json: Callable[[Any], Json] = lambda value: value
    from_json: Callable[[Json], Any] = lambda value: value


@dataclass(frozen=True, kw_only=True)
class LawChoice:
    """An object with parameters of its own, of one of several classes."""

    classes: tuple[type[Described], ...]

    def check(self, name: str, value: Any) -> Any:
        """Return the value if it is of one of the classes."""
        return instance_of(*self.classes)(name, value)


def parameter(
    check: Check, *, transform: Transform = "log", optional: bool = False
) -> dict[str, Any]:
    """Return the metadata of a field to train."""
    return {_KEY: Parameter(check=check, transform=transform, optional=optional)}


def setting(
    check: Check, *, optional: bool = False, **conversions: Callable[[Any], Any]
) -> dict[str, Any]:
    """Return the metadata of a field that is chosen before training."""
    return {_KEY: Setting(check=check, optional=optional, **conversions)}


def law(*classes: type[Described]) -> dict[str, Any]:
    """Return the metadata of a field that holds an object with parameters."""
    return {_KEY: LawChoice(classes=classes)}


def instance_of(*classes: type) -> Check:
    """Return a check that a value is of one of the classes."""

    def check(name: str, value: Any) -> Any:
        if not isinstance(value, classes):
            wanted = " or a ".join(kind.__name__ for kind in classes)
            raise TypeError(f"{name} must be a {wanted}, got {shown(value)}")
        return value

    return check


def each(check: Check) -> Check:
    """Return a check of every number in a sequence, which becomes a tuple."""

    def check_all(name: str, values: Any) -> tuple[float, ...]:
        numbers = sequence_of_numbers(name, values, signed=True)
        return tuple(check(f"{name}[{i}]", number) for i, number in enumerate(numbers))

    return check_all


def or_empty(check: Check) -> Check:
    """Return a check that also takes an empty tuple or list, for sequences that may be left out."""
    return lambda name, values: () if values in ((), []) else check(name, values)


each_positive, each_nonnegative = each(positive_number), each(nonnegative_number)
each_finite = each(finite_number)


class Described:
    """A frozen dataclass that declares its fields by the functions above."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    form: ClassVar[str] = ""
    """Name of a law in model files, where there is a choice."""

    conventions: ClassVar[int] = 0
    """How many parameters are a convention: a common factor of all weights has no effect."""

    def __post_init__(self) -> None:
        for name, what in self._fields(Parameter, Setting, LawChoice):
            object.__setattr__(self, name, what.check(name, getattr(self, name)))
        self._check()

    def _check(self) -> None:
        """Refuse fields that are valid on their own but do not go together."""

    @classmethod
    def _fields(cls, *wanted: type) -> Iterator[tuple[str, Any]]:
        """Yield the fields that are declared as one of the wanted kinds."""
        for entry in fields(cls):
            what = entry.metadata.get(_KEY)
            if isinstance(what, wanted):
                yield entry.name, what

    @classmethod
    def neutral(cls, name: str) -> Any:
        """Return the value at which a parameter has no effect, or None."""
        entry = next((entry for entry in fields(cls) if entry.name == name), None)
        return None if entry is None or entry.default is MISSING else entry.default

    def laws(self) -> list[Described]:
        """Return the objects that hold parameters, the model itself last."""
        return [*(getattr(self, name) for name, _ in self._fields(LawChoice)), self]

    def declared(self) -> dict[str, Parameter]:
        """Return what is declared about each parameter, by its name in model files."""
        found = [pair for part in self.laws() for pair in part._fields(Parameter)]
        return dict(sorted(found, key=_step_size_last))

    def with_arrays(self, values: Mapping[str, Any]) -> Self:
        """Return a copy whose parameters are arrays that carry derivatives, by name.

        They are not checked, and may have one value per image, with the shape ``(image, 1, 1, 1)``;
        the laws take a noise level of that shape then.
        """
        result = copy(self)
        for name, _ in self._fields(LawChoice):
            object.__setattr__(result, name, getattr(self, name).with_arrays(values))
        for name, _ in self._fields(Parameter):
            if name in values:
                object.__setattr__(result, name, values[name])
        return result

    def parameters(self) -> dict[str, Json]:
        """Return the trained numbers as JSON values, by name; a choice of laws is the first."""
        result: dict[str, Json] = {}
        for name, choice in self._fields(LawChoice):
            if len(choice.classes) > 1:
                result["form"] = getattr(self, name).form
        values = {name: part for part in self.laws() for name, _ in part._fields(Parameter)}
        for name, declared in self.declared().items():
            value = getattr(values[name], name)
            if not (declared.optional and value == self.neutral(name)):
                result[name] = list(value) if isinstance(value, tuple) else value
        return result

    def settings(self) -> dict[str, Json]:
        """Return the settings as JSON values, by name."""
        return {
            name: what.to_json(getattr(self, name))
            for name, what in self._fields(Setting)
            if not (what.optional and getattr(self, name) == self.neutral(name))
        }

    @classmethod
    def arguments(
        cls, parameters: Mapping[str, Json], settings: Mapping[str, Json]
    ) -> dict[str, Any]:
        """Return the arguments for a new object; refuse missing and unknown names."""
        given = dict(parameters)
        chosen = {name: _chosen_law(choice, given) for name, choice in cls._fields(LawChoice)}
        owners = [*chosen.values(), cls]
        declared = dict(
            sorted(
                (pair for owner in owners for pair in owner._fields(Parameter)), key=_step_size_last
            )
        )
        optional = [name for name, what in declared.items() if what.optional]
        exact_names("parameters", given, tuple(declared), optional)
        converters = dict(cls._fields(Setting))
        optional = [name for name, what in converters.items() if what.optional]
        exact_names("settings", settings, tuple(converters), optional)
        laws = {
            name: kind(**{key: given.pop(key) for key, _ in kind._fields(Parameter)})
            for name, kind in chosen.items()
        }
        converted = {
            name: what.from_json(settings[name])
            for name, what in converters.items()
            if name in settings
        }
        return {**given, **laws, **converted}

    def number_count(self) -> int:
        """Count the trained numbers that have an effect.

        Not counted are parameters at their neutral value, and those that are a convention.
        """
        count = 0
        for name, value in self.parameters().items():
            if isinstance(value, list):
                count += len(value)
            elif not isinstance(value, str) and value != self.neutral(name):
                count += 1
        return count - sum(part.conventions for part in self.laws())


def _step_size_last(pair: tuple[str, Any]) -> bool:
    """Sort the step size, which the base class declares first, behind all other parameters."""
    return pair[0] == "tau"


def _chosen_law(choice: LawChoice, parameters: dict[str, Json]) -> type[Described]:
    """Return the class of a law, and remove its name from the parameters."""
    if len(choice.classes) == 1:
        return choice.classes[0]
    by_form = {kind.form: kind for kind in choice.classes}
    form = parameters.pop("form", None)
    if not isinstance(form, str) or form not in by_form:
        raise ModelFileError(
            f"parameters.form must be one of {', '.join(map(repr, by_form))}; got {shown(form)}"
        )
    return by_form[form]


def require_lengths(law: object, names: tuple[str, ...], *lengths: int) -> None:
    """Refuse sequences of another length than one of those given."""
    for name in names:
        found = len(getattr(law, name))
        if found not in lengths:
            expected = " or ".join(str(length) for length in dict.fromkeys(lengths))
            raise ValueError(f"{name} must have {expected} values, got {found}")


def exact_names(
    where: str, mapping: Any, names: tuple[str, ...], optional: Sequence[str] = ()
) -> None:
    """Refuse a value that is no JSON object with exactly these names, but for optional ones."""
    if not isinstance(mapping, Mapping):
        raise ModelFileError(
            f"{where} must be an object with {', '.join(names)}; got {shown(mapping)}"
        )
    missing = [name for name in names if name not in mapping and name not in optional]
    unknown = [name for name in mapping if name not in names]
    problems = [
        f"{what} {_listed(found)}"
        for what, found in (("missing", missing), ("unknown", unknown))
        if found
    ]
    if problems:
        raise ModelFileError(f"{where}: {'; '.join(problems)} (expected {', '.join(names)})")


def _listed(names: list[str]) -> str:
    most = 8
    listed = ", ".join(shown(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more"
