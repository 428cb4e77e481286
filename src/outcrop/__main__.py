"""``python -m outcrop``."""

from outcrop.cli.main import run

if __name__ == "__main__":
    run()
