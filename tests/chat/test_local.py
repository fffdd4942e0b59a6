import io
from pathlib import Path

import pytest
import torch
from chat_demo import IMAGES, KNOWLEDGE, MODEL, eval_row, question_of
from PIL import Image

from open_r1_kivqa.chat.conversation import Conversation
from open_r1_kivqa.chat.local import LocalModel, TextStream
from open_r1_kivqa.chat.passages import passages_of_keys
from open_r1_kivqa.chat.reply import CUT, DONE, STOPPED, Sampling, ask
from open_r1_kivqa.chat.show import Screen
from open_r1_kivqa.errors import InputError
from open_r1_kivqa.evaluation.generate import greedy
from open_r1_kivqa.knowledge.base import KnowledgeBase
from open_r1_kivqa.prompts import load_template

GREEDY = {"temperature": 0.0, "top_p": 0.95, "max_new_tokens": 48}


def chat_model(path=MODEL, **sampling) -> LocalModel:
    return LocalModel(path, Sampling(**{**GREEDY, **sampling}))


@pytest.fixture(scope="module")
def demo():
    return chat_model()


@pytest.fixture(scope="module")
def prompts():
    """Of the first embedded questions, with their passages."""
    knowledge = KnowledgeBase.open(KNOWLEDGE)
    made = []
    for number in range(4):
        conversation = Conversation(load_template("factbook"))
        conversation.add_image(str(IMAGES / eval_row(number)["image"]))
        conversation.passages = passages_of_keys(knowledge, ",".join(eval_row(number)["candidates"]))
        made.append(conversation.prompt(question_of(eval_row(number))))
    return made


def test_temperature_0_answers_as_evaluation_does(demo, prompts):
    replies = []
    for prompt in prompts:
        pieces = []
        completion = demo.complete(prompt, pieces.append)
        assert "".join(pieces) == completion.text and len(pieces) > 5  # it came in pieces
        assert completion.end == DONE and completion.tokens > 5
        replies.append(completion.text)
    assert replies == greedy(demo.model, demo.processor, prompts, max_new_tokens=48, batch_size=1)
    assert len(set(replies)) == 4 and all("</answer>" in reply for reply in replies)


def test_random_weights_answer_as_evaluation_does_and_are_cut(tiny_model):
    model = chat_model(tiny_model("internvl"), max_new_tokens=9)
    prompt = Conversation(load_template("default")).prompt("Which river?")
    completion = model.complete(prompt, lambda text: None)
    assert [completion.text] == greedy(model.model, model.processor, [prompt], max_new_tokens=9, batch_size=1)
    assert (completion.tokens, completion.end) == (9, CUT)


def test_a_seed_gives_the_same_replies_again(prompts, tiny_model):
    def replies(seed):
        model = chat_model(tiny_model("qwen2_5_vl"), temperature=1.5, top_p=0.9, max_new_tokens=8, seed=seed)
        model.load()
        return [model.complete(prompts[0], lambda text: None).text for _ in range(3)]

    first = replies(7)
    assert first == replies(7) != replies(8)
    assert len(set(first)) > 1


def test_sampling_draws_from_all_tokens_but_the_images(demo):
    demo.load()
    sampled = LocalModel(MODEL, Sampling(0.7, 0.9, 5))
    sampled.model = demo.model
    config = sampled._config(5)
    assert (config.do_sample, config.temperature, config.top_p, config.top_k) == (True, 0.7, 0.9, 0)
    assert demo.model.config.image_token_id in config.suppress_tokens


def test_ctrl_c_ends_a_reply_with_what_is_there(demo, prompts):
    whole = demo.complete(prompts[0], lambda text: None)
    given = []

    def interrupt(text):
        given.append(text)
        if len(given) == 4:
            raise KeyboardInterrupt

    stopped = demo.complete(prompts[0], interrupt)
    assert stopped.end == STOPPED
    assert 0 < len(stopped.text) < len(whole.text) and whole.text.startswith(stopped.text)
    assert demo.complete(prompts[0], lambda text: None).text == whole.text  # the model is as it was


