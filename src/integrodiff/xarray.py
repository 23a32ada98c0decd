"""The accessor ``integrodiff`` of xarray's arrays, registered when this module is imported.

::

    import integrodiff.xarray
    result = temperature.integrodiff.denoise(sigma=0.5, data_range=40)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray as xr

from integrodiff._denoise import denoise
from integrodiff.containers import opened
from integrodiff.noise.level import estimate_sigma
from integrodiff.viz.figures import compare, explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@xr.register_dataarray_accessor("integrodiff")  # type: ignore[no-untyped-call]
class DataArrayAccessor:
    """Denoising as methods of an array with named axes.

    Parameters
    ----------
    array : xarray.DataArray
        The image; names such as y, x, time and band tell its axes.
    """

    def __init__(self, array: xr.DataArray) -> None:
        self._array = array

    def denoise(self, sigma: Any = None, **arguments: Any) -> xr.DataArray:
        """Return the array without noise; arguments are those of :func:`integrodiff.denoise`."""
        result: Any = denoise(self._array, sigma, **arguments)
        return result  # type: ignore[no-any-return]

    def estimate_sigma(self, *, axes: str | None = None, mask: Any = None) -> float | xr.DataArray:
        """Estimate the noise level; see :func:`integrodiff.estimate_sigma`.

        Channels and colour samples have one each, in an array with their dimensions.
        """
        found = estimate_sigma(self._array, axes=axes, mask=mask)
        if isinstance(found, float):
            return found
        letters = zip(
            (axes or opened(self._array).axes or "").upper(), self._array.dims, strict=True
        )
        names = dict(letters)
        dims = [names[letter] for letter in "CS" if letter in names]
        coords = {name: self._array.coords[name] for name in dims if name in self._array.coords}
        return xr.DataArray(found, dims=dims, coords=coords, attrs=self._array.attrs)

    def compare(self, after: Any, clean: Any = None, **arguments: Any) -> Figure:
        """Draw the array, a denoised one and the difference; see :func:`integrodiff.compare`."""
        return compare(self._array, after, clean, **arguments)

    def explain(self, sigma: Any = None, **arguments: Any) -> Figure:
        """Draw how the array is denoised; arguments are those of :func:`integrodiff.explain`."""
        return explain(self._array, sigma, **arguments)
