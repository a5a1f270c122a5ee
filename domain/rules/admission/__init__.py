"""Admission maths: what a cluster believes about a deployment, how many cores it will hold, and who may come in."""
