"""`python -m flowerbed` is the command `flowerbed`."""

from flowerbed.cli import main

main()
