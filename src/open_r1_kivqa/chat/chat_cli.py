"""`kivqa chat`: asks a model about pictures, one question by --question, or without it a session at the prompt line.

Exit code 0; 2 if something given cannot be used; 130 if Ctrl-C stopped --question's answer, or the model while it loaded.
"""

import argparse
import contextlib
import sys

from ..errors import InputError
from ..flags import refuse_below, refuse_unfit_passages

STOPPED_BY_HAND = 130  # exit code, as shells have it for Ctrl-C
# Flags that act on one side only: with a model in this process, or with a server.
LOCAL = ("adapter", "model_revision", "dtype", "attn_implementation", "min_pixels", "max_pixels", "max_anyres_num")
REMOTE = ("api_key_env", "request")


def parser() -> argparse.ArgumentParser:
    """The command's flags; those of the prompt and the model have the names and meanings of training and evaluation."""
    flags = argparse.ArgumentParser(prog="kivqa chat", description=__doc__.partition("\n")[0], allow_abbrev=False)
    flags.add_argument(
        "--question", help="ask this and end; '-' reads it from stdin. Default: a session, /help lists its commands"
    )
    flags.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="PATH",
        help="picture of the (first) question; give it again for more",
    )
    flags.add_argument(
        "--json", action="store_true", help="print {thinking, answer, text, tokens, seconds} for each question"
    )
    model = flags.add_argument_group("model")
    model.add_argument(
        "--model",
        "--model_name_or_path",
        required=True,
        help="folder or hub name, or with --url the server's name for it",
    )
    model.add_argument("--adapter", "--adapter_name_or_path", help="folder of a LoRA adapter on top of the model")
    model.add_argument("--model_revision", help="branch, tag or commit on the hub (default: main)")
    model.add_argument(
        "--dtype", choices=("auto", "float32", "bfloat16", "float16"), help="of the weights (default: auto, as saved)"
    )
    model.add_argument("--attn_implementation", help="as transformers names it, for example flash_attention_2 or sdpa")
    model.add_argument("--min_pixels", type=int, help="smallest image area after resizing (Qwen)")
    model.add_argument("--max_pixels", type=int, help="largest image area after resizing (Qwen)")
    model.add_argument("--max_anyres_num", type=int, help="largest number of tiles (InternVL)")
    server = flags.add_argument_group("server")
    server.add_argument(
        "--url",
        "--backend",
        metavar="URL",
        help="base URL of an OpenAI-compatible server, as http://localhost:8000/v1 of vllm serve. Default: the model is loaded here, with transformers",
    )
    server.add_argument("--api_key_env", metavar="NAME", help="environment variable that holds the server's key")
    server.add_argument(
        "--request", metavar="JSON", help="more fields of each request, as '{\"top_k\": 20}'; null takes one out"
    )
    prompt = flags.add_argument_group("prompt")
    prompt.add_argument(
        "--task_type", help="prompt template or path of one (default: kivqa with a knowledge base, else default)"
    )
    prompt.add_argument("--system_prompt", help="in place of the template's; '' for none")
    prompt.add_argument("--knowledge_base", help="jsonl file of articles that passages come from")
    shown = prompt.add_mutually_exclusive_group()
    shown.add_argument("--passages", metavar="KEYS", help="passages to show, 'article#section', separated by ','")
    shown.add_argument("--entity", metavar="KEY", help="article whose sections are shown")
    prompt.add_argument(
        "--num_passages", type=int, default=5, help="most sections that --entity shows (default: %(default)s)"
    )
    prompt.add_argument(
        "--max_passage_tokens", type=int, help="cut each passage to so many tokens, as in training (not with --url)"
    )
    prompt.add_argument(
        "--passage_images",
        type=int,
        default=0,
        help="show the article's picture before each of the first so many passages (default: %(default)s)",
    )
    prompt.add_argument(
        "--image_folders",
        default="",
        help="where these pictures lie, separated by ':', beside the knowledge base's own folder",
    )
    draw = flags.add_argument_group("reply")
    draw.add_argument(
        "--temperature",
        type=float,
        default=0.6,
        help="0: the most likely tokens, as evaluation answers (default: %(default)s)",
    )
    draw.add_argument("--top_p", type=float, default=0.95, help="acts above temperature 0 (default: %(default)s)")
    draw.add_argument("--max_new_tokens", type=int, default=1024, help="longest reply (default: %(default)s)")
    draw.add_argument("--seed", type=int, help="for the same replies again (default: other ones each time)")
    return flags


