"""From an attack's points to numbers that can be trusted: judged again, measured in every norm, kept on disk."""
