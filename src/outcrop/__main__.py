"""``python -m outcrop``."""

from outcrop.cli.start import run

if __name__ == "__main__":
    run()
