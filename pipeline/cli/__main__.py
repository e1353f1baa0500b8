"""`python -m pipeline.cli` is `sightline`."""

from pipeline.cli import console

if __name__ == "__main__":  # processes that are not forked import it again
    console()
