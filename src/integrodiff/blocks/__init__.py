"""Images in blocks: parts that are denoised by themselves and agree with the whole.

::

    grid.py       which blocks there are, and what surrounds them
    memory.py     how large they may be
    region.py     denoises one of them
    sample.py     noise and scale of an image that is too large to be looked at as a whole
    job.py        a file in blocks, from disk to disk: plan, journal, result
    cluster.py    the blocks of a job on the workers of Dask

A block is denoised together with a *halo* around it, whose result is dropped. How wide the halo has
to be is a property of the process, :meth:`integrodiff.stages.Evolution.reach`. Where a halo ends
inside of the image, the reflection at its end has no effect on the block, up to the tolerance; at
the true edges of the image there is no halo, and the reflection is that of the whole. The coarse
grids of the compiled engine take every second pixel, so that halos begin at even ones.
"""
