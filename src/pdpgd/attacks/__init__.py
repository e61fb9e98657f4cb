"""The attacks of this package: `auto`, the paper's PDGD and PDPGD, and PGD, all with the same call shape."""
