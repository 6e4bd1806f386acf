"""Runs the `millrace` command as `python -m millrace`, for environments without the script on PATH."""

from millrace.cli import main

main()
