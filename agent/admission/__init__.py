"""Admission: which deployments a cluster may take without breaking its promise to those inside."""
