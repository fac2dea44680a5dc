"""`python -m macl`: the command line, also where its script is not on the path."""

from macl.cli import main

if __name__ == "__main__":
    main()
