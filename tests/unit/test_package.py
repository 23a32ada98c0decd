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
    "NoValidPixelsWarning": "type",
    "NoiseLevelWarning": "type",
    "SlowEngineWarning": "type",
    "PeronaMalik": "type",
    "PoissonGaussian": "type",
    "Denoiser": "type",
    "Step": "type",
    "UnknownDetector": "type",
    "VolumeModelWarning": "type",
    "ReducedLaw": "type",
    "ScaleGrid": "type",
    "StepSizeWarning": "type",
    "compare": "function",
    "denoise": "function",
    "estimate_poisson_gaussian": "function",
    "estimate_sigma": "function",
    "explain": "function",
    "load_model": "function",
    "save_model": "function",
    "stages": "module",
}

SIGNATURES = {
    "denoise": [
        "image",
        "sigma=None",
        "*noise_psd=None",
        "*model='iad-plus'",
        "*data_range=None",
        "*axes=None",
        "*spacing=None",
        "*channel_axis=None",
        "*colour='auto'",
        "*noise='gaussian'",
        "*engine='auto'",
        "*as_float=False",
        "*exact=False",
        "*threads=None",
        "*max_memory=None",
        "*mask=None",
        "*out=None",
        "*callback=None",
    ],
    "compare": [
        "before",
        "after",
        "clean=None",
        "*axes=None",
        "*channel_axis=None",
        "*at=None",
        "*bands=None",
        "*spacing=None",
        "*mask=None",
        "*window=None",
        "*zoom=None",
        "*data_range=None",
        "*unit=None",
    ],
    "explain": [
        "image",
        "sigma=None",
        "*noise_psd=None",
        "*model='iad-plus'",
        "*data_range=None",
        "*axes=None",
        "*spacing=None",
        "*channel_axis=None",
        "*colour='auto'",
        "*noise='gaussian'",
        "*engine='auto'",
        "*mask=None",
        "*at=None",
        "*bands=None",
        "*step=None",
        "*window=None",
        "*unit=None",
    ],
    "estimate_sigma": ["image", "*axes=None", "*channel_axis=None", "*mask=None"],
    "estimate_poisson_gaussian": ["image", "*channel_axis=None", "*offset=None", "*mask=None"],
    "PoissonGaussian": ["*gain=1.0", "*offset=0.0", "*readout=0.0"],
    "Denoiser": [
        "sigma=None",
        "*noise_psd=None",
        "*model='iad-plus'",
        "*data_range=None",
        "*axes=None",
        "*spacing=None",
        "*channel_axis=None",
        "*colour='auto'",
        "*noise='gaussian'",
        "*engine='auto'",
        "*as_float=False",
        "*exact=False",
        "*threads=None",
        "*max_memory=None",
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


HEAVY = {
    *("torch", "matplotlib", "skimage", "dask"),
    *("typer", "click", "rich"),
    *("PIL", "tifffile", "imagecodecs", "nibabel", "pydicom", "zarr"),
    *("napari", "magicgui", "qtpy"),
}
"""Packages that must not be imported by users of ``denoise`` on arrays."""


def test_import_is_light() -> None:
    """Importing the package loads not even NumPy; using ``denoise`` loads nothing heavy."""
    code = (
        "import json, sys; before = set(sys.modules); import integrodiff; "
        "imported = sorted(set(sys.modules) - before); integrodiff.denoise; "
        "print(json.dumps([imported, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    on_import, on_use = json.loads(done.stdout)
    assert not (HEAVY | {"numpy", "scipy"}) & set(on_import)
    assert not HEAVY & set(on_use)
    own = {name for name in on_import if name.startswith("integrodiff")}
    assert own == {"integrodiff", "integrodiff._version"}


LAYERS = """
_version
_default_model
errors
install
_atomic
_text_files
_child_threads
namespaces
layout
units
validity
arrays
containers
stages: _arrays reflection scale_space gradient derivatives symbols structure_tensor eigenframe \
        diffusion_tensor divergence haar_volume operators domain evolution thick_slices \
        stability step __init__
blocks: memory grid __init__
_checks
models: limits description base laws classical compact compact_tensor deep integrodifferential \
        by_noise_level files __init__
engines: base threads gpu shortcuts certificate native_memory masked staged numpy native torch \
         cuda.launch cuda.arrays cuda.blurs cuda.steps cuda.walks cuda.tangents cuda.process \
         cuda.stages cuda.__init__ __init__
noise: photons rice maps spectrum levels variation level __init__
grey_range
colour
request: arguments volumes resolved given warn measured survey resolver __init__
pipeline
_denoise
__init__
io: spacing bounded image access registry masks formats.exif formats.ome_xml formats.pyramid \
    formats.tiff_tags formats.tiff_levels formats.tiff_cog formats.tiff_writing \
    formats.jpeg_segments formats.tiff \
    formats.pillow formats.png formats.jpeg formats.webp_quality formats.webp \
    formats.gif formats.bmp formats.boxes formats.avif formats.heic formats.npy \
    formats.dicom_frames formats.dicom_elements formats.dicom_slices formats.dicom \
    formats.dicom_series formats.nifti formats.nrrd formats.mrc \
    formats.zarr_codecs formats.zarr_slabs formats.zarr_pyramid formats.ome_zarr \
    formats.__init__ windows __init__
blocks: sample region job cluster
dask
viz: metrics sheet view notebook_figure drawing comparison orthogonal mosaic comparison_figure \
     demo explanation explanation_figure figures __init__
xarray
nn: volumes laws diffusion stages __init__
napari: layers job code samples panel __init__
learning: download images parameters neighbourhood tangents cluster compiled native cuda descent \
          fit evaluation recipes \
          __init__
reproduction: published _results evaluation table1 ablation figure1 figure2 targets __init__
cli: _terminal _files _models _noise _masks _views _one_file batch.plan batch.records \
     batch.outcomes batch.messages batch.workers batch.run batch.__init__ _pipes _blocks _single \
     _training_messages _training denoise compare explain info demo page train reproduce __init__ \
     __main__
"""
"""Every module of the package. A module may import those above it, and in its own line those to
its left. A new module must be entered here."""

CONFINED = {
    "stages": set[str](),
    "io": {"errors", "install", "layout", "units", "validity", "_atomic"},
    "noise": {"arrays", "containers", "errors", "namespaces", "validity", "_checks"},
    "request": {
        *(
            "arrays",
            "blocks",
            "colour",
            "errors",
            "grey_range",
            "layout",
            "models",
            "noise",
            "stages",
        ),
        *("namespaces", "units", "validity", "_checks"),
    },
    "pipeline": {"blocks", "engines", "namespaces", "noise", "request", "validity"},
    "colour": {"errors", "namespaces", "_checks"},
    "engines": {"errors", "install", "layout", "_checks", "stages"},
    "models": {"errors", "layout", "_atomic", "_checks", "stages"},
    "nn": {"_checks", "_default_model", "errors", "install", "models", "stages"},
}
"""Lines that may import only these of the lines above them: files know nothing of denoising,
engines nothing of models, and the other way round."""

OUTSIDE = {"_native"}
"""The compiled extension, which imports nothing of the package."""


def layered_modules() -> list[str]:
    """Return every module in the order of ``LAYERS``, packages by their own name."""
    found = []
    for line in LAYERS.replace("\\\n", " ").split("\n"):
        package, colon, modules = line.partition(":")
        prefix = f"{package}." if colon else ""
        found += [f"{prefix}{name}" for name in (modules if colon else package).split()]
    return [name.removesuffix(".__init__") for name in found]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of this package that a file imports.

    Imports in functions and those for types only count as well; a public name that is imported
    from the package itself counts as ``__init__``.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            for alias in node.names:
                # A name that is no module is something that the module before the dot defines.
                full = f"{base}.{alias.name}"
                found.add(full if full.removeprefix("integrodiff.") in modules else base)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    own = {name for name in found if name.split(".")[0] == "integrodiff"}
    return {"__init__" if n == "integrodiff" else n.removeprefix("integrodiff.") for n in own}


def test_every_module_has_its_layer() -> None:
    listed = layered_modules()
    assert len(listed) == len(set(listed))
    assert set(listed) == {module_name(path) for path in SOURCE.rglob("*.py")}


def test_imports_only_go_down() -> None:
    position = {name: number for number, name in enumerate(layered_modules())}
    wrong = []
    for path in SOURCE.rglob("*.py"):
        module = module_name(path)
        top = module.split(".")[0]
        for imported in imports_of(path, set(position) | OUTSIDE) - OUTSIDE:
            room = imported.split(".")[0]
            allowed = CONFINED.get(top)
            if position[imported] >= position[module]:
                wrong.append(f"{module} imports {imported}, which is not below it")
            elif allowed is not None and room not in allowed | {top}:
                wrong.append(f"{module} imports {imported}, but {top} may not use {room}")
    assert not wrong, "\n".join(wrong)
