"""The plugin for napari: denoise a layer, with a preview, progress and the same call in Python.

napari finds the plugin by its manifest, ``napari.yaml``, and imports a module of this folder when a
person opens it. Nothing else in the package imports napari, and nothing here requires a particular
binding of Qt. The data flow::

    layer -> layers.py: array, axes, spacing -> job.py: denoise, step by step -> layer
                                             -> code.py: the same as Python code

``panel.py`` is what a person sees, ``samples.py`` has images to try it with.
"""
