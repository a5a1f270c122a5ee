"""Policies: adapters that give domain rules and learned models one shape, and the fallback order among them."""