def main(argv: list[str]) -> int:
    """Asks, and gives the exit code. Raises InputError for what cannot be used: all that can be seen without the model before it loads."""
    flags = parser().parse_args(argv)
    refuse(flags)
    # Imported here: these take seconds, and --help should not.
    from ..knowledge.base import KnowledgeBase
    from ..knowledge.budget import PassageBudget
    from ..knowledge.pictures import PassagePictures
    from ..prompts import load_template
    from .conversation import Conversation
    from .interactive import Session
    from .passages import passages_of_entity, passages_of_keys
    from .reply import STOPPED, Sampling
    from .show import say, screen_for

    sampling = Sampling(flags.temperature, flags.top_p, flags.max_new_tokens, flags.seed)
    template = load_template(flags.task_type or ("kivqa" if flags.knowledge_base else "default"))
    pictures = PassagePictures.of(flags.passage_images, flags.image_folders.split(":"))
    knowledge = KnowledgeBase.open(flags.knowledge_base) if flags.knowledge_base else None
    conversation = Conversation(
        template, system_prompt=flags.system_prompt, knowledge=knowledge, passage_pictures=pictures
    )
    for path in flags.image:
        conversation.add_image(path)
    if flags.passages is not None:
        conversation.passages = passages_of_keys(knowledge, flags.passages)
    if flags.entity is not None:
        conversation.passages = passages_of_entity(knowledge, flags.entity, flags.num_passages)
    question = sys.stdin.read().strip() if flags.question == "-" else flags.question
    if question is not None:
        conversation.prompt(question)

    sys.stdout.reconfigure(errors="replace")  # an output that has no such character gets "?"
    screen = screen_for(sys.stdout, as_json=flags.json)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # libraries greet on stdout, which belongs to the replies
            backend = backend_for(flags, sampling)
            if flags.max_passage_tokens is not None:
                conversation.budget = PassageBudget(backend.processor.tokenizer, flags.max_passage_tokens)
            session = Session(conversation, backend, screen, knowledge=knowledge, num_passages=flags.num_passages)
            if question is not None:
                return STOPPED_BY_HAND if session.ask(question).completion.end == STOPPED else 0
            backend.load()
    except KeyboardInterrupt:
        say("stopped")
        return STOPPED_BY_HAND
    say(f"{flags.model} answers. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends.")
    session.run()
    return 0


def refuse(flags: argparse.Namespace) -> None:
    """InputError for flags that cannot be used, or would have no effect."""
    if flags.url == "vllm":
        raise InputError("vLLM is used as a server: start `vllm serve MODEL` and give --url http://localhost:8000/v1.")
    if flags.url == "transformers":
        flags.url = None
    for name in LOCAL if flags.url else REMOTE:
        if getattr(flags, name) is not None:
            place = "with --url: the server decides it" if flags.url else "without --url"
            raise InputError(f"--{name} has no effect {place}. Leave it out.")
    for name in ("passages", "entity"):
        if getattr(flags, name) is not None and not flags.knowledge_base:
            raise InputError(f"--{name} needs the knowledge base that it is found in: add --knowledge_base.")
    if flags.max_passage_tokens is not None and flags.url:
        raise InputError("--max_passage_tokens needs the model's tokenizer, which a server doesn't show: leave it out.")
    refuse_unfit_passages(flags)
    if flags.image_folders and not flags.passage_images:
        raise InputError(
            "--image_folders says where --passage_images finds its pictures, and that is not given: add it, or leave both out."
        )
    if flags.knowledge_base and flags.question is not None and flags.passages is None and flags.entity is None:
        raise InputError("--knowledge_base shows nothing by itself: add --passages or --entity.")
    refuse_below(flags, 1, "num_passages")
    for name in ("question", "system_prompt", "passages", "entity"):
        if any(
            "\ud800" <= char <= "\udfff" for char in getattr(flags, name) or ""
        ):  # how Python gives undecodable bytes
            raise InputError(f"--{name} is no text in this terminal's encoding; write it in UTF-8.")


def backend_for(flags: argparse.Namespace, sampling):
    """What answers; InputError if the model or the server's address cannot be used."""
    if flags.url:
        from .server import Server

        return Server(flags.url, flags.model, sampling, key_env=flags.api_key_env, request=flags.request)
    from .local import LocalModel

    return LocalModel(
        flags.model,
        sampling,
        adapter=flags.adapter,
        dtype=flags.dtype or "auto",
        attn_implementation=flags.attn_implementation,
        revision=flags.model_revision or "main",
        min_pixels=flags.min_pixels,
        max_pixels=flags.max_pixels,
        max_anyres_num=flags.max_anyres_num,
    )
