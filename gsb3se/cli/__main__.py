"""python -m gsb3se.cli: the command line without its script."""

from gsb3se.cli import main

if __name__ == "__main__":
    main(prog_name="gsb3se")
