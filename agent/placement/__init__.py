"""Decides placement: on which machine a request runs; not built yet."""
