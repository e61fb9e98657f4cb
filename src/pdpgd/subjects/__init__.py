"""What an attack is pointed at: models and data."""
