"""Oversubscription: policies, how they are judged, and how the learned one is trained."""
