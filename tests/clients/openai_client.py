"""OpenAI's own Python client against a running `cake-master serve` of the demo model.

    python openai_client.py http://127.0.0.1:8080 MODEL
"""

import json

import openai
from checks import QUESTION, TOOL, check, run

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def beside(client):
    """A client for what other servers of this API have beside it."""
    return client.with_options(base_url=str(client.base_url).removesuffix("v1/"))


def post(client, path, **body):
    return beside(client).post(f"/{path}", body=body, cast_to=object)


@check
def models(client, model):
    assert [found.id for found in client.models.list()] == [model]
    assert client.models.retrieve(model).owned_by == "cake"


@check
def chat(client, model):
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_completion_tokens=40, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert len(choice.logprobs.content[0].top_logprobs) == 2


@check
def chat_streaming(client, model):
    asked = dict(model=model, messages=QUESTION, temperature=0, max_tokens=40)
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


@check
def several_answers_with_a_seed(client, model):
    asked = dict(model=model, messages=QUESTION, temperature=1, seed=7, n=3, max_tokens=12)
    one, other = (client.chat.completions.create(**asked) for _ in range(2))
    texts = [choice.message.content for choice in one.choices]
    assert texts == [choice.message.content for choice in other.choices] and len(texts) == 3


@check
def completions(client, model):
    answer = client.completions.create(model=model, prompt=["The sun", "A cat"], max_tokens=8, temperature=0, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("The sun") and answer.choices[1].text.startswith("A cat")
    pieces = client.completions.create(model=model, prompt="The sun", max_tokens=8, temperature=0, stream=True)
    text = "".join(piece.choices[0].text for piece in pieces)
    assert "The sun" + text == answer.choices[0].text


@check
def prompts_are_scored(client, model):
    asked = dict(model=model, temperature=0, logprobs=2)
    chosen = client.completions.create(**asked, prompt="The sun", max_tokens=8).choices[0]
    text = "The sun" + chosen.text
    echoed = client.completions.create(**asked, prompt=text, max_tokens=0, echo=True).choices[0]
    said = echoed.logprobs
    assert echoed.text == text and echoed.finish_reason == "length"
    assert said.token_logprobs[0] is None and said.top_logprobs[0] is None
    assert len(said.tokens) == len(said.token_logprobs) == len(said.top_logprobs) == len(said.text_offset)
    for token, offset in zip(said.tokens, said.text_offset):
        assert text[offset : offset + len(token)] == token
    count = len(chosen.logprobs.tokens)
    assert said.tokens[-count:] == chosen.logprobs.tokens, "the text is cut as the model wrote it"
    for found, expected in zip(said.token_logprobs[-count:], chosen.logprobs.token_logprobs):
        assert abs(found - expected) < 0.05, (said, chosen.logprobs)
    # As lm-evaluation-harness asks: token ids of several prompts, and one new token.
    ids = [post(client, "tokenize", prompt=one)["tokens"] for one in (text, "A cat sleeps.")]
    answer = client.completions.create(**{**asked, "logprobs": 1}, prompt=ids, max_tokens=1, echo=True, seed=1234)
    for choice, one in zip(answer.choices, ids):
        lists = choice.logprobs
        assert len(lists.token_logprobs) == len(one) + 1
        pairs = list(zip(lists.token_logprobs, lists.top_logprobs))[1:]
        assert all(logprob <= max(top.values()) for logprob, top in pairs)
        assert pairs[-1][0] == max(pairs[-1][1].values()), "greedy"
    assert answer.choices[0].logprobs.tokens[:-1] == said.tokens
    # In a stream the prompt comes first, in one piece.
    asked = dict(**asked, prompt=text, max_tokens=2, echo=True)
    pieces = [piece.choices[0] for piece in client.completions.create(**asked, stream=True)]
    assert pieces[0].text == text and pieces[0].logprobs.tokens == said.tokens
    whole = client.completions.create(**asked).choices[0]
    assert "".join(piece.text for piece in pieces) == whole.text
    joined = [offset for piece in pieces if piece.logprobs for offset in piece.logprobs.text_offset]
    assert joined == whole.logprobs.text_offset


@check
def answers_are_continued(client, model):
    asked = dict(model=model, temperature=0, logprobs=True, max_tokens=40)
    whole = client.chat.completions.create(**asked, messages=QUESTION).choices[0]
    begun = "".join(token.token for token in whole.logprobs.content[:3])
    messages = QUESTION + [{"role": "assistant", "content": begun}]
    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    rest = client.chat.completions.create(**asked, messages=messages, extra_body=goes_on).choices[0]
    assert begun and begun + rest.message.content == whole.message.content, (begun, rest)
    text = post(client, "apply-template", messages=messages, **goes_on)["prompt"]
    assert text == post(client, "apply-template", messages=QUESTION)["prompt"] + begun
    try:
        client.chat.completions.create(**asked, messages=QUESTION, extra_body=goes_on)
    except openai.BadRequestError as error:
        assert error.param == "continue_final_message"
        return
    raise AssertionError("a question was continued")


@check
def what_the_model_is_told(client, model):
    found = post(client, "tokenize", messages=QUESTION, return_token_strs=True)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) < found["max_model_len"]
    text = post(client, "apply-template", messages=QUESTION)["prompt"]
    assert post(client, "tokenize", prompt=text, add_special_tokens=False)["tokens"] == found["tokens"]
    assert post(client, "detokenize", tokens=found["tokens"])["prompt"] == text
    info = beside(client).get("/tokenizer_info", cast_to=object)
    assert info["eos_token"] and info["chat_template"]
    used = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1).usage
    assert used.prompt_tokens == found["count"]
    for path, body in [("tokenize", {}), ("detokenize", {"tokens": [1 << 30]}), ("apply-template", {"messages": []})]:
        try:
            post(client, path, **body)
        except openai.BadRequestError as error:
            assert error.param, error
        else:
            raise AssertionError(f"{path} took {body}")


