"""What a running `cake-master serve` of the demo model says of itself, held against what it answers: each request is one that
its description allows, and each answer has a status, a content type and JSON that it describes.

    python openapi_client.py http://127.0.0.1:8080 MODEL
"""

import json
import urllib.error
import urllib.request

import jsonschema_rs
from checks import PLACE, QUESTION, TOOL, check, run


class Server:
    """A server and its description."""

    def __init__(self, url):
        self.url = url
        with urllib.request.urlopen(f"{url}/openapi.json") as answer:
            self.described = json.load(answer)

    def holds(self, schema, value):
        errors = list(jsonschema_rs.validator_for({**schema, "components": self.described["components"]}).iter_errors(value))
        assert not errors, (value, errors[:3])

    def holds_stream(self, schema, events):
        """Each event is as it is described, and its data is of the schema of one that it may be: not of one that broke off."""
        of_data = [one["properties"]["data"] for one in schema["anyOf"]]
        of_json = {"anyOf": [data["contentSchema"] for data in of_data if "contentSchema" in data]}
        told = []
        for event in events:
            self.holds(schema, event)
            if {"const": event["data"]} not in of_data:
                told.append(json.loads(event["data"]))
                self.holds(of_json, told[-1])
        check_told(told)

    def refuses(self, method, path, body, **names):
        """Neither the description nor the server takes this body."""
        schema = self.described["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]
        try:
            self.holds(schema, body)
        except AssertionError:
            return self.ask(method, path, body, status=400, **names)
        raise AssertionError((path, body, "is described"))

    def ask(self, method, path, body=None, status=200, query="", **names):
        """The answer, of this status, to a request for a path with these names in it."""
        operation = self.described["paths"][path][method]
        if body is not None and status != 400:
            self.holds(operation["requestBody"]["content"]["application/json"]["schema"], body)
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path.format(**names) + query, method=method.upper(), data=data)
        try:
            answer = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        content, kind = answer.read(), answer.headers["content-type"].split(";")[0]
        assert answer.status == status, (path, answer.status, content)
        schema = operation["responses"][str(status)]["content"][kind]["schema"]
        if kind == "text/event-stream":
            self.holds_stream(schema, events(content.decode()))
        elif kind == "application/x-ndjson":
            told = [json.loads(line) for line in content.splitlines()]
            for line in told:
                self.holds(schema, line)
            check_told(told)
        if kind != "application/json":
            return content.decode()
        self.holds(schema, json.loads(content))
        return json.loads(content)

    def watch(self, path, count):
        """So many events of a stream that has no end."""
        schema = self.described["paths"][path]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
            text = ""
            while text.count("\n\n") < count:
                line = answer.readline().decode()
                assert line, "it ended"
                text += line
        self.holds_stream(schema, events(text))


def check_told(told):
    """Whether a stream says something, and nothing of an error."""
    assert told
    assert not any("error" in one or one.get("type") in ("error", "response.failed") for one in told), told


def events(text):
    """The events of a stream, without the lines that only show that it is alive."""
    fields = [[line.split(": ", 1) for line in event.splitlines() if not line.startswith(":")] for event in text.split("\n\n")]
    return [dict(event) for event in fields if event]


SHORT = {"messages": QUESTION, "max_tokens": 90, "temperature": 0}


