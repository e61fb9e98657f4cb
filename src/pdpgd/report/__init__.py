"""Results for people: a page that opens from disk, tables and figures. Made from what runs have kept; runs nothing."""
