"""The HTTP interface of the running agent: what it serves, to whom, and within which bounds."""
