"""`kivqa <command> …`: finds the command's module and hands over. Nothing heavy is imported before a command needs it.

Training and evaluation are no commands: torchrun starts their files (grpo_jsonl.py, sft_jsonl.py, evaluate_jsonl.py).
"""

import importlib
import sys

from .errors import InputError

# command: (module, function taking the remaining arguments and giving the exit code, what --help says)
COMMANDS = {
    "check": (".checks_cli", "main", "look through data, images and knowledge base before a training run"),
    "graph": (".curriculum.graph_cli", "main", "find out which training rows resemble each other, for the curriculum"),
    "convert": (".benchmarks.convert_cli", "main", "turn the files of a public benchmark into rows"),
    "index": (".retrieval.index_cli", "main", "embed the pictures of a knowledge base and make an index of them"),
    "retrieve": (".retrieval.retrieve_cli", "main", "find the passages that a row's picture and question lead to"),
    "score": (".benchmarks.score_cli", "main", "score predictions by the official rules of a public benchmark"),
    "bridge": (".cold_start.bridge_cli", "main", "make cold-start data with a multimodal model and a reasoning model"),
    "chat": (".chat.chat_cli", "main", "ask a model about pictures, at the terminal or from a script"),
    "merge-lora": (".merge_lora", "main", "merge a LoRA adapter into its base model, and check the result"),
    "diff": (".manifest", "diff_main", "say in what two runs differ: flags, data, model, versions"),
    "demo": (".demo.run", "main", "evaluate, train and evaluate again a tiny model on the embedded data"),
}


def usage() -> str:
    """The text of `kivqa --help`."""
    lines = [f"  {name:12}{help}" for name, (_, _, help) in COMMANDS.items()]
    return "\n".join(
        ["usage: kivqa <command> [flags]", "", *lines, "", "`kivqa <command> --help` lists a command's flags."]
    )


def main(argv: list[str] | None = None) -> int:
    """Runs one command; `argv` is what follows `kivqa`. Gives the exit code: 2 if something given cannot be used."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] in (["-h"], ["--help"]):
        print(usage())
        return 0
    if not argv or argv[0] not in COMMANDS:
        print(f"kivqa: {f'unknown command {argv[0]!r}' if argv else 'no command given'}\n\n{usage()}", file=sys.stderr)
        return 2
    module, function, _ = COMMANDS[argv[0]]
    try:
        return getattr(importlib.import_module(module, __package__), function)(argv[1:])
    except InputError as error:
        print(f"kivqa {argv[0]}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
