"""The command `flowerbed`: parse, build a config, call one function, print.

Data goes to stdout, logs and errors to stderr. Exit codes: 0 good, 1 an error that is explained in
one line, 2 the command line was wrong. Nothing here imports torch before a worker needs it.
"""

from flowerbed.cli.main import main

__all__ = ["main"]