@check
def embeddings(client, model):
    # The client asks for base64 by itself and decodes it.
    found = client.embeddings.create(model=model, input=["The sun is warm.", "A cat sleeps."])
    plain = client.embeddings.create(model=model, input="The sun is warm.", encoding_format="float")
    first, second = (entry.embedding for entry in found.data)
    assert first == plain.data[0].embedding and first != second and len(first) == len(second) > 16
    assert found.usage.prompt_tokens > plain.usage.prompt_tokens > 0


@check
def json_schema(client, model):
    for seed in range(3):
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me about somebody."}],
            response_format={"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}},
            temperature=1.5,
            seed=seed,
            max_tokens=200,
        )
        choice = answer.choices[0]
        assert choice.finish_reason == "stop", choice
        person = json.loads(choice.message.content)
        assert set(person) == {"name", "age", "tags"} and 0 <= person["age"] <= 150
        assert len(person["name"]) <= 10 and set(person["tags"]) <= {"a", "b"}


@check
def tools(client, model):
    asked = dict(model=model, messages=QUESTION, tools=[TOOL], max_tokens=200, seed=1)
    answer = client.chat.completions.create(**asked, tool_choice="required")
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_weather" and call.id
    assert json.loads(call.function.arguments)["unit"] in ("celsius", "fahrenheit")
    named = {"type": "function", "function": {"name": "get_weather"}}
    chunks = list(client.chat.completions.create(**asked, tool_choice=named, stream=True))
    deltas = [call for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or []]
    assert deltas[0].function.name == "get_weather"
    assert json.loads("".join(delta.function.arguments for delta in deltas))
    # What came of the call goes back to the model.
    messages = QUESTION + [
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    again = client.chat.completions.create(model=model, messages=messages, tools=[TOOL], max_tokens=5)
    assert again.choices[0].message is not None
    # Without tools nothing is a call.
    free = client.chat.completions.create(**asked, tool_choice="none")
    assert free.choices[0].message.tool_calls is None


@check
def errors(client, model):
    def refused(kind, **changed):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **changed})
        except kind as error:
            assert error.body["message"], error
            return error
        raise AssertionError(f"{changed} was not refused")

    assert refused(openai.NotFoundError, model="other").code == "model_not_found"
    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    assert refused(openai.BadRequestError, max_tokens=-5)
    assert refused(openai.BadRequestError, max_tokens=0).param == "max_tokens"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    assert refused(openai.BadRequestError, response_format=schema).param == "response_format"
    long = [{"role": "user", "content": "word " * 20_000}]
    assert refused(openai.BadRequestError, messages=long).code == "context_length_exceeded"
    assert refused(openai.BadRequestError, tools=[TOOL], tool_choice="sometimes").param == "tool_choice"


run(lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60), "openai")
