"""`python -m walkback`."""

from walkback.cli import main

if __name__ == "__main__":
    main()
