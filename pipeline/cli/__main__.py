"""`python -m pipeline.cli` is `sightline`."""

from pipeline.cli import console

console()
