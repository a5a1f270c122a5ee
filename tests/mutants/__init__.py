"""Hand-made mutants of what must not break: a list, and a program that runs it."""
