"""The attacks of the paper, PDGD and PDPGD, behind one call shape."""
