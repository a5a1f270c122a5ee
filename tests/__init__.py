"""Specifications that run."""
