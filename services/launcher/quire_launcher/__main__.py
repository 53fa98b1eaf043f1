"""`python -m quire_launcher` is `quire`."""

from quire_launcher.main import main

main()
