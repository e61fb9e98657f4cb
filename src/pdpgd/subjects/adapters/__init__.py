"""Model zoos of other libraries, one file each; a library is imported when one of its models is asked for."""
