"""The console command: parse, call, print. Heavy imports wait until a sub-command needs them."""

from __future__ import annotations

import argparse
import sys

from pdpgd.errors import PdpgdError
from pdpgd.extras import need


def main(arguments: list[str] | None = None) -> int:
    from pdpgd.cli import accuracy, data, demo, models, train

    parser = argparse.ArgumentParser(prog="pdpgd", description="How little must change before a classifier is wrong?")
    commands = parser.add_subparsers(title="commands", required=True)
    for command in (demo, accuracy, models, data, train):
        command.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        need("rich", extra="cli", purpose="the command")
        return int(options.run(options))
    except PdpgdError as error:
        print(f"pdpgd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pdpgd: stopped", file=sys.stderr)
        return 130
