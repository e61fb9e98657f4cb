"""Baseline attacks: one file per own port, and adapters to the attacks of other libraries.

Each class holds the settings of an attack, its paper preset, and how it spends a budget; `pdpgd.attacks.roster` has a
row for each.
"""
