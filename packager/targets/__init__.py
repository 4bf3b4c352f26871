"""One module per artifact kind: how it is made from an opened model."""
