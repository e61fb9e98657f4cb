"""Training: plain, adversarial, and with the paper's own attack inside."""
