"""`python -m millrace`, where the command is not on the path."""

from millrace.cli import main

main()
