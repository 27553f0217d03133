"""Configuration of the documentation site (Sphinx): `make docs` builds it in site/ and fails on any warning."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_build"))

import generate  # noqa: E402

import equipoise  # noqa: E402

project = "Equipoise"
author = "The Equipoise authors"
copyright = author
version = release = equipoise.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["README.md", "**/_*.md", "_build"]
nitpicky = False  # type names of third-party packages have no target here
suppress_warnings = ["myst.duplicate_def"]  # the marks of reproduction.md

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4  # the anchors that GitHub gives headings
myst_fence_as_directive = []
myst_links_external_new_tab = False
myst_number_code_blocks = []

smartquotes = False  # -- is an option, not a dash
default_role = "code"  # `name` in a docstring is code
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_display_short_literal_types = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "Equipoise"
html_static_path = ["static"]
html_favicon = "static/favicon.svg"
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "Equipoise"},
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: object) -> None:
    """Writes the generated pages before Sphinx reads the folder, and turns docstrings into reStructuredText."""
    generate.write_pages(DOCS)
    app.connect("autodoc-process-docstring", generate.plain_docstring)  # type: ignore[attr-defined]
    app.connect("autodoc-process-signature", generate.plain_signature)  # type: ignore[attr-defined]
