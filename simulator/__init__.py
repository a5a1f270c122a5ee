"""Worlds in which policies are trained and tried; knows no policy."""
