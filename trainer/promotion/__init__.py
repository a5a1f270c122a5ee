"""The gate before a policy is put in use: champion against challenger, the signed report, and the way back."""
