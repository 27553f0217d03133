"""`python -m equipoise.cli` is `equipoise`."""

from equipoise.__main__ import start

start()
