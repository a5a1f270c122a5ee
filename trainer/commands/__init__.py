"""The trainer's part of the command line: one verb per file."""
