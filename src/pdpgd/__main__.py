from pdpgd.cli import main

raise SystemExit(main())
