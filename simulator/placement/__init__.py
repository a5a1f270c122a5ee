"""Simulates placement: on which machine a request runs."""
