"""PyTorch modules: whole models as layers, and a module for each stage of a step.

Every module stands beside a function of :mod:`integrodiff.stages` and calls it, so that there is
one implementation of the mathematics. Parameters are free of constraints; transforms keep what they
stand for positive, and step sizes within the bound of stability. docs/torch.md explains how to use
them. Import this package by its name: ``import integrodiff`` does not load PyTorch.
"""

from __future__ import annotations

from importlib.util import find_spec

from integrodiff.install import install_first

if find_spec("torch") is None:
    raise ImportError(install_first("integrodiff.nn", "torch", "torch"))

from integrodiff.nn.diffusion import Diffusion
from integrodiff.nn.laws import ModelLaw
from integrodiff.nn.stages import (
    Blur,
    DiffusionTensor,
    Divergence,
    ExplicitStep,
    HaarGradient,
    ScaleSpace,
    StructureTensor,
)

__all__ = [
    "Blur",
    "Diffusion",
    "DiffusionTensor",
    "Divergence",
    "ExplicitStep",
    "HaarGradient",
    "ModelLaw",
    "ScaleSpace",
    "StructureTensor",
]
