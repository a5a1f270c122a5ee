"""What the product does on fixed seeds, committed: a change of structure must leave every byte of it as it is."""
