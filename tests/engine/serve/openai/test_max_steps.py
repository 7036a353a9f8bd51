"""The limit of draft steps over HTTP: field, header, their precedence, and bad values."""

import pytest

HEADER = "X-Specdecode-Max-Steps"


def ask(server, headers=None, **fields):
    document = {"prompt": "Count from one to five.", "temperature": 0, "max_tokens": 24} | fields
    return server.post("/v1/completions", json=document, headers=headers)


def accepted(response):
    assert response.status_code == 200, response.text
    return response.json()["usage"]["specdecode"]["num_accepted_tokens_per_pos"]


def test_field_and_header_limit_the_accepted_positions_and_no_text_changes(drafting_server):
    free = ask(drafting_server)
    assert len(accepted(free)) == 3
    limited = {
        0: ask(drafting_server, speculation={"max_steps": 0}),
        1: ask(drafting_server, speculation={"max_steps": 1}),
        2: ask(drafting_server, {HEADER: "2"}),
    }
    for limit, response in limited.items():
        assert len(accepted(response)) == limit
        assert response.json()["choices"][0]["text"] == free.json()["choices"][0]["text"]


def test_the_field_has_precedence_over_the_header(drafting_server):
    response = ask(drafting_server, {HEADER: "1"}, speculation={"max_steps": 2})
    assert len(accepted(response)) == 2
    response = ask(drafting_server, {HEADER: "1"}, speculation={})
    assert len(accepted(response)) == 1


@pytest.mark.parametrize("text", ["-1", "two", "", "1e3", "9" * 500])
def test_a_bad_header_is_refused_by_name(drafting_server, text):
    response = ask(drafting_server, {HEADER: text})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == HEADER
    assert "0 or more" in error["message"]
    assert len(error["message"]) < 250


@pytest.mark.parametrize("value", [{"max_steps": -1}, {"max_steps": "2"}, {"steps": 2}, 3, True])
def test_a_bad_field_is_refused_by_name(drafting_server, value):
    response = ask(drafting_server, speculation=value)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("speculation")
