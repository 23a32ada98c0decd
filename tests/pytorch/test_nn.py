"""PyTorch modules: shapes, errors, parity with the engines, derivatives, compilation."""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import SMALL, VOLUME

from integrodiff import MODEL_NAMES, denoise, load_model, save_model, stages
from integrodiff.errors import VolumeModelWarning
from integrodiff.models import model_from_json, model_to_json
from integrodiff.stages import explicit_step, stable_step

torch = pytest.importorskip("torch")
nn = pytest.importorskip("integrodiff.nn")

SIZES = {2: (5, 6), 3: (3, 4, 5)}
SPACINGS = {2: (1.0, 1.0), 3: (1.0, 1.0, 1.0)}


def images(*shape: int, dtype: Any = None, seed: int = 0) -> Any:
    """Return noise around grey 100."""
    rng = np.random.default_rng(seed)
    return torch.tensor(rng.normal(100, 20, shape), dtype=dtype or torch.float64)


def batch(dimensions: int, count: int = 2, channels: int = 1, **more: Any) -> Any:
    return images(count, channels, *SIZES[dimensions], **more)


def doubled(module: Any) -> Any:
    return module.double()


def function_of(module: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return a module as a function of its inputs and its parameters, and the latter."""
    names = [name for name, _ in module.named_parameters()]
    values = [value.detach().clone().requires_grad_() for value in module.parameters()]

    def function(*arguments: Any) -> Any:
        inputs, parameters = (
            arguments[: -len(names) or None],
            arguments[len(arguments) - len(names) :],
        )
        given = dict(zip(names, parameters, strict=True))
        found = torch.func.functional_call(module, given, inputs)
        return tuple(found) if isinstance(found, (list, tuple)) else found

    return function, values


def gradients_are_right(
    module: Any, *inputs: Any, forward: bool = True, twice: bool = False
) -> bool:
    """Compare derivatives by all inputs and parameters with finite differences."""
    function, parameters = function_of(module)
    arguments = [value.clone().requires_grad_() for value in inputs] + parameters
    found: bool = torch.autograd.gradcheck(
        function, arguments, fast_mode=True, atol=1e-5, rtol=1e-4, check_forward_ad=forward
    )
    if twice:
        found = found and torch.autograd.gradgradcheck(
            function, arguments, fast_mode=True, atol=1e-4, rtol=1e-3
        )
    return found


def directions_are_right(module: Any, *inputs: Any) -> bool:
    """Compare one directional derivative by each input, and one by all parameters together.

    In reverse and in forward mode, with finite differences: as much as ``gradcheck`` in its fast
    mode, in a tenth of the time.
    """
    function, parameters = function_of(module)
    arguments = [value.clone() for value in inputs] + [value.detach() for value in parameters]
    groups = [[i] for i in range(len(inputs))]
    groups += [list(range(len(inputs), len(arguments)))] if parameters else []
    tracked = [value.clone().requires_grad_() for value in arguments]
    result = function(*tracked)
    weights = images(*result.shape, seed=11)
    # A parameter may have no effect, such as a step size beyond the bound.
    gradients = torch.autograd.grad((weights * result).sum(), tracked, materialize_grads=True)
    agrees = True
    for group in groups:
        moves = [
            images(*value.shape, seed=7 + i) / 100 if i in group else torch.zeros_like(value)
            for i, value in enumerate(arguments)
        ]
        by_gradient = sum((g * move).sum() for g, move in zip(gradients, moves, strict=True))
        _, tangent = torch.func.jvp(function, tuple(arguments), tuple(moves))
        ahead, behind = (
            function(*(value + h * move for value, move in zip(arguments, moves, strict=True)))
            for h in (1e-5, -1e-5)
        )
        numerical = (weights * (ahead - behind)).sum() / 2e-5
        found = torch.stack([by_gradient, (weights * tangent).sum()])
        agrees &= bool(torch.allclose(found, numerical, rtol=1e-5, atol=1e-6))
    return agrees


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Forget compiled functions before and after a test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def as_arrays(parts: Any) -> list[Any]:
    return [np.asarray(part.detach()) for part in parts]


@pytest.mark.parametrize("dimensions", [2, 3])
class TestBlur:
    def test_smoke_and_shapes(self, dimensions: Any) -> None:
        for dtype in (torch.float32, torch.float64):
            found = nn.Blur(0.8, dimensions=dimensions)(batch(dimensions, channels=3, dtype=dtype))
            assert found.shape == (2, 3, *SIZES[dimensions])
            assert found.dtype == dtype

    def test_is_the_function(self, dimensions: Any) -> None:
        given = batch(dimensions)
        for scale in (1e-3, 0.5, 3.0):
            module = doubled(nn.Blur(scale, dimensions=dimensions))
            module.log_scale.data.fill_(np.log(scale))
            expected = stages.blur(given, scale, SPACINGS[dimensions])
            torch.testing.assert_close(module(given), expected, rtol=0, atol=1e-10)

    def test_exceptions(self, dimensions: Any) -> None:
        with pytest.raises(ValueError, match="scale must be positive"):
            nn.Blur(0.0, dimensions=dimensions)
        with pytest.raises(ValueError, match="axes, none of them empty"):
            nn.Blur(dimensions=dimensions)(torch.zeros(4, 4))
        with pytest.raises(TypeError, match=r"real floating point, got torch.int64"):
            nn.Blur(dimensions=dimensions)(torch.zeros(4, 4, dtype=torch.int64))
        with pytest.raises(ValueError, match="dimensions must be 2 or 3"):
            nn.Blur(dimensions=4)

    @pytest.mark.slow
    def test_gradcheck(self, dimensions: Any) -> None:
        assert gradients_are_right(
            doubled(nn.Blur(0.8, dimensions=dimensions)), batch(dimensions), twice=True
        )


@pytest.mark.parametrize("dimensions", [2, 3])
class TestScaleSpace:
    SCALES = (0.5, 1.0, 2.5)

    def test_is_the_function(self, dimensions: Any) -> None:
        given, module = (
            batch(dimensions),
            doubled(nn.ScaleSpace(self.SCALES, dimensions=dimensions)),
        )
        np.testing.assert_allclose(module.scales.detach(), self.SCALES, rtol=1e-6)
        found = module(given)
        for image, scale in zip(found, module.scales.tolist(), strict=True):
            expected = stages.blur(given, scale, SPACINGS[dimensions])
            torch.testing.assert_close(image, expected, rtol=0, atol=1e-10)

    def test_scales_increase_whatever_the_parameters(self, dimensions: Any) -> None:
        module = nn.ScaleSpace(self.SCALES, dimensions=dimensions)
        module.log_increments.data = torch.tensor([-3.0, 2.0, -20.0])
        assert (module.scales.diff() > 0).all()
        assert torch.isfinite(module(batch(dimensions))[-1]).all()

    def test_exceptions(self, dimensions: Any) -> None:
        for scales, problem in (
            ((1.0, 1.0), "increase"),
            ((0.0, 1.0), "positive"),
            ((), "at least"),
        ):
            with pytest.raises(ValueError, match=problem):
                nn.ScaleSpace(scales, dimensions=dimensions)

    @pytest.mark.slow
    def test_gradcheck(self, dimensions: Any) -> None:
        module = doubled(nn.ScaleSpace((0.5, 1.5), dimensions=dimensions))
        assert gradients_are_right(module, batch(dimensions, 1))


class TestPeriodicMatrix:
    """Blurs that carry derivatives are those by taps, at pixels and cells, even and odd."""

    @pytest.mark.parametrize("grid", ["pixels", "cells"])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_is_the_blur_by_taps(self, grid: Any, sign: int) -> None:
        for size in (2, 3, 7, 40):
            field = images(1, 1, size, size)
            if grid == "cells" and sign < 0:
                field[..., 0, :] = field[..., -1, :] = field[..., 0] = field[..., -1] = 0
            for scale in (0.0, 0.3, 2.0, 9.0):
                arguments: Any = {"grid": grid, "signs": (sign, sign)}
                expected = stages.blur_field(field, scale, **arguments)
                each = torch.full((1, 1, 1, 1), scale, dtype=torch.float64)
                found = stages.blur_field(field, each, **arguments)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
                as_numpy = stages.blur_field(field.numpy(), each.numpy(), **arguments)
                np.testing.assert_allclose(as_numpy, expected, rtol=0, atol=1e-10)

    def test_a_scale_for_each_image(self) -> None:
        field, scales = images(3, 2, 5, 4), (0.2, 1.0, 4.0)
        each = torch.tensor(scales, dtype=torch.float64).reshape(3, 1, 1, 1)
        found = stages.blur(field, each)
        for image, blurred, scale in zip(field, found, scales, strict=True):
            torch.testing.assert_close(blurred, stages.blur(image, scale), rtol=0, atol=1e-10)


class TestLongAxes:
    """Blurs with trained scales of axes that are too long for a matrix."""

    @pytest.fixture(autouse=True)
    def short_matrices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stages.scale_space, "_LONGEST_MATRIX", 4)

    @pytest.mark.parametrize(("grid", "signs"), [("pixels", (1, 1)), ("cells", (1, -1))])
    def test_same_as_the_matrix(
        self, grid: Any, signs: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        field = images(2, 1, 7, 9)
        field[..., 0] = field[..., -1] = 0  # an odd field is zero at the outermost cells
        scale = torch.tensor([0.3, 2.5], dtype=torch.float64).reshape(2, 1, 1, 1)
        found = stages.scale_space.blur_field(field, scale, grid=grid, signs=signs)
        monkeypatch.setattr(stages.scale_space, "_LONGEST_MATRIX", 256)
        expected = stages.scale_space.blur_field(field, scale, grid=grid, signs=signs)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)

    @pytest.mark.parametrize("dimensions", [2, 3])
    def test_gradcheck(self, dimensions: Any) -> None:
        module = doubled(nn.Blur(0.8, dimensions=dimensions))
        assert gradients_are_right(module, batch(dimensions), twice=True)


class TestScalesWithoutAxes:
    """Functions of the stages with a scale that is a tensor without axes."""

    def test_second_derivatives(self) -> None:
        image = images(1, 1, 4, 5).requires_grad_()
        scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(stages.blur, (image, scale))
        assert torch.autograd.gradgradcheck(stages.blur, (image, scale))

    def test_second_derivatives_around_invalid_pixels(self) -> None:
        image = images(1, 1, 4, 5).requires_grad_()
        scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
        mask = np.ones((4, 5), np.bool_)
        mask[1, 2] = False
        domain = stages.Domain(mask, image.detach())
        assert torch.autograd.gradcheck(domain.blur, (image, scale))
        assert torch.autograd.gradgradcheck(domain.blur, (image, scale))


class TestKeptProcesses:
    def test_are_used_for_the_same_values(self) -> None:
        law = nn.Diffusion("pm").law
        levels = torch.tensor([20.0, 30.0])
        with torch.no_grad():
            first = law(levels)
            assert law(levels.clone()) is first
            assert law(torch.tensor([20.0, 31.0])) is not first
            for parameter in law.parameters():
                parameter.data += 0.1  # without a trace in its version
            changed = law(levels)
            assert changed is not first
            assert float(changed.tau.max()) != float(first.tau.max())
        with torch.inference_mode():
            assert law(levels) is not changed

    def test_are_few_and_not_saved(self) -> None:
        layer = nn.Diffusion("pm")
        with torch.no_grad():
            for level in range(1, 40):
                layer.law(torch.tensor([float(level)]))
        assert len(layer.law._known) == 16
        assert not pickle.loads(pickle.dumps(layer)).law._known  # noqa: S301

    def test_have_no_part_in_derivatives(self) -> None:
        layer = doubled(nn.Diffusion("pm"))
        image, level = images(1, 1, 5, 6) / 255, torch.tensor(0.1, dtype=torch.float64)
        with torch.no_grad():
            layer(image, level)
            _, found = torch.func.jvp(
                lambda s: layer(image, s), (level,), (torch.ones_like(level),)
            )
        _, expected = torch.func.jvp(lambda s: layer(image, s), (level,), (torch.ones_like(level),))
        torch.testing.assert_close(found, expected)
        assert float(expected.detach().abs().max()) > 0


@pytest.mark.parametrize("dimensions", [2, 3])
class TestHaarGradient:
    def test_shapes_and_features(self, dimensions: Any) -> None:
        given = batch(dimensions, channels=2)
        parts = nn.HaarGradient(dimensions=dimensions)(given)
        assert len(parts) == {2: 3, 3: 7}[dimensions]
        cells = tuple(size + 1 for size in SIZES[dimensions])
        assert {tuple(part.shape) for part in parts} == {(2, 2, *cells)}
        ramp = torch.arange(6.0).expand(1, 1, *SIZES[dimensions][:-1], 6)
        x, y, *_ = nn.HaarGradient(dimensions=dimensions)(ramp)
        assert (x[..., 1:-1] == 1).all()
        assert not y.any()

    def test_exceptions(self, dimensions: Any) -> None:
        with pytest.raises(ValueError, match="axes"):
            nn.HaarGradient(dimensions=dimensions)(torch.zeros(3))

    @pytest.mark.slow
    def test_gradcheck(self, dimensions: Any) -> None:
        assert gradients_are_right(nn.HaarGradient(dimensions=dimensions), batch(dimensions, 1))


@pytest.mark.parametrize("dimensions", [2, 3])
class TestStructureTensor:
    def parts(self, dimensions: Any, **more: Any) -> list[Any]:
        return [
            nn.HaarGradient(dimensions=dimensions)(batch(dimensions, seed=seed, **more))
            for seed in (1, 2)
        ]

    def test_is_the_function(self, dimensions: Any) -> None:
        parts = self.parts(dimensions, channels=3)
        module = doubled(nn.StructureTensor((2.0, 0.5), 0.7, dimensions=dimensions))
        weights, scale = module.log_weights.exp(), module.log_integration_scale.exp().item()
        operator = stages.HaarGradient() if dimensions == 2 else stages.VolumeGradient()
        products = [operator.outer_product(operator.coupled(part)) for part in parts]
        expected = stages.integrated_tensor(
            stages.multiscale_structure_tensor(products, tuple(weights)),
            scale,
            "cells",
            SPACINGS[dimensions],
        )
        for found, entry in zip(module(parts), expected, strict=True):
            torch.testing.assert_close(found, entry, rtol=1e-10, atol=1e-8)
            assert found.shape[1] == 1

    def test_without_integration_there_is_no_parameter(self, dimensions: Any) -> None:
        module = nn.StructureTensor((1.0, 1.0), dimensions=dimensions)
        assert [name for name, _ in module.named_parameters()] == ["log_weights"]

    def test_exceptions(self, dimensions: Any) -> None:
        with pytest.raises(ValueError, match="weights for 1 scales, got coefficients of 2"):
            nn.StructureTensor(dimensions=dimensions)(self.parts(dimensions))
        with pytest.raises(ValueError, match="integration_scale must not be negative"):
            nn.StructureTensor((1.0,), -1.0, dimensions=dimensions)

    @pytest.mark.slow
    def test_gradcheck(self, dimensions: Any) -> None:
        module = nn.StructureTensor((2.0,), 0.7, dimensions=dimensions)
        both = doubled(
            torch.nn.Sequential(nn.HaarGradient(dimensions=dimensions), _Listed(), module)
        )
        assert gradients_are_right(both, batch(dimensions, 1), twice=True)


class _Listed(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, parts: Any) -> list[Any]:
        return [parts]


def tensors(dimensions: int, *, eigenvalues: tuple[float, ...]) -> Any:
    """Return a field of random tensors with these eigenvalues."""
    rng = np.random.default_rng(3)
    frames = np.linalg.qr(rng.normal(size=(4, dimensions, dimensions)))[0]
    matrices = torch.tensor(frames @ np.diag(eigenvalues) @ frames.transpose(0, 2, 1))
    rows, columns = np.triu_indices(dimensions)
    kind = stages.SymmetricTensor if dimensions == 2 else stages.VolumeTensor
    shape = (1, 1, *(1,) * (dimensions - 1), 4)
    return kind(*(matrices[:, i, j].reshape(shape) for i, j in zip(rows, columns, strict=True)))


class TestDiffusionTensor:
    @pytest.mark.parametrize("dimensions", [2, 3])
    def test_eigenvalues_lie_between_zero_and_one(self, dimensions: Any) -> None:
        eigenvalues = (900.0, 4.0, 0.0)[:dimensions]
        module = doubled(nn.DiffusionTensor(3.0))
        found = module(tensors(dimensions, eigenvalues=eigenvalues))
        for place in range(4):
            matrix = np.zeros((dimensions, dimensions))
            rows, columns = np.triu_indices(dimensions)
            matrix[rows, columns] = [entry.detach().flatten()[place] for entry in found]
            matrix = matrix + np.triu(matrix, 1).T
            expected = np.sort(np.exp(-np.array(eigenvalues) / 18))
            np.testing.assert_allclose(np.linalg.eigvalsh(matrix), expected, atol=1e-6)

    def test_volumes_agree_with_the_reference(self) -> None:
        for eigenvalues in (
            (30.0, 7.0, 1.0),
            (5.0, 5.0, 1.0),
            (5.0, 1.0, 1.0),
            (2.0,) * 3,
            (0.0,) * 3,
        ):
            field = tensors(3, eigenvalues=eigenvalues)
            gate = stages.Exponential(contrasts=(2.0,))
            plain = gate.of(stages.VolumeGradient().prepared(field), 0)
            module = doubled(nn.DiffusionTensor(2.0))
            module.log_contrast.data.fill_(np.log(2.0))
            for found, expected in zip(module(field), plain, strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize(
        "eigenvalues",
        [(30.0, 7.0), (5.0, 5.0), (30.0, 7.0, 1.0), (5.0, 5.0, 1.0), (5.0, 1.0, 1.0), (3.0,) * 3],
    )
    @pytest.mark.long
    def test_gradcheck_also_where_eigenvalues_meet(self, eigenvalues: tuple[float, ...]) -> None:
        field = tensors(len(eigenvalues), eigenvalues=eigenvalues)
        module = doubled(nn.DiffusionTensor(2.0))

        class Entries(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, *entries: Any) -> Any:
                return tuple(self.inner(type(field)(*entries)))

        assert gradients_are_right(Entries(), *field)

    def test_exceptions(self) -> None:
        with pytest.raises(ValueError, match="contrast must be positive"):
            nn.DiffusionTensor(0.0)
        with pytest.raises(TypeError, match="as StructureTensor returns it; got tuple"):
            nn.DiffusionTensor(1.0)((torch.zeros(1),) * 3)

    def test_volumes_refuse_second_derivatives(self) -> None:
        field = tensors(3, eigenvalues=(5.0, 2.0, 1.0))
        xx = field.xx.clone().requires_grad_()
        found = nn.DiffusionTensor(2.0)(field._replace(xx=xx)).yz.sum()
        (gradient,) = torch.autograd.grad(found, xx, create_graph=True)
        with pytest.raises(NotImplementedError, match=r"second derivatives .* of volumes"):
            gradient.sum().backward()


@pytest.mark.parametrize("dimensions", [2, 3])
class TestDivergence:
    def test_features(self, dimensions: Any) -> None:
        given, eigenvalues = batch(dimensions, 1), (1.0,) * dimensions
        identity = tensors(dimensions, eigenvalues=eigenvalues)
        identity = type(identity)(*(entry[..., :1] for entry in identity))
        found = nn.Divergence()(given, identity)
        assert found.shape == given.shape
        torch.testing.assert_close(found.sum(), torch.zeros(()).double(), rtol=0, atol=1e-9)
        assert (found * given).sum() < 0

    def test_is_the_function(self, dimensions: Any) -> None:
        if dimensions == 3:
            return
        given, tensor = batch(2, 1), tensors(2, eigenvalues=(0.9, 0.3))
        tensor = type(tensor)(*(entry[..., :1] for entry in tensor))
        expected = stages.haar_divergence(given, tensor, 0.15)
        torch.testing.assert_close(nn.Divergence(0.15)(given, tensor), expected)

    def test_exceptions(self, dimensions: Any) -> None:
        with pytest.raises(ValueError, match="theta must lie between"):
            nn.Divergence(0.7)

    @pytest.mark.slow
    def test_gradcheck(self, dimensions: Any) -> None:
        tensor = tensors(dimensions, eigenvalues=(0.9, 0.3, 0.2)[:dimensions])

        class Entries(torch.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, given: Any, *entries: Any) -> Any:
                return nn.Divergence()(given, type(tensor)(*entries))

        entries = [entry[..., :1].clone() for entry in tensor]
        assert gradients_are_right(Entries(), batch(dimensions, 1), *entries, twice=True)


@pytest.mark.parametrize("dimensions", [2, 3])
class TestExplicitStep:
    def module(self, dimensions: Any, **more: Any) -> Any:
        settings = {"integration_scale": 0.6, "share": 0.9, "dimensions": dimensions, **more}
        return doubled(nn.ExplicitStep((0.4, 1.2), (1.0, 0.5), (20.0, 9.0), **settings))

    def test_is_the_stages_in_their_order(self, dimensions: Any) -> None:
        given, module = batch(dimensions, channels=2), self.module(dimensions)
        smoothed = nn.ScaleSpace(module.scales, dimensions=dimensions).double()(given)
        structure = module.structure([nn.HaarGradient(dimensions=dimensions)(v) for v in smoothed])
        change: Any = 0
        weights = module.structure.log_weights.exp()
        for i, scale in enumerate(module.scales):
            gate = doubled(nn.DiffusionTensor(1.0))
            gate.log_contrast.data = module.log_contrasts.data[i]
            flow = nn.Divergence(module.theta)(smoothed[i], gate(structure))
            change = change + weights[i] * stages.blur(flow, scale, SPACINGS[dimensions])
        torch.testing.assert_close(module(given), given + module.tau * change, rtol=1e-5, atol=1e-4)

    def test_step_size_is_a_share_of_the_bound(self, dimensions: Any) -> None:
        module = self.module(dimensions)
        evolution = module.evolution().mapped(lambda n: n if isinstance(n, float) else n.item())
        assert module.tau.item() == pytest.approx(module.share.item() * stable_step(evolution))

    def test_exceptions(self, dimensions: Any) -> None:
        for arguments, problem in (
            (((0.5,), (1.0, 1.0), (1.0,)), "1 scales need as many weights"),
            (((1.0, 0.5), (1.0, 1.0), (1.0, 1.0)), "must not decrease"),
            (((0.5,), (-1.0,), (1.0,)), r"weights\[0\] must be positive"),
        ):
            module = nn.ExplicitStep
            with pytest.raises(ValueError, match=problem):
                module(*arguments, dimensions=dimensions)(batch(dimensions))
        with pytest.raises(ValueError, match="share must lie between zero and one"):
            self.module(dimensions, share=1.0)

    @pytest.mark.long
    def test_gradcheck(self, dimensions: Any) -> None:
        # Second derivatives in images alone.
        module = self.module(dimensions)
        assert gradients_are_right(module, batch(dimensions, 1), twice=dimensions == 2)

    @pytest.mark.slow
    @given(data=st.data())
    def test_no_parameter_makes_it_unstable(self, dimensions: Any, data: Any) -> None:
        numbers = st.floats(-12, 12)
        module = nn.ExplicitStep((0.0, 1.2), (1.0, 1.0), (9.0, 9.0), dimensions=dimensions)
        for value in module.parameters():
            drawn = data.draw(st.lists(numbers, min_size=value.numel(), max_size=value.numel()))
            value.data = torch.tensor(drawn).reshape(value.shape)
        seed = data.draw(st.integers(0, 99))
        given = images(1, 1, *SIZES[dimensions], dtype=torch.float32, seed=seed)
        checkerboard = torch.ones_like(given)
        checkerboard[..., ::2] *= -1
        checkerboard[..., ::2, :] *= -1
        for image in (given - given.mean(), checkerboard * 10.0 ** data.draw(st.integers(-3, 3))):
            with torch.no_grad():
                assert module(image).norm() <= image.norm() * (1 + 1e-5)


def differs(found: Any, expected: Any) -> float:
    return float(np.abs(np.asarray(found.detach(), np.float64) - np.asarray(expected)).max())


class TestDiffusionParity:
    """Modules compute what ``denoise`` does."""

    @pytest.mark.parametrize(
        "name",
        [
            name
            if name in ("pm", "eed", "iid", "iad")
            else pytest.param(name, marks=pytest.mark.slow)
            for name in MODEL_NAMES
        ],
    )
    def test_shipped_models(self, name: str) -> None:
        noisy = images(1, 1, 9, 8).numpy() / 255
        sigma = 17 / 255
        expected = denoise(noisy[0, 0], sigma, data_range=1.0, model=name, engine="numpy")
        for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 0.01)):
            layer = nn.Diffusion(name, data_range=1.0, dtype=dtype)
            with torch.no_grad():
                found = layer(torch.tensor(noisy, dtype=dtype), sigma)
            assert 255 * differs(found[0, 0], expected) < tolerance

    @pytest.mark.slow
    @pytest.mark.parametrize("name", SMALL)
    def test_a_noise_level_for_each_image(self, name: str) -> None:
        levels = (4.0, 10.0, 13.0, 70.0)
        noisy = images(4, 2, 7, 6)
        layer = nn.Diffusion(SMALL[name], data_range=300.0, dtype=torch.float64)
        found = layer(noisy, torch.tensor(levels))
        for image, result, sigma in zip(noisy, found, levels, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of noise levels and steps
                expected = denoise(
                    image.numpy(),
                    sigma,
                    data_range=300.0,
                    model=SMALL[name],
                    axes="SYX",
                    colour="joint",
                    engine="torch",
                )
            assert differs(result, expected) < 1e-8
            torch.testing.assert_close(layer(image[None], sigma)[0], result, rtol=0, atol=1e-9)

    @pytest.mark.slow
    @pytest.mark.parametrize("spacing", [None, (2.0, 1.0, 1.0)])
    def test_volumes(self, spacing: Any) -> None:
        noisy = images(1, 1, 4, 6, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of thick slices
            expected = denoise(
                noisy[0, 0].numpy(),
                20.0,
                data_range=255,
                axes="ZYX",
                spacing=spacing,
                engine="numpy",
            )
        for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 0.01)):
            layer = nn.Diffusion(data_range=255.0, dimensions=3, spacing=spacing, dtype=dtype)
            assert layer.model() == load_model("iad-plus-volume")
            with torch.no_grad():
                found = layer(noisy.to(dtype), 20.0)
            assert differs(found[0, 0], expected) < tolerance


class TestDiffusion:
    def test_smoke_and_dtypes(self) -> None:
        layer = nn.Diffusion(SMALL["iad"], data_range=255.0)
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            found = layer(images(2, 3, 5, 4, dtype=dtype), 20.0)
            assert (found.dtype, found.shape) == (dtype, (2, 3, 5, 4))
        assert "data_range=255, dimensions=2, steps=2" in repr(layer)

    def test_autocast_changes_nothing(self) -> None:
        layer, noisy = nn.Diffusion(SMALL["iad"], 255.0), images(1, 1, 5, 4, dtype=torch.float32)
        expected = layer(noisy, 20.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(layer(noisy, 20.0), expected, rtol=0, atol=0)

    def test_inference_mode_leaves_training_alone(self) -> None:
        layer = nn.Diffusion(SMALL["compact-tensor"], 255.0)
        noisy = images(1, 1, 13, 11, dtype=torch.float32)
        with torch.inference_mode():
            expected = layer(noisy, 20.0)
        found = layer(noisy, 20.0)
        found.sum().backward()
        torch.testing.assert_close(found.detach(), expected.clone())

    def test_exceptions(self) -> None:
        layer = nn.Diffusion(SMALL["pm"])
        image = torch.zeros(2, 1, 4, 4)
        for wrong, problem in (
            (torch.zeros(4, 4), r"the axes \(image, channel, row, column\)"),
            (torch.zeros(0, 1, 4, 4), "none of them empty"),
        ):
            with pytest.raises(ValueError, match=problem):
                layer(wrong, 0.1)
        with pytest.raises(TypeError, match=r"real floating point, got torch.uint8"):
            layer(image.byte(), 0.1)
        with pytest.raises(TypeError, match="real floating point, got float64"):
            layer(image.double().numpy(), 0.1)
        for sigma in (0.0, -1.0, float("nan"), torch.tensor([0.1, 0.0])):
            with pytest.raises(ValueError, match="sigma must be positive and finite"):
                layer(image, sigma)
        for sigma in (torch.ones(3), torch.ones(2, 1)):
            with pytest.raises(ValueError, match="one level for each of the 2 images"):
                layer(image, sigma)
        with pytest.raises(ValueError, match="dimensions must be 2 or 3"):
            nn.Diffusion("pm", dimensions=1)
        with pytest.raises(ValueError, match="spacing is for volumes"):
            nn.Diffusion("pm", spacing=(1, 1, 1))
        with pytest.raises(ValueError, match="data_range must be positive"):
            nn.Diffusion("pm", 0.0)
        with pytest.warns(VolumeModelWarning, match="trained on images"):
            nn.Diffusion("pm", dimensions=3)
        with pytest.raises(ValueError, match="order 2 are for images alone"), pytest.warns():
            nn.Diffusion(SMALL["compact"], dimensions=3)

    def test_parameters_that_run_away_are_refused(self) -> None:
        layer = nn.Diffusion(SMALL["iad"])
        layer.law.lambda_0.data.fill_(200.0)
        with pytest.raises(ValueError, match="a contrast of this model is"):
            layer(torch.zeros(1, 1, 4, 4), 0.1)

    def test_without_torch(self, without_package: Callable[[str], None]) -> None:
        for name in [name for name in sys.modules if name.startswith("integrodiff.nn")]:
            without_package(name)
            sys.modules.pop(name)
        without_package("torch")
        with pytest.raises(
            ImportError, match=r"integrodiff.nn needs the package torch: pip install"
        ):
            __import__("integrodiff.nn")


class TestModelsAndFiles:
    """A module is made of a model, and a model of a module."""

    @pytest.mark.parametrize("name", [*MODEL_NAMES, "iad-plus-volume"])
    def test_shipped_models_come_back_as_they_were(self, name: str) -> None:
        model = load_model(name)
        layer = nn.Diffusion(model)
        assert layer.model() == model
        text = model_to_json(layer.model())
        again = nn.Diffusion(model_from_json(text)).state_dict()
        for key, value in layer.state_dict().items():
            torch.testing.assert_close(again[key], value, rtol=0, atol=0)

    @pytest.mark.parametrize("name", SMALL)
    def test_changed_parameters_go_to_files_and_back(self, name: str, tmp_path: Any) -> None:
        layer = nn.Diffusion(SMALL[name], dtype=torch.float64)
        for value in layer.parameters():
            value.data += 0.01
        model = layer.model()
        assert model != SMALL[name]
        assert model.provenance["status"] == "trained further by integrodiff.nn"
        save_model(model, tmp_path / "model.json")
        again = nn.Diffusion(tmp_path / "model.json", dtype=torch.float64)
        for key, value in layer.state_dict().items():
            torch.testing.assert_close(again.state_dict()[key], value, rtol=1e-12, atol=1e-12)
        other = nn.Diffusion(SMALL[name], dtype=torch.float64)
        other.load_state_dict(layer.state_dict())
        assert other.model() == model

    def test_zeros_stay_zeros(self) -> None:
        model = load_model("iad-plus-volume")
        assert "law.pull" not in nn.Diffusion(model).state_dict()
        law = SMALL["compact"].law  # type: ignore[attr-defined]
        without = replace(SMALL["compact"], law=replace(law, strengths=(1.0, 0.0)))  # type: ignore[type-var]
        layer = nn.Diffusion(without, 255.0)
        layer(images(1, 1, 5, 5, dtype=torch.float32), 20.0).square().sum().backward()
        optimiser = torch.optim.Adam(layer.parameters())
        assert all(torch.isfinite(value.grad).all() for value in layer.parameters())
        optimiser.step()
        assert layer.model().law.strengths[1] == 0.0


class TestDerivatives:
    @pytest.mark.parametrize("name", ["eed", "iad-full", "compact-tensor"])
    @pytest.mark.slow
    def test_directions(self, name: str) -> None:
        layer = nn.Diffusion(SMALL[name], 255.0, dtype=torch.float64)
        levels = torch.tensor([12.0, 23.0], dtype=torch.float64)
        assert directions_are_right(layer, images(2, 1, 3, 4), levels)

    @pytest.mark.long
    def test_directions_in_volumes(self) -> None:
        layer = nn.Diffusion(VOLUME, 255.0, dimensions=3, dtype=torch.float64)
        levels = torch.tensor([12.0, 23.0], dtype=torch.float64)
        assert directions_are_right(layer, images(2, 1, 2, 3, 3), levels)

    @pytest.mark.parametrize("name", SMALL)
    @pytest.mark.long
    def test_gradcheck(self, name: str) -> None:
        """By image, parameters and noise levels, in reverse and forward mode."""
        layer = nn.Diffusion(SMALL[name], 255.0, dtype=torch.float64)
        levels = torch.tensor([12.0, 23.0], dtype=torch.float64)
        assert gradients_are_right(layer, images(2, 1, 3, 4), levels)

    @pytest.mark.parametrize("name", ["eed", "iad", "at-the-bound"])
    @pytest.mark.long
    def test_second_derivatives(self, name: str) -> None:
        layer = nn.Diffusion(SMALL[name], 255.0, dtype=torch.float64)
        levels = torch.tensor([12.0], dtype=torch.float64)
        assert gradients_are_right(layer, images(1, 1, 3, 3), levels, forward=False, twice=True)

    @pytest.mark.long
    def test_gradcheck_in_volumes(self) -> None:
        layer = nn.Diffusion(VOLUME, 255.0, dimensions=3, dtype=torch.float64)
        levels = torch.tensor([12.0, 23.0], dtype=torch.float64)
        assert gradients_are_right(layer, images(2, 1, 2, 3, 3), levels)

    def test_volumes_refuse_second_derivatives(self) -> None:
        layer = nn.Diffusion(VOLUME, 255.0, dimensions=3)
        noisy = images(1, 1, 2, 3, 3).requires_grad_()
        (gradient,) = torch.autograd.grad(
            layer(noisy, 20.0).square().sum(), noisy, create_graph=True
        )
        with pytest.raises(NotImplementedError, match=r"second derivatives .* of volumes"):
            gradient.sum().backward()

    @pytest.mark.parametrize("dimensions", [2, 3])
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", ["constant", "ramp", "corner", "one pixel"])
    def test_finite_where_eigenvalues_meet(self, dimensions: Any, kind: str) -> None:
        shape = (1, 1, *((1,) * dimensions if kind == "one pixel" else SIZES[dimensions]))
        image = torch.full(shape, 50.0, dtype=torch.float64)
        if kind == "ramp":  # the smaller eigenvalues of J are zero everywhere
            image += 10 * torch.arange(shape[-1])
        if kind == "corner":  # they meet on a diagonal
            image[..., :2, :2] = 90.0
        model = VOLUME if dimensions == 3 else SMALL["compact-tensor"]
        layer = nn.Diffusion(model, 255.0, dimensions=dimensions, dtype=torch.float64)
        image.requires_grad_()
        sigma = torch.tensor(20.0, requires_grad=True)
        weights = images(*shape, seed=5)
        found = torch.autograd.grad(
            (weights * layer(image, sigma)).sum(), [image, sigma, *layer.parameters()]
        )
        assert all(torch.isfinite(part).all() for part in found)

    @pytest.mark.long
    @pytest.mark.parametrize("dimensions", [2, 3])
    def test_gradcheck_in_constant_images(self, dimensions: Any) -> None:
        model = VOLUME if dimensions == 3 else SMALL["compact-tensor"]
        layer = nn.Diffusion(model, 255.0, dimensions=dimensions, dtype=torch.float64)
        image = torch.full((1, 1, *SIZES[dimensions]), 50.0, dtype=torch.float64)
        assert directions_are_right(layer, image, torch.tensor([20.0], dtype=torch.float64))

    @pytest.mark.slow
    def test_forward_mode(self) -> None:
        """A derivative in one direction is the sum of the gradient times the direction."""
        layer = nn.Diffusion(SMALL["compact-tensor"], 255.0, dtype=torch.float64)
        noisy, direction = images(1, 1, 4, 4), images(1, 1, 4, 4, seed=1)
        levels, more = torch.tensor([20.0]).double(), torch.tensor([0.3]).double()
        _, tangent = torch.func.jvp(layer, (noisy, levels), (direction, more))
        noisy.requires_grad_()
        levels.requires_grad_()
        weights = images(1, 1, 4, 4, seed=2)
        by_image, by_level = torch.autograd.grad(
            (weights * layer(noisy, levels)).sum(), [noisy, levels]
        )
        expected = (by_image * direction).sum() + (by_level * more).sum()
        torch.testing.assert_close((weights * tangent).sum(), expected)


class TestCheckpoints:
    def layers(self, steps: int) -> tuple[Any, Any]:
        model = replace(SMALL["iad"], steps=steps)  # type: ignore[type-var]
        plain = nn.Diffusion(model, 255.0)
        return plain, nn.Diffusion(model, 255.0, checkpoint=True)

    def test_same_derivatives(self) -> None:
        plain, checkpointed = self.layers(3)
        noisy = images(1, 1, 8, 8, dtype=torch.float32)
        found = []
        for layer in (plain, checkpointed):
            image = noisy.clone().requires_grad_()
            layer(image, 20.0).square().sum().backward()
            found.append([image.grad, *(value.grad for value in layer.parameters())])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b)

    def test_functional_transforms(self) -> None:
        plain, checkpointed = self.layers(2)
        noisy = images(1, 1, 4, 4, dtype=torch.float32)
        with pytest.raises(RuntimeError, match="checkpoint=True; set its attribute checkpoint"):
            torch.func.grad(lambda image: checkpointed(image, 20.0).sum())(noisy)
        found = torch.func.grad(lambda image: plain(image, 20.0).square().sum())(noisy)
        noisy.requires_grad_()
        (expected,) = torch.autograd.grad(plain(noisy, 20.0).square().sum(), noisy)
        torch.testing.assert_close(found, expected)

    def test_second_derivatives(self) -> None:
        found = []
        for layer in self.layers(2):
            noisy = images(1, 1, 3, 3, dtype=torch.float32).requires_grad_()
            (once,) = torch.autograd.grad(
                layer(noisy, 20.0).square().sum(), noisy, create_graph=True
            )
            found += torch.autograd.grad(once.square().sum(), noisy)
        torch.testing.assert_close(*found)

    def test_one_image_per_step_is_kept(self) -> None:
        saved_bytes = pytest.importorskip("layer_memory").saved_bytes
        noisy = images(1, 1, 64, 64, dtype=torch.float32)
        image = noisy.nbytes
        few, many = (saved_bytes(self.layers(steps)[1], noisy) for steps in (2, 6))
        assert (many - few) / 4 < 1.5 * image
        few, many = (saved_bytes(self.layers(steps)[0], noisy) for steps in (2, 6))
        assert (many - few) / 4 > 30 * image


# What the compiler looks at is hidden from users, and not where warnings are errors.
looks_at_gradients = pytest.mark.filterwarnings(r"ignore:The \.grad attribute of a Tensor")


@looks_at_gradients
@pytest.mark.usefixtures("fresh_compiler")
class TestCompile:
    @pytest.mark.parametrize(
        "name",
        [
            pytest.param("pm", marks=pytest.mark.slow),
            pytest.param("eed", marks=pytest.mark.long),
        ],
    )
    def test_steps_are_compiled(self, name: str) -> None:
        """The same values and gradients; two graphs serve all steps and noise levels.

        One is for the first step, whose image carries no derivatives.
        """
        testing = importlib.import_module("torch._dynamo.testing")
        layer = nn.Diffusion(SMALL[name], 255.0)
        counter = testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(layer, backend=counter)
        noisy = images(1, 1, 6, 7, dtype=torch.float32)
        for sigma in (20.0, 25.0):
            found, expected = compiled(noisy, sigma), layer(noisy, sigma)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
            parameters = list(layer.parameters())
            for a, b in zip(
                torch.autograd.grad(found.square().sum(), parameters),
                torch.autograd.grad(expected.square().sum(), parameters),
                strict=True,
            ):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1.0)
        assert counter.frame_count == 2


class TestStepSizes:
    """The hypothesis: no parameter and no noise level make a step unstable."""

    @pytest.mark.slow
    @given(name=st.sampled_from([n for n in SMALL if n != "iad-nonnegativity"]), data=st.data())
    def test_within_the_bound_for_all_parameters(self, name: str, data: Any) -> None:
        dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
        law = nn.ModelLaw(SMALL[name], dtype=dtype)
        for value in law.parameters():
            size = value.numel()
            moved = data.draw(st.lists(st.floats(-3, 3), min_size=size, max_size=size))
            value.data += torch.tensor(moved, dtype=dtype).reshape(value.shape)
        levels = torch.tensor(data.draw(st.lists(st.floats(1, 150), min_size=1, max_size=2)))
        try:
            evolution = law(levels)
        except ValueError as error:
            if "of this model is" not in str(error):
                raise
            return  # numbers that nobody can compute with
        for image in range(len(levels)):
            numbers = [
                number
                if isinstance(number, float)
                else number.flatten()[image % len(number)].item()
                for number in evolution.numbers()
            ]
            scales = tuple(
                scale if isinstance(scale, float) else scale.flatten()[image % len(scale)].item()
                for scale in evolution.scales
            )
            plain = replace(evolution.with_numbers(numbers), scales=scales)
            assert plain.tau <= stable_step(plain) * (1 + 1e-9)
            rng = np.random.default_rng(image)
            noisy = rng.normal(0, 50, (1, 5, 6))
            result = noisy
            for step in range(plain.steps):
                result = explicit_step(result, plain, step, noisy)
            assert np.linalg.norm(result) <= np.linalg.norm(noisy) * (1 + 1e-9)
