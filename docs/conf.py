"""Build the docs: `python -m sphinx -W --keep-going docs docs/_build/html`."""

from pathlib import Path

from softdict import __version__, play

project = "softdict"
author = "The softdict developers"
copyright = "The softdict developers"  # as Sphinx names it
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "**.ipynb"]
default_role = "code"
nitpicky = False

html_theme = "pydata_sphinx_theme"
html_title = "softdict"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {
    "show_prev_next": True,
    "navigation_with_keys": True,
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"index": []}

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_code_prompt_show = "Unfold"
nb_code_prompt_hide = "Fold"

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False


def playground(app, error):
    """Write the page that the docs embed."""
    if error is None and app.builder.format == "html":
        play(None, Path(app.outdir) / "playground.html")


def setup(app):
    app.connect("build-finished", playground)
