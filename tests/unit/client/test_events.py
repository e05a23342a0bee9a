from oce.client.events import Event, read


def test_events_comments_and_an_unfinished_end():
    stream = [
        b": still here\n",
        b"\n",
        b"event: step\n",
        b"id: 7\n",
        b'data: {"step":\n',
        b'data:  "prepare"}\n',
        b"\n",
        b'data: {"a": 1}\r\n',
        b"\r\n",
        b"event: step\n",
        b"data: {",
    ]
    assert list(read(stream)) == [
        Event("step", {"step": "prepare"}, "7"),
        Event("message", {"a": 1}, "7"),
    ]
