"""How measurements come in: receivers, readers and samplers that turn the outside world into samples."""
