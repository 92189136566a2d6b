"""`python -m buffer` is `opendata-buffer`."""

from buffer.cli import main

if __name__ == "__main__":
    main()
