"""The package as a whole: its public names, what importing it costs, how modules depend."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import integrodiff

SOURCE = Path(integrodiff.__file__).parent

PUBLIC = {
    "EED": "type",
    "ENGINE_NAMES": "tuple",
    "IAD": "type",
    "IID": "type",
    "MODEL_NAMES": "tuple",
    "ByNoiseLevel": "type",
    "EngineUnavailableError": "type",
    "FullLaw": "type",
    "ImageFileError": "type",
    "Model": "type",
    "ModelFileError": "type",
    "NoiseLevelWarning": "type",
    "SlowEngineWarning": "type",
    "PeronaMalik": "type",
    "PoissonGaussian": "type",
    "Denoiser": "type",
    "NotFiniteError": "type",
    "SliceBySliceWarning": "type",
    "Step": "type",
    "UnknownDetector": "type",
    "ReducedLaw": "type",
    "ScaleGrid": "type",
    "StepSizeError": "type",
    "denoise": "function",
    "estimate_poisson_gaussian": "function",
    "estimate_sigma": "function",
    "load_model": "function",
    "save_model": "function",
    "stages": "module",
}

SIGNATURES = {
    "denoise": [
        "image",
        "sigma=None",
        "*model='iad-plus'",
        "*data_range=None",
        "*axes=None",
        "*channel_axis=None",
        "*colour='auto'",
        "*noise='gaussian'",
        "*engine='auto'",
        "*as_float=False",
        "*exact=False",
        "*threads=None",
        "*out=None",
        "*callback=None",
    ],
    "estimate_sigma": ["image", "*channel_axis=None"],
    "estimate_poisson_gaussian": ["image", "*channel_axis=None", "*offset=None"],
    "PoissonGaussian": ["*gain=1.0", "*offset=0.0", "*readout=0.0"],
    "Denoiser": [
        "sigma=None",
        "*model='iad-plus'",
        "*data_range=None",
        "*axes=None",
        "*channel_axis=None",
        "*colour='auto'",
        "*noise='gaussian'",
        "*engine='auto'",
        "*as_float=False",
        "*exact=False",
        "*threads=None",
    ],
    "load_model": ["name_or_path"],
    "save_model": ["model", "path"],
    "PeronaMalik": ["*tau", "*steps=10", "*theta=0.25", "*discretisation='haar'", "*contrast"],
    "EED": ["*tau", "*steps=10", "*theta=0.25", "*discretisation='haar'", "*contrast", "*scale"],
    "ReducedLaw": ["*alpha", "*beta", "*lambda_0"],
    "FullLaw": ["*gammas", "*lambdas"],
    "ScaleGrid": ["*count=8", "*smallest=0.2", "*largest=7.0", "*quadrature='gradient'"],
    "ByNoiseLevel": ["*levels", "*models"],
}


def test_public_names_are_pinned() -> None:
    assert {name: kind(name) for name in integrodiff.__all__} == PUBLIC
    assert set(PUBLIC) <= set(dir(integrodiff))


def kind(name: str) -> str:
    thing = getattr(integrodiff, name)
    return "type" if inspect.isclass(thing) else type(thing).__name__


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_pinned(name: str) -> None:
    found = []
    for parameter in inspect.signature(getattr(integrodiff, name)).parameters.values():
        if parameter.name == "provenance":
            continue  # its default is a factory without a readable form
        star = "*" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"
        found.append(f"{star}{parameter.name}{default}")
    assert found == SIGNATURES[name]


def test_version_is_that_of_the_installation() -> None:
    assert integrodiff.__version__ == version("integrodiff")


def test_import_is_quick_and_light() -> None:
    """Best of three, since other programs may run; the guard is against heavy imports."""
    code = (
        "import sys, time, json; start = time.perf_counter(); import integrodiff; "
        "seconds = time.perf_counter() - start; light = sorted(sys.modules); "
        "integrodiff.denoise; "
        "print(json.dumps([seconds, light, sorted(sys.modules)]))"
    )
    runs = [
        json.loads(
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        )
        for _ in range(3)
    ]
    assert min(seconds for seconds, _, _ in runs) < 0.5
    heavy = {"torch", "matplotlib", "typer", "click", "rich", "dask", "skimage", "PIL", "tifffile"}
    heavy |= {"imagecodecs", "nibabel", "pydicom", "zarr"}
    _, on_import, on_use = runs[0]
    assert not heavy & set(on_import)
    assert not heavy & set(on_use)
    assert "numpy" not in on_import


STAGES = [
    "_arrays",
    "scale_space",
    "gradient",
    "derivatives",
    "structure_tensor",
    "diffusion_tensor",
    "divergence",
    "evolution",
    "stability",
    "step",
]

LAYERS = [
    *("stages", "models", "engines", "noise", "colour", "_denoise"),
    *("learning", "viz", "reproduction", "cli"),
]
"""A package or module may import from those before it in this list, never from those after."""


def imports_of(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, functions' imports included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            if node.module == "integrodiff":
                found |= {f"integrodiff.{alias.name}" for alias in node.names}
            elif node.module:
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("integrodiff.") for name in found if name.startswith("integrodiff.")}


def test_a_stage_imports_only_earlier_stages() -> None:
    files = {path.stem for path in (SOURCE / "stages").glob("*.py")} - {"__init__"}
    assert files == set(STAGES)
    for position, name in enumerate(STAGES):
        allowed = {f"stages.{earlier}" for earlier in STAGES[:position]}
        found = imports_of(SOURCE / "stages" / f"{name}.py")
        assert found <= allowed, f"{name} imports {sorted(found - allowed)}"


def test_data_flows_one_way() -> None:
    def layer(module: str) -> int:
        top = module.split(".")[0]
        return LAYERS.index(top) if top in LAYERS else -1

    for path in SOURCE.rglob("*.py"):
        own = layer(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        if own < 0:
            continue
        for imported in imports_of(path):
            assert layer(imported) <= own, f"{path.relative_to(SOURCE)} imports {imported}"
