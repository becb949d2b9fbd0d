"""Anthropic's own Python client against a running `cake-master serve` of the demo model.

    python anthropic_client.py http://127.0.0.1:8080 MODEL
"""

import anthropic
from checks import PERSON, PLACE, QUESTION, check, run

# The client has no parameter for it any more; the API has.
GREEDY = {"temperature": 0}
TOOL = {"name": "get_weather", "description": "The weather in a city.", "input_schema": PLACE}


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


@check
def models(client, model):
    found = list(client.models.list())
    assert [one.id for one in found] == [model] and found[0].type == "model" and found[0].created_at.year > 2000
    assert client.models.retrieve(model).display_name == model


@check
def message(client, model):
    answer = client.messages.create(model=model, max_tokens=40, messages=QUESTION, extra_body=GREEDY, system="Be brief.")
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", model) and answer.id
    assert text_of(answer) and answer.stop_reason in ("end_turn", "max_tokens") and answer.stop_sequence is None
    assert answer.usage.output_tokens > 0 and answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 0


@check
def streaming(client, model):
    asked = dict(model=model, max_tokens=40, messages=QUESTION, extra_body=GREEDY)
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == text_of(whole) == text_of(last)
    assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    kinds = [event.type for event in client.messages.create(**asked, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds


@check
def ends(client, model):
    asked = dict(model=model, messages=QUESTION, extra_body=GREEDY)
    cut = client.messages.create(**asked, max_tokens=1)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 1
    whole = text_of(client.messages.create(**asked, max_tokens=40))
    stop = whole.split()[1]
    stopped = client.messages.create(**asked, max_tokens=40, stop_sequences=["never said", stop])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", stop)
    assert text_of(stopped) == whole[: whole.index(stop)]


@check
def continues(client, model):
    asked = dict(model=model, max_tokens=40, extra_body=GREEDY)
    whole = text_of(client.messages.create(**asked, messages=QUESTION))
    begun = whole[: whole.index(" ", 4)]
    blocks = [{"type": "text", "text": begun}]
    turns = QUESTION + [{"role": "assistant", "content": blocks}]
    assert begun + text_of(client.messages.create(**asked, messages=turns)) == whole
    with client.messages.stream(**asked, messages=turns) as stream:
        assert begun + "".join(stream.text_stream) == whole


@check
def counts_tokens(client, model):
    short = client.messages.count_tokens(model=model, messages=QUESTION)
    long = client.messages.count_tokens(model=model, messages=QUESTION, system="Be brief.", tools=[TOOL])
    assert 0 < short.input_tokens < long.input_tokens
    used = client.messages.create(model=model, max_tokens=1, messages=QUESTION).usage
    assert used.input_tokens + used.cache_read_input_tokens == short.input_tokens


@check
def tools(client, model):
    asked = dict(model=model, max_tokens=200, messages=QUESTION, tools=[TOOL])
    answer = client.messages.create(**asked, tool_choice={"type": "any"})
    call = answer.content[-1]
    assert answer.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "get_weather", answer
    assert call.input["unit"] in ("celsius", "fahrenheit") and call.id
    with client.messages.stream(**asked, tool_choice={"type": "tool", "name": "get_weather"}) as stream:
        last = stream.get_final_message()
    assert last.content[-1].input["unit"] in ("celsius", "fahrenheit") and last.stop_reason == "tool_use"
    # What came of the call goes back to the model, beside more text.
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns = QUESTION + [
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
    ]
    again = client.messages.create(model=model, max_tokens=5, messages=turns, tools=[TOOL])
    assert again.content, again
    free = client.messages.create(**asked, tool_choice={"type": "none"})
    assert all(block.type != "tool_use" for block in free.content)


@check
def held_to_a_schema(client, model):
    form = {"format": {"type": "json_schema", "schema": PERSON}}
    answer = client.messages.create(model=model, max_tokens=50, messages=QUESTION, output_config=form)
    assert answer.stop_reason == "end_turn" and text_of(answer).lstrip().startswith("{"), answer


@check
def errors(client, model):
    def refused(kind, word, **changed):
        try:
            client.messages.create(**{"model": model, "max_tokens": 5, "messages": QUESTION, **changed})
        except kind as error:
            assert error.body["type"] == "error" and error.body["error"]["type"] == word, error.body
            assert error.body["error"]["message"], error.body
            return
        raise AssertionError(f"{changed} was not refused")

    refused(anthropic.NotFoundError, "not_found_error", model="other")
    refused(anthropic.BadRequestError, "invalid_request_error", extra_body={"temperature": -1})
    refused(anthropic.BadRequestError, "invalid_request_error", max_tokens=0)
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]
    refused(anthropic.BadRequestError, "invalid_request_error", messages=[{"role": "user", "content": image}])
    begun = QUESTION + [{"role": "assistant", "content": "It is"}]
    held = {"type": "any"}
    refused(anthropic.BadRequestError, "invalid_request_error", messages=begun, tools=[TOOL], tool_choice=held)
    long = [{"role": "user", "content": "word " * 20_000}]
    refused(anthropic.BadRequestError, "invalid_request_error", messages=long)
    try:
        list(client.messages.create(model=model, max_tokens=5, messages=long, stream=True))
    except anthropic.BadRequestError:
        return
    raise AssertionError("a stream of what is refused began")


run(lambda url: anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60), "anthropic")
