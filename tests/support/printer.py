"""A browser for tests of printing that takes no time: it writes a PDF with the page in it, or fails."""

from pathlib import Path

PRINTS = """#!/bin/sh
for word in "$@"; do
  case "$word" in --print-to-pdf=*) made="${word#--print-to-pdf=}";; file://*) page="${word#file://}";; esac
done
{ printf '%%PDF-1.4 '; cat "$page"; } > "$made"
"""
FAILS = "#!/bin/sh\necho 'no display' >&2\nexit 3\n"


def browser_at(path: Path, script: str = PRINTS) -> Path:
    """The path of such a browser, which is written there."""
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path
