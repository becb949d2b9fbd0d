"""OpenAI's own Python client asks a running `cake-master serve` of the demo model for responses.

    python responses_client.py http://127.0.0.1:8080 MODEL
"""

import json

import openai
from checks import ASKED, PERSON, PLACE, QUESTION, check, run

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "strict": True,
    "parameters": PLACE,
}


def refused(kind, ask, **expected):
    try:
        ask()
    except kind as error:
        assert error.body["message"], error
        found = {name: error.body[name] for name in expected}
        assert found == expected, error
        return
    raise AssertionError(f"no {kind.__name__}")


@check
def response(client, model):
    answer = client.responses.create(
        model=model, input=ASKED, instructions="Be brief.", temperature=0, max_output_tokens=40, metadata={"a": "b"}
    )
    assert (answer.object, answer.model, answer.instructions) == ("response", model, "Be brief.")
    assert answer.output_text and [item.type for item in answer.output] == ["message"]
    assert answer.status in ("completed", "incomplete") and answer.output[0].status == answer.status
    assert answer.metadata == {"a": "b"} and answer.temperature == 0 and answer.error is None
    usage = answer.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens > 0
    # The same words in a chat have the same answer.
    turns = [{"role": "system", "content": "Be brief."}] + QUESTION
    chat = client.chat.completions.create(model=model, messages=turns, temperature=0, max_tokens=40)
    assert chat.choices[0].message.content == answer.output_text
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (usage.input_tokens, usage.output_tokens)


@check
def streaming(client, model):
    asked = dict(model=model, input=QUESTION, temperature=0, max_output_tokens=40)
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ], kinds
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        f"response.{whole.status}",
    ], kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens
    assert client.responses.retrieve(events[-1].response.id).output_text == whole.output_text
    with client.responses.stream(**asked) as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    assert texts[-1] == whole.output_text


@check
def ends(client, model):
    cut = client.responses.create(model=model, input=ASKED, max_output_tokens=1)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 1 and cut.output[0].status == "incomplete"


@check
def log_probabilities(client, model):
    wanted = dict(include=["message.output_text.logprobs"], top_logprobs=2)
    answer = client.responses.create(model=model, input=ASKED, temperature=0, max_output_tokens=8, **wanted)
    part = answer.output[0].content[0]
    assert len(part.logprobs) == answer.usage.output_tokens, answer
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in part.logprobs)
    plain = client.responses.create(model=model, input=ASKED, temperature=0, max_output_tokens=8)
    assert not plain.output[0].content[0].logprobs and plain.output_text == part.text


