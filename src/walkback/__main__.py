"""`python -m walkback`."""

from walkback.cli import main

main()
