"""`python -m packager`."""

from packager.cli import main

main()
