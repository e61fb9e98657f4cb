"""The console command: parse, call, print. Heavy imports wait until a sub-command needs them."""

from __future__ import annotations

import argparse
import sys

from pdpgd.errors import EngineError, PdpgdError, StorageError, UnfinishedError, need

# The exit code of a run that was not finished, and goes on when it is started again.
UNFINISHED = 4


def main(arguments: list[str] | None = None) -> int:
    from pdpgd.cli import accuracy, compare, demo, evaluate, experiment, export, listings, report, train

    parser = argparse.ArgumentParser(prog="pdpgd", description="How little must change before a classifier is wrong?")
    commands = parser.add_subparsers(title="commands", required=True)
    for command in (demo, evaluate, compare, experiment, report, export, accuracy, listings, train):
        command.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        need("rich", extra="cli", purpose="the command")
        return int(options.run(options))
    except PdpgdError as error:
        print(f"pdpgd: {error}", file=sys.stderr)
        return UNFINISHED if isinstance(error, UnfinishedError | StorageError | EngineError) else 2
    except SystemExit as stop:
        # The parser's own exits came before: this one is from a model, an attack or a library.
        print(
            f"pdpgd: expected a result, got an exit with {stop.code!r} from code that the command called: "
            "take sys.exit out of it",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt as stop:
        print(f"pdpgd: {stop or 'stopped'}", file=sys.stderr)
        return 130
