"""`wal completion bash|zsh|fish`: prints a script with which a shell completes the commands of `wal` and their flags.

The script is generated from the parser of the command line and has all words, so completing starts no process and opens no log. Where a
command takes a file or a directory, the shell completes those.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from wal.operate.cli.commands import COMMANDS, EXIT_STATUS

_DESCRIPTION: Final = """\
Prints a script with which a shell completes commands and flags:

  bash   source <(wal completion bash)      in ~/.bashrc
  zsh    source <(wal completion zsh)       in ~/.zshrc, after compinit
  fish   wal completion fish | source       in ~/.config/fish/config.fish"""


class Completions(NamedTuple):
    """The possible words after a command: its subcommands and its flags, each with its help in one line."""

    commands: Mapping[str, str]
    flags: Mapping[str, str]


def fill_completion(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `wal completion`."""
    parser.description, parser.epilog = _DESCRIPTION, EXIT_STATUS
    parser.add_argument("shell", choices=tuple(_SCRIPTS), help="the shell")
    parser.set_defaults(run=_run)


def completions(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Completions]]:
    """Yields the possible words after each command of a parser, by the words that name the command; `wal` itself has the empty tuple."""
    commands: dict[str, str] = {}
    flags: dict[str, str] = {}
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below = dict(action.choices)
            commands.update(dict.fromkeys(below, "") | {choice.dest: choice.help or "" for choice in action._choices_actions})
        elif action.help != argparse.SUPPRESS:
            text = " ".join((action.help or "").replace("%%", "%").split())
            flags.update(dict.fromkeys(action.option_strings, text))
            if not action.option_strings and action.choices is not None:
                commands.update(dict.fromkeys(map(str, action.choices), ""))
    yield path, Completions(commands, flags)
    for name, own in below.items():
        yield from completions(own, (*path, name))


def _run(arguments: argparse.Namespace) -> int:
    from wal.operate.cli.main import make_parser

    tree = dict(completions(make_parser(whole=True)))
    tree[()] = Completions({command.name: command.help for command in COMMANDS}, tree[()].flags)
    sys.stdout.write(_SCRIPTS[arguments.shell](tree))
    return 0


Tree = Mapping[tuple[str, ...], Completions]


def _bash(tree: Tree) -> str:
    return f"""\
_wal() {{
    local word command="" current="${{COMP_WORDS[COMP_CWORD]}}" words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
{_command_case(tree)}
    done
{_words_case(tree, "words")}
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o bashdefault -o default -F _wal wal
"""


def _zsh(tree: Tree) -> str:
    return f"""\
#compdef wal
_wal() {{
    local word command="" candidates=""
    for word in "${{(@)words[2,CURRENT-1]}}"; do
{_command_case(tree)}
    done
{_words_case(tree, "candidates")}
    compadd -- ${{=candidates}}
    [[ $PREFIX == -* ]] || _files
}}
compdef _wal wal
"""


def _command_case(tree: Tree) -> str:
    """Returns the lines, for bash and zsh, that determine the command from the words before the cursor."""
    lines = [f'            "{" ".join(path[:-1])}|{path[-1]}") command="{" ".join(path)}" ;;' for path in tree if path]
    return "\n".join(['        case "$command|$word" in', *lines, "        esac"])


def _words_case(tree: Tree, name: str) -> str:
    """Returns the lines, for bash and zsh, that set a variable to the possible words after the command."""
    lines = [f'        "{" ".join(path)}") {name}="{" ".join([*each.commands, *each.flags])}" ;;' for path, each in tree.items()]
    return "\n".join(['    case "$command" in', *lines, "    esac"])


def _fish(tree: Tree) -> str:
    lines = []
    for path, each in tree.items():
        condition = "; and ".join(f"__fish_seen_subcommand_from {name}" for name in path) or "__fish_use_subcommand"
        if path and each.commands:
            missing = f"{condition}; and not __fish_seen_subcommand_from {' '.join(each.commands)}"
        else:
            missing = condition
        lines += [f"complete -c wal -n '{missing}' -a {name}{_fish_help(text)}" for name, text in each.commands.items()]
        for flag, text in each.flags.items():
            option = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            lines.append(f"complete -c wal -n '{condition}' {option}{_fish_help(text)}")
    return "\n".join(lines) + "\n"


def _fish_help(text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f" -d '{quoted}'" if text else ""


_SCRIPTS: Final[Mapping[str, Callable[[Tree], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
