"""How decisions go out: everything that changes, or reads in order to change, the managed fleet."""
