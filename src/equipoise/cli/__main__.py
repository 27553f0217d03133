"""`python -m equipoise.cli` is `equipoise`."""

from equipoise.cli.app import main

main()
