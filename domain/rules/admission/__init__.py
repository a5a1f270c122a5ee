"""Admission: the belief about a deployment, the forecast of its cores, and the rules of acceptance."""
