"""A browser for tests of printing that takes no time: it writes a PDF with the page in it, from a web archive of one page, or fails."""

import sys
from pathlib import Path

PRINTS = f"""#!{sys.executable} -S
import email, sys, urllib.request
made = next(word.partition("=")[2] for word in sys.argv if word.startswith("--print-to-pdf="))
with open(urllib.request.url2pathname(sys.argv[-1].removeprefix("file://")), "rb") as archive:
    (page,) = email.message_from_binary_file(archive).get_payload()
with open(made, "wb") as pdf:
    pdf.write(b"%PDF-1.4 " + page.get_payload(decode=True).replace(b"\\r\\n", b"\\n"))
"""
FAILS = "#!/bin/sh\necho 'no display' >&2\nexit 3\n"


def browser_at(path: Path, script: str = PRINTS) -> Path:
    """The path of such a browser, which is written there."""
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path
