"""Decides placement: on which host of a pool each container of a request runs."""
