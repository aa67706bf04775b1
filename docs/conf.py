"""The settings of the documentation; ``make docs`` builds it, without network, into build/docs."""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path

# TensorFlow Recommenders is built on Keras 2.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

import tfrs_croloss  # noqa: E402

_metadata = configparser.ConfigParser()
_metadata.read(ROOT / "setup.cfg", encoding="utf-8")
_urls = dict(
    line.split(" = ", 1) for line in _metadata["metadata"]["project_urls"].strip().splitlines()
)

project = "tfrs_croloss"
author = _metadata["metadata"]["author"]
release = version = tfrs_croloss.__version__
repository_url = _urls["Source"]

extensions = [
    "constructors",
    "mathml",
    "myst_nb",
    "repository_pages",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]

# Pages of the site, and the files of the repository that they show.
repository_pages = {
    "benchmarks": "benchmarks/README.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "security": "SECURITY.md",
    "results/index": "results/README.md",
    **{
        f"results/{name}": f"results/{name}/report.md"
        for name in (
            "beauty-attributes",
            "beauty-compare",
            "beauty-leaderboard",
            "beauty-sequences",
            "beauty-timestamps-compare",
            "cds-compare",
            "cds-sizes",
            "electronic-leaderboard",
            "health-leaderboard",
            "health-sizes",
            "ml-100k-features",
            "retrieval-size",
            "sports-attributes",
            "sports-sequences",
            "video-games-compare",
        )
    },
}

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
# Notebooks are shown with the outputs that they have; `make tutorials` runs them.
nb_execution_mode = "off"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_default_options = {"members": True, "exclude-members": "get_config, from_config"}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
autosummary_generate = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_use_param = True
# A word in single backticks is code.
default_role = "code"

nitpicky = True
# Nothing is fetched, so names of other packages lead nowhere.
nitpick_ignore_regex = [(r"py:.*", r"(?!tfrs_croloss).*")]

html_theme = "furo"
html_title = f"tfrs_croloss {release}"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "source_repository": repository_url,
    "source_branch": "main",
    "source_directory": "docs/",
}