@check
def conversations(client, model):
    asked = dict(model=model, temperature=0, max_output_tokens=12)
    first = client.responses.create(**asked, input=ASKED)
    next_words = [{"role": "user", "content": [{"type": "input_text", "text": "And of Italy?"}]}]
    second = client.responses.create(**asked, input=next_words, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    # All of it sent again is the same conversation.
    again = client.responses.create(**asked, input=QUESTION + first.output + next_words, store=False)
    assert again.output_text == second.output_text and again.usage.input_tokens == second.usage.input_tokens
    third = client.responses.create(**asked, input="And of Spain?", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens > first.usage.input_tokens
    items = list(client.responses.input_items.list(second.id))
    assert [(item.type, item.role, item.content[0].text) for item in items] == [("message", "user", "And of Italy?")]
    found = client.responses.retrieve(first.id)
    assert (found.id, found.output_text, found.usage) == (first.id, first.output_text, first.usage)
    client.responses.delete(first.id)
    gone = dict(code=None, param=None)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(first.id), **gone)
    refused(openai.NotFoundError, lambda: client.responses.delete(first.id), **gone)
    refused(openai.NotFoundError, lambda: client.responses.input_items.list(first.id), **gone)
    refused(openai.NotFoundError, lambda: client.responses.retrieve(again.id), **gone)
    missing = dict(code="previous_response_not_found", param="previous_response_id")
    for id in (first.id, second.id, again.id, "resp_none"):
        ask = lambda: client.responses.create(**asked, input="And?", previous_response_id=id)
        refused(openai.NotFoundError, ask, **missing)


@check
def input_items(client, model):
    turns = [{"role": "user", "content": f"Word {number}"} for number in range(5)]
    answer = client.responses.create(model=model, input=turns, max_output_tokens=1)
    # The client asks for page after page.
    for order in ("asc", "desc"):
        items = list(client.responses.input_items.list(answer.id, order=order, limit=2))
        texts = [item.content[0].text for item in items]
        expected = [turn["content"] for turn in turns]
        assert texts == (expected if order == "asc" else expected[::-1]), texts
        assert len({item.id for item in items}) == 5
    refused(openai.BadRequestError, lambda: client.responses.input_items.list(answer.id, limit=0), param="limit")


@check
def tools(client, model):
    asked = dict(model=model, max_output_tokens=200, tools=[TOOL])
    answer = client.responses.create(**asked, input=ASKED, tool_choice="required")
    call = answer.output[-1]
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed"), answer
    assert json.loads(call.arguments)["unit"] in ("celsius", "fahrenheit") and call.call_id and call.id
    assert answer.tools[0].name == "get_weather" and answer.tool_choice == "required"
    named = {"type": "function", "name": "get_weather"}
    with client.responses.stream(**asked, input=ASKED, tool_choice=named) as stream:
        events = list(stream)
        last = stream.get_final_response()
    assert last.output[-1].parsed_arguments["unit"] in ("celsius", "fahrenheit")
    assert "response.function_call_arguments.delta" in [event.type for event in events]
    # What came of the call goes back to the model: after what is stored, or with all of it.
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    asked.update(temperature=0, max_output_tokens=5)
    stored = client.responses.create(**asked, input=[result], previous_response_id=answer.id)
    whole = client.responses.create(**asked, input=QUESTION + answer.output + [result])
    assert stored.usage.input_tokens == whole.usage.input_tokens and stored.output_text == whole.output_text
    free = client.responses.create(**asked, input=ASKED, tool_choice="none")
    assert [item.type for item in free.output] == ["message"]


@check
def held_to_a_schema(client, model):
    form = {"format": {"type": "json_schema", "name": "person", "strict": True, "schema": PERSON}}
    answer = client.responses.create(model=model, max_output_tokens=50, input=ASKED, text=form)
    assert answer.status == "completed" and 0 <= json.loads(answer.output_text)["age"] <= 150, answer
    assert answer.text.format.type == "json_schema"
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}
    refused(openai.BadRequestError, lambda: client.responses.create(model=model, input=ASKED, text=form), param="text.format")


@check
def errors(client, model):
    def wrong(kind, expected, **changed):
        refused(kind, lambda: client.responses.create(**{"model": model, "input": ASKED, **changed}), **expected)

    bad = openai.BadRequestError
    wrong(openai.NotFoundError, {"code": "model_not_found"}, model="other")
    wrong(bad, {"param": "temperature"}, temperature=-1)
    wrong(bad, {"param": "max_output_tokens"}, max_output_tokens=0)
    wrong(bad, {"param": "background"}, background=True)
    wrong(bad, {"param": "truncation"}, truncation="auto")
    wrong(bad, {"param": "conversation"}, conversation="conv_1")
    wrong(bad, {"param": "tools"}, tools=[{"type": "web_search"}])
    wrong(bad, {"param": "tool_choice"}, tools=[TOOL], tool_choice={"type": "function", "name": "other"})
    wrong(bad, {"param": "input"}, input=[])
    image = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
    wrong(bad, {"param": "input"}, input=image)
    long = "word " * 20_000
    wrong(bad, {"code": "context_length_exceeded"}, input=long)
    wrong(bad, {"code": "context_length_exceeded"}, input=long, stream=True)


run(lambda url: openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60), "openai")
