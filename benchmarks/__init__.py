"""Every figure that Trimtab claims, as a program: `python -m benchmarks.NAME --json`."""
