"""POST /tokenize and /detokenize, GET /tokenizer_info, as vLLM's clients use them."""

import pytest

from specdecode_engine.serve import tokenization

TEXT = "größer naïve 北京 😀 the fox"
MESSAGES = [{"role": "user", "content": "the fox"}]


def test_a_text_becomes_the_ids_of_its_prompt_and_returns(server):
    answer = server.post("/tokenize", json={"prompt": TEXT, "model": "echo"}).json()
    assert answer["count"] == len(answer["tokens"]) > 5
    assert answer["token_strs"] is None
    assert answer["max_model_len"] == server.service.engine.context_length
    usage = server.post("/v1/completions", json={"prompt": TEXT, "max_tokens": 1}).json()["usage"]
    assert usage["prompt_tokens"] == answer["count"]
    text = server.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == TEXT


def test_a_conversation_becomes_the_ids_of_its_rendered_prompt(echo_server):
    body = {"messages": MESSAGES, "return_token_strs": True}
    answer = echo_server.post("/tokenize", json=body).json()
    chat = {"messages": MESSAGES, "max_tokens": 1}
    usage = echo_server.post("/v1/chat/completions", json=chat).json()["usage"]
    assert usage["prompt_tokens"] == answer["count"]
    assert "".join(answer["token_strs"]).startswith("<|turn|>user")
    assert len(answer["token_strs"]) == answer["count"]
    text = echo_server.post("/detokenize", json={"tokens": answer["tokens"]}).json()["prompt"]
    assert text == "<|turn|>user\nthe fox<|end|><|turn|>assistant\n"


def test_the_tokenizer_describes_itself_as_lm_eval_wants_it(echo_server):
    answer = echo_server.get("/tokenizer_info").json()
    assert answer["eos_token"] == "<|end|>"
    assert "add_generation_prompt" in answer["chat_template"]
    assert answer["tokenizer_class"]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("/tokenize", {}, "prompt", "required"),
        ("/tokenize", {"prompt": 5}, "prompt", "string"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content", "needs content"),
        ("/detokenize", {"tokens": [1, 320]}, "tokens", "0 to 319"),
        ("/detokenize", {"tokens": "abc"}, "tokens", "valid array"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]", "greater than or equal to 0"),
    ],
)
def test_what_is_not_valid_is_refused_by_name(echo_server, path, body, param, words):
    answer = echo_server.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})]
)
def test_another_model_is_not_found(echo_server, path, body):
    answer = echo_server.post(path, json=body | {"model": "gpt-4"})
    assert answer.status_code == 404


def test_texts_beyond_the_context_are_tokenized_up_to_a_limit(
    echo_server, monkeypatch: pytest.MonkeyPatch
):
    """A client cuts a long text by its ids, so that more than the context is accepted."""
    longer = "1" * 600  # a token each; the context has 512
    assert echo_server.post("/tokenize", json={"prompt": longer}).json()["count"] == 600
    monkeypatch.setattr(tokenization, "MIN_TOKENS_LIMIT", 520)
    for path, body in (
        ("/tokenize", {"prompt": longer}),
        ("/tokenize", {"messages": [{"role": "user", "content": longer}]}),
        ("/detokenize", {"tokens": [1] * 521}),
    ):
        answer = echo_server.post(path, json=body)
        assert answer.status_code == 400
        assert "520" in answer.json()["error"]["message"]
