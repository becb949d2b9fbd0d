"""Ollama's own Python client against a running `cake-master serve` of the demo model.

    python ollama_client.py http://127.0.0.1:8080 MODEL
"""

import json

import ollama
from checks import PERSON, QUESTION, TOOL, check, run

GREEDY = {"temperature": 0, "num_predict": 40}


def post(client, path, **body):
    """What the client has no parameter for."""
    return client._client.post(path, json=body).raise_for_status()


def get(client, path):
    return client._client.get(path).raise_for_status().json()


def ends_with_counts(last):
    assert last.done and last.done_reason in ("stop", "length"), last
    assert last.prompt_eval_count > 0 and 0 < last.eval_count <= 40
    parts = [last.load_duration, last.prompt_eval_duration, last.eval_duration]
    assert min(parts) > 0 and sum(parts) == last.total_duration, last


@check
def models(client, model):
    [listed] = client.list().models
    assert listed.model == f"{model}:latest" and listed.size > 0 and len(listed.digest) == 64
    assert listed.modified_at.year > 2000 and listed.details.family == "qwen2"
    assert listed.details.quantization_level == "BF16" and listed.details.format == "safetensors"
    [running] = client.ps().models
    assert (running.name, running.digest) == (listed.model, listed.digest)
    assert running.expires_at > listed.modified_at and running.context_length == 1024
    for name in (model, listed.model):
        shown = client.show(name)
        assert shown.capabilities == ["completion"] and "im_start" in shown.template
        assert shown.details == listed.details and shown.modelinfo["qwen2.context_length"] == 1024
    version = get(client, "/api/version")["version"]
    assert [int(part) for part in version.split(".")] >= [0, 12, 11]
    assert client._client.head("/").status_code == 200


