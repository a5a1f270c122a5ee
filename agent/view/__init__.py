"""The running agent as others may read it: the board that the loop writes, and the view on it."""
