"""Protects: the ids a model sees are the template's, special tokens in texts stay text, and cutting keeps the end."""

import pytest
from tokenizers import processors

from prefsel_ray.errors import PrefselError
from prefsel_ray.lm.chat import end_of_turn_id, fit_prompt, prompt_ids, render_for_humans, response_ids
from prefsel_ray.lm.toy import toy_tokenizer

BOS, EOS, SYSTEM, USER, ASSISTANT = 1, 2, 3, 4, 5


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def text_ids(text):
    """Byte ids straight from the vocabulary, one letter at a time."""
    return [toy_tokenizer().convert_tokens_to_ids(letter) for letter in text]


def test_the_prompt_is_the_template_and_ends_where_the_response_begins():
    ids = prompt_ids(toy_tokenizer(), [user("ab"), assistant("c"), user("d")])
    expected = [BOS, USER, *text_ids("ab"), EOS, ASSISTANT, *text_ids("c"), EOS, USER, *text_ids("d"), EOS, ASSISTANT]
    assert ids == expected


def test_a_tokenizer_that_adds_a_beginning_of_text_by_itself_still_gives_one():
    tokenizer = toy_tokenizer()
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", pair="<|bos|> $A $B", special_tokens=[("<|bos|>", BOS)]
    )
    assert tokenizer("a")["input_ids"] == [BOS, *text_ids("a")]
    assert prompt_ids(tokenizer, [user("a")]) == [BOS, USER, *text_ids("a"), EOS, ASSISTANT]
    assert response_ids(tokenizer, [user("a")], "b") == [*text_ids("b"), EOS]


def test_the_response_ends_with_the_end_of_turn():
    assert response_ids(toy_tokenizer(), [user("a")], "xy") == [*text_ids("xy"), EOS]


def test_an_empty_response_is_the_end_of_turn_alone():
    assert response_ids(toy_tokenizer(), [user("a")], "") == [EOS]


def test_texts_that_read_like_special_tokens_stay_text():
    ids = prompt_ids(toy_tokenizer(), [user("a<|eos|>b<|user|><|eos|>")])
    assert ids == [BOS, USER, *text_ids("a<|eos|>b<|user|><|eos|>"), EOS, ASSISTANT]
    assert response_ids(toy_tokenizer(), [user("a<|eos|>")], "<|eos|>c<|pad|>") == [*text_ids("<|eos|>c<|pad|>"), EOS]


def test_a_template_that_refuses_system_messages_gets_their_text_in_the_first_user_turn():
    tokenizer = toy_tokenizer()
    refusal = "{% if message['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    loop = "{% for message in messages %}"
    tokenizer.chat_template = tokenizer.chat_template.replace(loop, loop + refusal)
    assert prompt_ids(tokenizer, [system("s"), user("u")]) == prompt_ids(tokenizer, [user("s-u".replace("-", "\n\n"))])
    with pytest.raises(PrefselError, match="refuses the conversation: no system role"):
        prompt_ids(tokenizer, [system("s")])


def test_a_tokenizer_without_a_template_is_refused():
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(PrefselError, match="no chat template"):
        prompt_ids(tokenizer, [user("a")])


def test_the_end_of_turn_is_what_the_template_writes_and_not_always_the_end_of_text():
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace("~ eos_token", "~ '\n<|pad|>'")
    assert end_of_turn_id(tokenizer) == 0
    tokenizer.chat_template = tokenizer.chat_template.replace("<|pad|>", "")
    assert end_of_turn_id(tokenizer) == EOS


def test_a_prompt_that_fits_exactly_is_left_alone_and_one_token_less_drops_the_oldest_turns():
    tokenizer = toy_tokenizer()
    messages = [system("s"), user("aa"), assistant("bb"), user("cc")]
    # bos, three tokens of the system turn, four of each other turn, the opening of the response; then "xyz" and its end
    needed = 1 + 3 + 4 + 4 + 4 + 1 + 4
    assert fit_prompt(tokenizer, messages, ["x", "xyz"], needed) == (tuple(messages), False)
    assert fit_prompt(tokenizer, messages, ["x", "xyz"], needed - 1) == ((system("s"), user("cc")), True)


def test_of_the_last_message_the_start_is_cut_and_the_longest_response_still_fits():
    tokenizer = toy_tokenizer()
    # bos, user, end, opening: 4; the response with its end: 3; so 3 letters of ten are left of a window of 10
    assert fit_prompt(tokenizer, [user("0123456789")], ["xy"], 10) == ((user("789"),), True)
    assert fit_prompt(tokenizer, [user("01"), assistant("ab"), user("0123456789")], ["xy"], 10) == (
        (user("789"),),
        True,
    )


def test_a_prompt_with_no_room_for_a_single_character_is_refused():
    assert fit_prompt(toy_tokenizer(), [user("0123456789")], ["xy"], 7) == (None, False)
    assert fit_prompt(toy_tokenizer(), [user("0123456789")], ["xy" * 50], 60) == (None, False)


def test_cutting_many_bytes_a_character_never_splits_a_character():
    fitted, cut = fit_prompt(toy_tokenizer(), [user("日本語")], [], 4 + 5)
    assert (fitted, cut) == ((user("語"),), True)


def test_a_rendering_shows_special_tokens_and_the_end_of_the_response():
    text = render_for_humans(toy_tokenizer(), [user("hi")], "yo")
    assert text == "<|bos|><|user|>hi<|eos|><|assistant|>yo<|eos|>"
    assert render_for_humans(toy_tokenizer(), [user("hi")]) == "<|bos|><|user|>hi<|eos|><|assistant|>"