@check
def chat(client, model):
    answer = client.chat(model, QUESTION, options=GREEDY)
    assert answer.model == model and answer.message.role == "assistant" and answer.message.content
    assert answer.message.thinking is None and answer.message.tool_calls is None and answer.created_at
    ends_with_counts(answer)
    parts = list(client.chat(f"{model}:latest", QUESTION, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == answer.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True] and len(parts) > 3
    ends_with_counts(parts[-1])
    assert (parts[-1].eval_count, parts[-1].done_reason) == (answer.eval_count, answer.done_reason)
    # Without a word on it an answer is a stream, of lines.
    lines = post(client, "/api/chat", model=model, messages=QUESTION, options=GREEDY)
    assert lines.headers["content-type"] == "application/x-ndjson"
    said = [json.loads(line) for line in lines.text.splitlines()]
    assert "".join(line["message"]["content"] for line in said) == answer.message.content


@check
def continues(client, model):
    whole = client.chat(model, QUESTION, options=GREEDY).message.content
    begun = whole[: whole.index(" ", 4)]
    turns = QUESTION + [{"role": "assistant", "content": begun}]
    assert begun + client.chat(model, turns, options=GREEDY).message.content == whole
    parts = client.chat(model, turns, options=GREEDY, stream=True)
    assert begun + "".join(part.message.content for part in parts) == whole


@check
def generate(client, model):
    answer = client.generate(model, "What is the capital of France?", options=GREEDY)
    assert answer.response == client.chat(model, QUESTION, options=GREEDY).message.content
    ends_with_counts(answer)
    parts = list(client.generate(model, "What is the capital of France?", options=GREEDY, stream=True))
    assert "".join(part.response for part in parts) == answer.response and parts[-1].done
    system = client.generate(model, "What is the capital of France?", system="Be brief.", options=GREEDY)
    assert system.prompt_eval_count > answer.prompt_eval_count
    raw = client.generate(model, "The sun", raw=True, options=GREEDY)
    written = post(client, "/v1/completions", model=model, prompt="The sun", temperature=0, max_tokens=40)
    assert raw.response == written.json()["choices"][0]["text"] and raw.prompt_eval_count < answer.prompt_eval_count


@check
def options(client, model):
    def say(**options):
        return client.chat(model, QUESTION, options={**GREEDY, **options})

    cut = say(num_predict=1)
    assert (cut.done_reason, cut.eval_count) == ("length", 1)
    whole = say().message.content
    stop = whole.split()[1]
    stopped = say(stop=["never said", stop])
    assert (stopped.done_reason, stopped.message.content) == ("stop", whole[: whole.index(stop)])
    one, other = (say(temperature=1.5, seed=7, top_k=40, top_p=0.9).message.content for _ in range(2))
    assert one == other
    unlike = say(repeat_penalty=50, repeat_last_n=-1).message.content
    assert unlike != whole
    # As many programs send them.
    assert say(num_ctx=1024, num_gpu=99, num_thread=8, mirostat=0, use_mmap=True).message.content == whole
    assert client.chat(model, QUESTION, options=GREEDY, keep_alive="5m", think=False).message.content == whole


@check
def loading(client, model):
    for keep, reason in (("5m", "load"), (0, "unload"), (-1, "load")):
        for answer in (client.chat(model, [], keep_alive=keep), client.generate(model, "", keep_alive=keep)):
            assert answer.done and answer.done_reason == reason and answer.eval_count is None
    [status] = client.pull(model, stream=True)
    assert status.status == client.pull(f"{model}:latest").status == "success"


@check
def log_probabilities(client, model):
    answer = client.chat(model, QUESTION, options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) >= answer.eval_count - 1
    for token in answer.logprobs:
        best = token.top_logprobs[0]
        assert (best.token, best.logprob) == (token.token, token.logprob) and token.logprob <= 0
    assert "".join(token.token for token in answer.logprobs) == answer.message.content
    parts = client.chat(model, QUESTION, options=GREEDY, logprobs=True, top_logprobs=2, stream=True)
    assert [token for part in parts for token in part.logprobs or []] == answer.logprobs


@check
def held_to_a_format(client, model):
    answer = client.chat(model, QUESTION, format=PERSON, options={"seed": 1})
    assert 0 <= json.loads(answer.message.content)["age"] <= 150 and answer.done_reason == "stop"
    parts = client.generate(model, "Who?", format=PERSON, options={"seed": 2}, stream=True)
    assert set(json.loads("".join(part.response for part in parts))) == {"age"}
    anything = client.generate(model, "Who?", format="json", options={"num_predict": 5})
    assert anything.response.lstrip().startswith("{")


@check
def tools(client, model):
    # The model's template has no word for tools; it can be made to call one all the same.
    asked = dict(model=model, messages=QUESTION, tools=[TOOL], tool_choice="required", options={"seed": 1})
    for stream in (False, True):
        lines = post(client, "/api/chat", **asked, stream=stream).text.splitlines()
        parts = [ollama.ChatResponse(**json.loads(line)) for line in lines]
        calls = [call for part in parts for call in part.message.tool_calls or []]
        [call] = calls
        assert call.function.name == "get_weather" and call.function.arguments["unit"] in ("celsius", "fahrenheit")
        assert parts[-1].done and "".join(part.message.content for part in parts) == ""
    # What came of the call goes back to the model.
    answer = ollama.Message(role="assistant", content="", thinking="Hm", tool_calls=calls)
    turns = QUESTION + [answer, {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
    assert client.chat(model, turns, options=GREEDY).message.content


@check
def embeddings(client, model):
    found = client.embed(model, ["The sun is warm.", "A cat sleeps."])
    first, second = found.embeddings
    assert len(first) == len(second) == 192 and first != second and found.model == model
    assert abs(sum(value * value for value in first) - 1) < 1e-5
    assert found.prompt_eval_count > client.embed(model, "The sun is warm.").prompt_eval_count > 0
    assert client.embed(model, "The sun is warm.", truncate=True).embeddings == [first]
    assert client.embeddings(model, "The sun is warm.").embedding == first
    assert client.embed(model, "").embeddings == []


@check
def errors(client, model):
    def refused(status, words, call):
        try:
            list(call())
        except ollama.ResponseError as error:
            assert error.status_code == status and words in error.error, error
            return
        raise AssertionError(f"{words} was not refused")

    def chat(messages=QUESTION, stream=False, name=model, **more):
        return lambda: client.chat(name, messages, stream=stream, **more)

    refused(404, "not found", chat(name="other"))
    refused(404, "not found", chat(name="other", stream=True))
    refused(404, "not found", chat(name=f"{model}:8b"))
    refused(404, "not found", lambda: client.show("other"))
    refused(404, "not found", lambda: client.pull("other", stream=True))
    refused(400, "options.temperature is -1", chat(options={"temperature": -1}))
    refused(400, "options.num_ctx is 4096, expected at most 1024", chat(options={"num_ctx": 4096}))
    refused(400, "options.mirostat is not supported", chat(options={"mirostat": 2}))
    refused(400, "images is not supported", chat([{**QUESTION[0], "images": [b"aGk="]}]))
    refused(400, "template is not supported", lambda: client.generate(model, "a", template="{{ .Prompt }}"))
    refused(400, "suffix is not supported", lambda: client.generate(model, "a", suffix="b"))
    refused(400, "dimensions is not supported", lambda: client.embed(model, "a", dimensions=8))
    refused(400, "format", chat(format={"type": "nothing"}))
    refused(400, "does not support thinking", chat(think="high"))
    refused(400, "does not support tools", chat(tools=[TOOL]))
    long = [{"role": "user", "content": "word " * 20_000}]
    refused(400, "", chat(long))
    refused(400, "", chat(long, stream=True))
    for call in (
        lambda: client.push(model),
        lambda: client.delete(model),
        lambda: client.copy(model, "other"),
        lambda: client.create("other", from_=model),
        lambda: client.create_blob(__file__),
    ):
        refused(501, "is not done here", call)
    assert client._client.get("/api/nothing").json() == {"error": "there is nothing at /api/nothing"}
    # What is beneath /api and not Ollama's stays as it was.
    assert get(client, "/api/cluster")["model"] == model
    assert "message" in client._client.post("/api/cluster").json()["error"]


run(lambda url: ollama.Client(host=url, timeout=60), "ollama")
