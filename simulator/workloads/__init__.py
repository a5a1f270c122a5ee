"""Job traces: generators, readers of recorded logs, and a small recorded day that ships with the program."""
