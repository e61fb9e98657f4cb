"""Run the command line as `python -m pdpgd`."""

from pdpgd.cli import main

raise SystemExit(main())
