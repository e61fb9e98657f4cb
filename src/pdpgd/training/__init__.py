"""Training: plain, adversarial, and with PDPGD as the inner attack."""
