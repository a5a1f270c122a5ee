"""Decision maths as pure leaf functions on scalars and 1-D arrays: the agent calls them, the trainer compiles them."""
