"""What the installed `macl` script does; a file, so that data parallelism can start it again."""

from macl.cli import main

if __name__ == "__main__":
    main()
