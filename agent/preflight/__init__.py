"""The check before the first run: is everything there in the account and on this host? It changes nothing."""
