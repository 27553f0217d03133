"""`python -m equipoise.cli` is `equipoise`."""

from equipoise.cli import main

main()
