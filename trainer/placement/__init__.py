"""Trains and evaluates placement: on which machine a request runs."""
