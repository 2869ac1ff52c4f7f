"""`python -m softcue`, which is also what torchrun starts."""

from softcue.cli.app import main

if __name__ == "__main__":
    main()
