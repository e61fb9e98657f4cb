"""The console command. Libraries are imported only by the sub-command that needs them, so that `--help` is instant."""

from __future__ import annotations

import argparse
import sys

from pdpgd.errors import EngineError, PdpgdError, StorageError, UnfinishedError, need

# Exit code of a run that is not finished and resumes when the same command is run again.
UNFINISHED = 4


class _CommandsFormatter(argparse.HelpFormatter):
    """Leaves room for the indentation of commands, which argparse does not count."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        if isinstance(action, argparse._SubParsersAction):
            self._action_max_length += self._indent_increment


def main(arguments: list[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and return its exit code."""
    from pdpgd.cli import accuracy, compare, evaluate, experiment, listings, report, train

    parser = argparse.ArgumentParser(
        prog="pdpgd",
        description="Measure how small a perturbation suffices to fool a classifier.",
        epilog="pdpgd COMMAND --help describes a command.",
        formatter_class=_CommandsFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (evaluate, compare, experiment, report, accuracy, listings, train):
        module.add_to(commands)
    options = parser.parse_args(arguments)
    try:
        need("rich", extra="cli", purpose="the command")
        return int(options.run(options))
    except PdpgdError as error:
        print(f"pdpgd: {error}", file=sys.stderr)
        return UNFINISHED if isinstance(error, UnfinishedError | StorageError | EngineError) else 2
    except SystemExit as stop:
        # The parser's own exits happen before: this one comes from a model, an attack or a library.
        print(
            f"pdpgd: expected a result, got an exit with {stop.code!r} from code that the command called: "
            "remove the call of sys.exit",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt as stop:
        print(f"pdpgd: {stop or 'stopped'}", file=sys.stderr)
        return 130
