"""The rival attacks: our own ports, a file each, and one adapter file for each library that has others."""
