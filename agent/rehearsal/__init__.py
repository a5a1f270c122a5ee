"""The dry run: the real loop against a fake cloud with real input, told as a story."""