def test_a_prompt_too_long_is_refused_before_the_model_loads():
    model = chat_model()
    with pytest.raises(InputError, match=r"has [\d,]+ tokens, and the model takes 2,048"):
        model.complete(Conversation(load_template("default")).prompt("word " * 3000), print)
    assert model.model is None


def test_a_picture_whose_shape_the_processor_refuses(demo, tmp_path):
    Image.new("RGB", (4000, 10)).save(tmp_path / "long.png")
    conversation = Conversation(load_template("default"))
    conversation.add_image(str(tmp_path / "long.png"))
    with pytest.raises(InputError, match="long"):
        demo.complete(conversation.prompt("What?"), print)


def test_no_more_tokens_are_asked_for_than_the_context_has_left(demo):
    model = chat_model(max_new_tokens=5000)
    model.model = demo.model

    def prompt(words):
        return Conversation(load_template("default")).prompt("a " * words)

    def length(words):
        return model._inputs(prompt(words))["input_ids"].shape[1]

    words = 1000 + 2043 - length(1000)
    assert length(words) == 2043  # of 2048
    completion = model.complete(prompt(words), lambda text: None)
    assert 0 < completion.tokens <= 5


def test_a_template_that_opens_the_thinking(demo, tiny_model):
    prompt = Conversation(load_template("default")).prompt("Which river?")
    assert not demo.opens_thinking(prompt)
    model = chat_model(tiny_model("qwen2_5_vl"), max_new_tokens=3)
    model.processor.chat_template = model.processor.chat_template.replace("assistant\\n", "assistant\\n<think>\\n")
    assert model.opens_thinking(prompt)
    out = io.StringIO()
    reply = ask(model, prompt, Screen(out))
    assert out.getvalue().startswith("[thinking]") and reply.thinking


def test_text_comes_in_whole_characters(demo):
    tokenizer = demo.processor.tokenizer
    text = "é 漢字 👩‍🚀 a\n\n b�"
    ids = tokenizer.encode(text, add_special_tokens=False)
    given = []
    stream = TextStream(tokenizer, given.append)
    stream.put(torch.tensor([[1, 2, 3]]))  # the prompt
    for id in ids:
        stream.put(torch.tensor([id]))
    assert stream.finish() == text == "".join(given)
    assert not any("�" in piece for piece in given[:-1]) and len(given) > 8


def test_bytes_that_are_no_character_are_given_as_they_are_decoded(demo):
    tokenizer = demo.processor.tokenizer
    half = tokenizer.encode("é", add_special_tokens=False)[:1]
    after = tokenizer.encode(" Paris is", add_special_tokens=False)
    given = []
    stream = TextStream(tokenizer, given.append)
    for ids in ([0], half, half, after):
        for id in ids:
            stream.put(torch.tensor([id]))
    assert stream.finish() == "".join(given) == tokenizer.decode(half + half + after)


def test_an_adapter_is_merged(tiny_model, prompts, tmp_path):
    from peft import LoraConfig, get_peft_model

    from open_r1_kivqa.vlm_modules.loading import load_model

    folder = tiny_model("qwen2_5_vl")
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    get_peft_model(load_model(folder), config).save_pretrained(tmp_path)
    plain = chat_model(folder, max_new_tokens=8).complete(prompts[0], lambda text: None).text
    model = LocalModel(folder, Sampling(**{**GREEDY, "max_new_tokens": 8}), adapter=str(tmp_path))
    adapted = model.complete(prompts[0], lambda text: None).text
    assert adapted != plain
    assert [adapted] == greedy(model.model, model.processor, prompts[:1], max_new_tokens=8, batch_size=1)
    with pytest.raises(InputError, match="has no adapter_config.json"):
        LocalModel(folder, Sampling(**GREEDY), adapter=str(Path(folder)))
