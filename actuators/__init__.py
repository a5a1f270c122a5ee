"""Actuators: the code that changes, or reads in order to change, the managed fleet."""
