"""URLs that an engine would fetch for a client."""

import pytest

from sparkfleet.gateway.request.media import host_of, media_urls, refused_url
from sparkfleet.gateway.request.requirements import needs_of

DATA = "data:image/png;base64,AAAA"
JPEG = "/9j/4AAQSkZJRgABAQ"


@pytest.mark.parametrize(
    ("part", "urls"),
    [
        ({"type": "image_url", "image_url": {"url": "http://10.0.0.1/admin"}}, ["http://10.0.0.1/admin"]),
        ({"type": "image_url", "image_url": "HTTPS://a/x"}, ["HTTPS://a/x"]),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, ["file:///etc/passwd"]),
        ({"type": "image_url", "image_url": {"url": "/etc/passwd"}}, ["/etc/passwd"]),
        ({"image_url": "http://a/x"}, ["http://a/x"]),
        ({"type": "video_url", "video_url": {"url": "ftp://a/x"}}, ["ftp://a/x"]),
        ({"type": "input_image", "image_url": "http://a/x"}, ["http://a/x"]),
        ({"type": "input_file", "file_url": "http://a/x.pdf"}, ["http://a/x.pdf"]),
        ({"type": "image", "source": {"type": "url", "url": "http://a/x"}}, ["http://a/x"]),
        ({"type": "document", "source": {"type": "url", "url": "http://a/x.pdf"}}, ["http://a/x.pdf"]),
        ({"type": "image", "image": "http://a/x"}, ["http://a/x"]),
        ({"type": "image", "image": "/srv/secret.png"}, ["/srv/secret.png"]),
        ({"type": "image", "image": ["http://a/x", DATA]}, ["http://a/x"]),
        ({"type": "image_url", "image_url": {"url": DATA}}, []),
        ({"type": "image_url", "image_url": {"url": DATA.upper()}}, []),
        ({"type": "image", "image": JPEG}, []),
        ({"type": "image", "source": {"type": "base64", "data": JPEG}}, []),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, []),
        ({"type": "search_result", "source": "https://example.org/page"}, []),
        ({"type": "text", "text": "see http://a/x"}, []),
        ({"role": "assistant", "audio": {"id": "a1"}}, []),
    ],
)
def test_what_names_media_outside_the_request(part, urls):
    assert list(media_urls(part)) == urls


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Images.Example.org:8443/x", "images.example.org"),
        ("http://[::1]/x", "::1"),
        ("file://images.example.org/x", ""),
        ("http://images.example.org\\@10.0.0.1/", ""),
        ("http://images.example.org@10.0.0.1/", ""),
        ("http://images.example.org\t.evil/", ""),
        ("http://[::1/x", ""),
        ("/etc/passwd", ""),
    ],
)
def test_a_url_that_can_be_read_in_two_ways_has_no_host(url, host):
    assert host_of(url) == host


def test_only_listed_hosts_are_fetched_from():
    allowed = ("a.example",)
    assert refused_url(("http://a.example/x", "https://A.EXAMPLE/y"), allowed) == ""
    assert refused_url(("http://a.example/x", "http://b.a.example/y"), allowed) == "http://b.a.example/y"
    assert refused_url(("file:///a.example",), allowed) == "file:///a.example"
    assert refused_url(("http://a.example/",), ()) == "http://a.example/"


def test_a_url_behind_very_many_parts_is_found():
    many = [{"type": "text", "text": "x"}] * 30_000
    body = {
        "messages": [{"role": "user", "content": [*many, {"type": "image_url", "image_url": "http://a/"}]}]
    }
    assert needs_of(body).media == ("http://a/",)


URL = "http://10.0.0.1/admin"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
OF_ANTHROPIC = {"type": "image", "source": {"type": "url", "url": URL}}


@pytest.mark.parametrize(
    "body",
    [
        {"query": "q", "documents": [{"content": [IMAGE]}]},
        {"query": {"content": [IMAGE]}, "documents": ["d"]},
        {"query": "q", "documents": [{"text": "d", "image": URL}]},
        {"text_1": {"content": [IMAGE]}, "text_2": ["x"]},
        {"data_1": "x", "data_2": [{"content": [IMAGE]}]},
        {"queries": [{"content": [IMAGE]}], "items": ["x"]},
        {"items": [[IMAGE]]},
        {"data": {"data": URL, "data_format": "url", "indices": [1]}},
        {"data": {"data": URL, "data_format": "path"}},
        {"input": [{"text": "x", "image": URL}]},
        {"input": [{"type": "function_call_output", "output": [{"type": "input_image", "image_url": URL}]}]},
        {"messages": [{"content": [{"type": "tool_result", "content": [OF_ANTHROPIC]}]}]},
        {"messages": [{"content": [{"type": "document", "source": {"content": [OF_ANTHROPIC]}}]}]},
        {"messages": [{"content": [{"type": "input_audio", "input_audio": {"data": URL, "format": "wav"}}]}]},
        {"messages": [{"content": [{"type": "file", "file": {"filename": "a", "file_data": URL}}]}]},
        {"messages": [{"content": [{"type": "file", "file": {"file_url": URL}}]}]},
        {"messages": [{"content": [{"type": "image", "image": [{"path": URL}]}]}]},
    ],
)
def test_a_url_hidden_anywhere_in_a_request_is_found(body):
    assert needs_of(body).media == (URL,)


@pytest.mark.parametrize(
    "body",
    [
        {"query": "see http://a/x.png", "documents": ["http://b/y.png"]},
        {"text_1": "http://a/x", "text_2": ["file:///etc/passwd"]},
        {"messages": [{"content": [{"type": "file", "file": {"filename": "http.pdf", "file_data": DATA}}]}]},
        {
            "messages": [
                {"content": [{"type": "input_audio", "input_audio": {"data": JPEG, "format": "mp3"}}]}
            ]
        },
        {"messages": [{"content": [{"type": "document", "source": {"type": "text", "data": "http://a/x"}}]}]},
        {"messages": [{"content": [{"type": "search_result", "source": "https://a/x", "content": []}]}]},
        {"messages": [{"content": [{"type": "tool_use", "input": {"image_url": URL, "image": URL}}]}]},
        {"data": {"data": "aGk=", "data_format": "b64_json"}},
    ],
)
def test_words_names_and_the_data_of_tools_are_no_media(body):
    assert needs_of(body).media == ()
