import pytest

from open_r1_kivqa.errors import InputError
from open_r1_kivqa.remote import check_url, key_named, read_request, request_fields


@pytest.mark.parametrize("url", ["http://localhost:8000/v1", "https://api.example.org/v1/", "http://[::1]:8000/v1"])
def test_base_urls(url):
    check_url("mllm_url", url)


@pytest.mark.parametrize(
    "url", ["", "localhost", "ftp://host/v1", "http://", "http://host:port/v1", "http://h/v1?key=1"]
)
def test_no_base_urls(url):
    with pytest.raises(InputError, match="--mllm_url"):
        check_url("mllm_url", url)


def test_a_key_that_is_none(monkeypatch):
    assert key_named("mllm_api_key_env", None) is None
    monkeypatch.setenv("A_KEY", "two words")
    with pytest.raises(InputError, match="A_KEY holds 9 characters that are no key"):
        key_named("mllm_api_key_env", "A_KEY")
    monkeypatch.setenv("A_KEY", " sk-1\n")
    assert key_named("mllm_api_key_env", "A_KEY") == "sk-1"


def test_request_fields():
    assert read_request("judge_request", '{"a": null}') == read_request("judge_request", {"a": None}) == {"a": None}
    assert read_request("judge_request", None) == {}
    assert request_fields("mllm_request", None, {"a": 1}) == {"a": 1}
    assert request_fields("mllm_request", '{"a": null, "b": {"c": 2}}', {"a": 1, "d": 3}) == {"b": {"c": 2}, "d": 3}


def test_a_password_is_not_repeated_and_the_keys_own_flag_named():
    for flag, key_flag in (("judge_url", "--judge_api_key_env"), ("url", "--api_key_env")):
        with pytest.raises(InputError, match=f"--{flag} has a password.* {key_flag}\\.$") as error:
            check_url(flag, "http://me:secret@host/v1")
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("field", ["model", "messages", "stream", "stream_options", "n"])
def test_fields_of_the_librarys_own_are_refused(field):
    with pytest.raises(InputError, match=f"--request sets '{field}'"):
        request_fields("request", {field: 1}, {})
