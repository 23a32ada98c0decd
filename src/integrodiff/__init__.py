"""Transparent image denoising by nonlinear diffusion with a few learned parameters."""

import lazy_loader as _lazy

from integrodiff._version import __version__ as __version__

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
