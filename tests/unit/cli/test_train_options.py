"""The help of `pdpgd train` states the defaults of the settings, which TrainingConfig defines."""

from __future__ import annotations

import argparse
from dataclasses import fields

from pdpgd.cli import train
from pdpgd.training.config import TrainingConfig


def test_the_help_of_every_setting_ends_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    train.add_to(parser.add_subparsers())
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    helps = {action.dest: action.help or "" for action in commands.choices["train"]._actions}
    defaults = TrainingConfig()
    for setting in fields(TrainingConfig):
        if setting.name != "threats":
            default = getattr(defaults, setting.name)
            shown = default if isinstance(default, str) else f"{default:g}"
            assert helps[setting.name].endswith(f"(default: {shown})"), setting.name
    assert "threat" in helps