@check
def openai(server, model):
    chat = "/v1/chat/completions"
    server.ask("post", chat, SHORT | {"logprobs": True, "top_logprobs": 1})
    server.ask("post", chat, SHORT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]})
    server.ask("post", chat, SHORT | {"tools": [TOOL], "tool_choice": "required"})
    assert server.ask("post", chat, SHORT | {"stream": True}).endswith("data: [DONE]\n\n")
    server.refuses("post", chat, SHORT | {"temperature": 2.5})
    server.refuses("post", chat, {"temperature": 1})
    server.ask("post", "/v1/completions", {"prompt": "Paris", "max_tokens": 2, "stream": True})
    server.ask("post", "/v1/completions", {"prompt": "Paris", "max_tokens": 2, "logprobs": 1, "echo": True})
    server.ask("post", "/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 2})
    server.refuses("post", "/v1/completions", {"prompt": [[1, 2], []]})
    for form in ("float", "base64"):
        server.ask("post", "/v1/embeddings", {"input": ["a", "b"], "encoding_format": form})
    server.ask("get", "/v1/models")
    server.ask("get", "/v1/models/{name}", name=model)
    server.ask("get", "/v1/models/{name}", name="an/other", status=404)


@check
def responses(server, model):
    path = "/v1/responses"
    tool = {"type": "function", "name": "get_weather", "parameters": PLACE}
    server.ask("post", path, {"input": "Hi", "tools": [tool], "tool_choice": "required", "metadata": {"a": "b"}})
    server.ask("post", path, {"input": "Hi", "stream": True})
    for refused in ({"truncation": "auto"}, {"n": 2}, {"top_logprobs": 21}):
        server.refuses("post", path, {"input": "Hi"} | refused)
    made = server.ask("post", path, {"input": QUESTION, "instructions": "Be brief."})
    server.ask("get", path + "/{id}", id=made["id"])
    server.ask("get", path + "/{id}/input_items", id=made["id"])
    server.ask("get", path + "/{id}/input_items", id=made["id"], query="?limit=0", status=400)
    server.ask("delete", path + "/{id}", id=made["id"])
    server.ask("get", path + "/{id}", id=made["id"], status=404)


@check
def anthropic(server, model):
    tool = {"name": "get_weather", "input_schema": PLACE}
    server.ask("post", "/v1/messages", SHORT)
    server.ask("post", "/v1/messages", SHORT | {"tools": [tool], "tool_choice": {"type": "any"}})
    server.ask("post", "/v1/messages", SHORT | {"stream": True})
    server.refuses("post", "/v1/messages", SHORT | {"max_tokens": 0})
    server.ask("post", "/v1/messages/count_tokens", {"messages": QUESTION, "system": "Be brief."})


@check
def tokens(server, model):
    server.ask("post", "/tokenize", {"prompt": "Hi", "return_token_strs": True})
    server.ask("post", "/tokenize", {"messages": QUESTION})
    server.refuses("post", "/tokenize", {"prompt": "Hi", "reasoning_effort": "a b"})
    server.ask("post", "/detokenize", {"tokens": [1, 2]})
    server.ask("post", "/apply-template", {"messages": QUESTION})
    server.ask("get", "/tokenizer_info")


@check
def ollama(server, model):
    whole = {"stream": False, "logprobs": True, "options": {"num_predict": 3}}
    server.ask("post", "/api/chat", {"messages": QUESTION} | whole)
    server.ask("post", "/api/chat", {"messages": QUESTION})
    server.ask("post", "/api/generate", {"prompt": "Hi"})
    server.refuses("post", "/api/generate", {"prompt": "Hi", "options": {"top_p": 1.5}})
    server.refuses("post", "/api/chat", {"messages": QUESTION, "options": {"num_predict": 0}})
    server.refuses("post", "/api/chat", {"options": {"temperature": 9}})
    server.refuses("post", "/api/embed", {"input": "a", "dimensions": 3})
    server.ask("post", "/api/generate", {"prompt": "Hi"} | whole)
    for path in ("/api/chat", "/api/generate"):
        assert server.ask("post", path, {})["done_reason"] == "load"
    server.ask("post", "/api/embed", {"input": "a"})
    server.ask("post", "/api/embeddings", {"prompt": "a"})
    for path in ("/api/tags", "/api/ps", "/api/version"):
        server.ask("get", path)
    server.ask("post", "/api/show", {"model": model})
    server.ask("post", "/api/show", {"model": "other"}, status=404)
    server.ask("post", "/api/pull", {"model": model, "stream": False})
    server.ask("post", "/api/push", status=501)
    server.ask("delete", "/api/delete", status=501)


@check
def the_server_itself(server, model):
    for path in ("/api/cluster", "/api/requests", "/api/log", "/api/members", "/metrics", "/health", "/ready", "/openapi.json", "/"):
        server.ask("get", path)
    server.watch("/api/events", 3)
    server.ask("get", "/page/{name}", name="app.js")
    server.ask("get", "/page/{name}", name="other.js", status=404)


@check
def household(server, model):
    """What the owner of the devices does: where there is an authority it is done, with the first two of those that joined."""
    path, of_one = "/api/members/invite", "/api/members/{id}/"
    known = server.ask("get", "/api/members")
    server.refuses("post", path, {"uses": 0})
    server.refuses("post", of_one + "rename", {"name": "<b>" * 40}, id="0123")
    server.ask("post", of_one + "drain", {"drain": True}, status=404, id="0123")
    server.ask("post", "/api/what-if", {"bytes": 4 << 30})
    server.ask("post", "/api/what-if", {"bytes": 4 << 30, "model": "other"}, status=400)
    if not known["authority"]:
        for asked, body in ((path, {}), (of_one + "rename", {"name": "attic"}), (of_one + "revoke", {})):
            server.ask("post", asked, body, status=409, id="0123")
        return
    for asked, body in ((of_one + "rename", {"name": "attic"}), (of_one + "revoke", {})):
        server.ask("post", asked, body, status=404, id="0123")
    first, other = [member["worker_id"] for member in known["members"][:2]]
    server.ask("post", path, {})
    server.ask("post", path, {"ttl_seconds": 600, "uses": 3})
    renamed = server.ask("post", of_one + "rename", {"name": "cellar"}, id=first)
    assert renamed["name"] == "cellar"
    server.ask("post", of_one + "rename", {"name": "cellar"}, status=409, id=other)
    for drain in (True, False):
        assert server.ask("post", of_one + "drain", {"drain": drain}, id=first)["draining"] is drain
    assert server.ask("post", of_one + "revoke", {}, id=other)["revoked"]
    shown = {member["worker_id"]: member for member in server.ask("get", "/api/members")["members"]}
    assert shown[first]["name"] == "cellar" and shown[other]["revoked"], shown


run(Server, "jsonschema-rs")
