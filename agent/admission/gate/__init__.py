"""The gate before a vCPU quota: tagged groups that ask to come into a cluster."""
