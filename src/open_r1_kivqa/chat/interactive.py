"""The session at the prompt line: questions, and commands that begin with a slash."""

import sys

from ..errors import InputError
from ..knowledge.base import KnowledgeBase, Passage
from .conversation import Conversation
from .passages import passages_of_entity, passages_of_keys
from .reply import CUT, STOPPED, Backend, Reply, ask
from .show import Screen, say

HELP = """\
/image PATH      show this picture with the next question
/passages KEYS   show these passages, article#section,..., with every question; without keys none
/entity KEY      show the sections of this article
/new             forget turns, pictures and passages
/help            this list
/quit            end, as Ctrl-D does
Ctrl-C stops an answer. A question that begins with / is written with a space before it."""

PROMPT = "> "


class Session:
    """A conversation with a model.

    Args:
        knowledge: None without passages.
        num_passages: most sections that an entity shows.
    """

    def __init__(
        self,
        conversation: Conversation,
        backend: Backend,
        screen: Screen,
        *,
        knowledge: KnowledgeBase | None,
        num_passages: int,
    ):
        self.conversation, self.backend, self.screen = conversation, backend, screen
        self._knowledge, self._num_passages = knowledge, num_passages

    def ask(self, question: str) -> Reply:
        """Asks, shows the reply, keeps both, and says what is special about the reply. InputError if the question cannot be asked; the conversation is then as before."""
        reply = ask(self.backend, self.conversation.prompt(question), self.screen)
        self.conversation.keep(question, reply.completion.text)
        if reply.completion.end == STOPPED:
            say("stopped")
        elif reply.completion.end == CUT:
            say("note: the reply is cut: --max_new_tokens or the model's context ends here")
        if reply.answer is None:
            say("note: the reply is empty")
        return reply

    def run(self) -> None:
        """Questions and commands, a line each, until Ctrl-D or /quit. What cannot be used is said, and the session goes on."""
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if at_terminal:
            import readline  # noqa: F401  gives `input` line editing and a history
        sys.stdin.reconfigure(errors="replace")
        while True:
            if sys.stdin.isatty() and not at_terminal:  # output goes to a file
                print(PROMPT, end="", file=sys.stderr, flush=True)
            try:
                line = input(PROMPT if at_terminal else "")
            except EOFError:
                if at_terminal:
                    say("")
                return
            except KeyboardInterrupt:
                say("")
                continue
            try:
                if line.startswith("/"):
                    if not self.command(line):
                        return
                elif line.strip():
                    self.ask(line.strip())
            except InputError as error:
                say(str(error))
            except KeyboardInterrupt:  # before the reply began
                say("stopped")

    def command(self, line: str) -> bool:
        """Does what the line says; False for /quit. InputError for what is no command, or lacks its word."""
        name, _, word = line.strip().partition(" ")
        word = word.strip()
        if name in ("/image", "/entity") and not word:
            raise InputError(
                f"{name} wants {'the path of a picture' if name == '/image' else 'the key of an article'}."
            )
        if name == "/image":
            if (
                word[:1] in "\"'" and word.endswith(word[0]) and len(word) > 2
            ):  # as a terminal writes a file that is dropped on it
                word = word[1:-1]
            width, height = self.conversation.add_image(word)
            say(f"picture of {width} x {height} pixels for the next question")
        elif name == "/passages":
            self.show(passages_of_keys(self._known(), word) if word else [])
        elif name == "/entity":
            self.show(passages_of_entity(self._known(), word, self._num_passages))
        elif name == "/new":
            self.conversation.new()
            say("forgotten: turns, pictures, passages")
        elif name == "/help":
            say(HELP)
        elif name == "/quit":
            return False
        else:
            raise InputError(f"{name} is no command; /help lists them.")
        return True

    def show(self, passages: list[Passage]) -> None:
        """Shows these passages with every question from now on."""
        self.conversation.passages = passages
        say("passages: " + (", ".join(passage.key for passage in passages) or "none"))

    def _known(self) -> KnowledgeBase:
        if self._knowledge is None:
            raise InputError("There are no passages to show without a knowledge base: give --knowledge_base.")
        return self._knowledge
