"""Collectors: receivers, readers and samplers that produce samples."""
