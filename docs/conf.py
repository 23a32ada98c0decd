"""Sphinx configuration: `make docs` builds docs/_build/html offline, with warnings as errors."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
# One figure after the other; two threads of the engine are as fast as they get.
os.environ.setdefault("MPLBACKEND", "agg")

import integrodiff  # noqa: E402

project = "integrodiff"
author = "The integrodiff developers"
copyright = "The integrodiff developers"
version = release = integrodiff.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
    "repository_links",
    "mathml",
    "complete",
]
exclude_patterns = ["_build", "_ext", "gallery/*.rst", "gallery/*.py"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
default_role = "code"
html_math_renderer = "mathml"

# Pages are plain Markdown, which the repository shows as well.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "config.cache"]

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "built",
    "filename_pattern": "/plot_",
    "backreferences_dir": None,
    "download_all_examples": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,
    "write_computation_times": False,
    "show_signature": False,
    "image_scrapers": ("matplotlib", "gallery_figures.scrape"),
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "nested_sections": False,
    "copyfile_regex": r"",
}
warnings.filterwarnings("error", module=r"integrodiff\.")

html_theme = "pydata_sphinx_theme"
html_title = "integrodiff"
html_favicon = "../page/icon.svg"
html_static_path = ["_static"]
html_css_files = ["integrodiff.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
    "logo": {"text": "integrodiff"},
}
html_sidebars = {"index": []}

# The page in the browser is part of the site where `make page` has built it.
if (HERE.parent / "page" / "dist").is_dir():
    tags.add("live_demo")  # type: ignore[name-defined]  # noqa: F821 - defined by Sphinx
