"""Oversubscription maths: how VMs use their cores, how likely machines run hot, and rates that stay safe."""
